# SPDX-License-Identifier: Apache-2.0
"""The patches do what they say: each probe passes on the installed tree, and patched modules run."""

import pytest

from imagebuild.arch import parse_arch
from imagebuild.ledger import read_patch
from tests.image.facts import IMAGES

pytestmark = pytest.mark.check("patches")
PROBES = "/mnt/images/patches"


def test_every_probe_passes_on_the_installed_tree(image, plan, host):
    for item in plan.ledger:
        assert read_patch(IMAGES, item["id"]).probe.is_file()
        done = host.run(f"PYTHONPATH={PROBES} python -B {PROBES}/{item['id']}/probe.py {image.site}")
        assert done.rc == 0, f"{item['id']}: {done.stdout}{done.stderr}"


def test_patched_modules_run(image, plan):
    if not any(item["id"] == "jit-arch-suffix" for item in plan.ledger):
        return  # what it asks the modules is that patch's
    arch = parse_arch(plan.arch)
    found = image.probe("patched", *map(str, arch.capability), env=image.stubs)
    assert found["jit_arch"] == arch.flashinfer
    assert "cutlass" in found["kernel"]
