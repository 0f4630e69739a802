# SPDX-License-Identifier: Apache-2.0
"""Dashboards, alert rules and the harness ask only for metrics that this SGLang has."""

import re

import pytest

from imagebuild.catalog import project_root

ROOT = project_root()
ASK = ("images/metrics/panels.yaml", "images/metrics/rules/sglang.yml", "scripts/lib/bench_driver.py")


@pytest.mark.check("metrics")
def test_every_metric_that_is_asked_for_is_registered(metrics):
    asked = {name for path in ASK for name in re.findall(r"sglang:\w+", (ROOT / path).read_text())}
    assert len(asked) >= 12
    for name in sorted(asked):
        if name.endswith("_bucket"):
            assert metrics.get(name.removesuffix("_bucket")) == "histogram", name
        else:
            assert metrics.get(name) in ("gauge", "counter"), name
            assert (metrics[name] == "counter") == name.endswith("_total"), name
