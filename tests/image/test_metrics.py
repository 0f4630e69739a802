# SPDX-License-Identifier: Apache-2.0
"""Dashboards, alert rules and the harness ask only for metrics that this SGLang has."""

import re

from imagebuild.catalog import project_root

ROOT = project_root()
ASK = ("images/metrics/panels.yaml", "images/metrics/rules/sglang.yml", "scripts/lib/bench_driver.py")


def test_every_metric_that_is_asked_for_is_registered(probe):
    kinds = probe("metrics")
    asked = {name for path in ASK for name in re.findall(r"sglang:\w+", (ROOT / path).read_text())}
    assert len(asked) >= 12
    for name in sorted(asked):
        if name.endswith("_bucket"):
            assert kinds.get(name.removesuffix("_bucket")) == "histogram", name
        else:
            assert kinds.get(name) in ("gauge", "counter"), name
            assert (kinds[name] == "counter") == name.endswith("_total"), name
