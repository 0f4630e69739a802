# SPDX-License-Identifier: Apache-2.0
"""Facts, policy, verdicts, and what a person reads of them."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from imagebuild.arch import Code, archs, parse_arch
from imagebuild.audit import judge
from imagebuild.audit_sources import path_facts, tar_facts
from imagebuild.audit_text import difference, from_json, table, to_json, violations
from imagebuild.diagnostics import Diagnostics
from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.gpucache import plan_facts
from imagebuild.layer.spec import Artifact
from imagebuild.plan_audit import require_policy
from imagebuild.policy import PolicyManifest, read_policy
from tests.gpufiles import fat, library

IMAGES = Path(__file__).parents[2] / "images"
SM103, SM120 = parse_arch("sm_103"), parse_arch("sm_120")


def policy(*rules, arch="sm_103"):
    return PolicyManifest.model_validate_json(json.dumps({"schema": 1, "arch": arch, "rules": rules}))


def wheel(folder: Path, files: dict[str, bytes], name="kernels") -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


GOOD = library(fat((Code("elf", 100), 64)), fat((Code("elf", 103, "a"), 64), (Code("elf", 90), 64)))
OLD = library(fat((Code("elf", 90, "a"), 640), (Code("elf", 80), 64)))


def audit_of(folder, files, *rules, gpu=SM103, whole=False):
    return judge(path_facts(wheel(folder, files), 1), gpu, policy(*rules, arch=gpu.name), whole=whole)


def test_levels_are_per_container(tmp_path):
    row = audit_of(tmp_path, {"k/a.so": GOOD}).rows[0]
    assert row.counts == {"compatible": 1, "native": 1}
    assert (row.level, row.problem) == ("compatible", "")
    assert row.codes == {"sm_100": 64, "sm_103a": 64, "sm_90": 64}
    assert row.loadable == 128


def test_a_wheel_without_the_arch_is_a_violation_that_says_what_would_fix_it(tmp_path):
    found = audit_of(tmp_path, {"k/old.so": OLD, "k/a.so": GOOD})
    assert [row.path for row in found.violations] == ["k/old.so"]
    with pytest.raises(CheckFailed) as caught:
        require_policy(found)
    text = str(caught.value)
    for part in (
        "kernels: k/old.so", "1 have no code on sm_103", "it has sm_80, sm_90a",
        "a build of kernels that has sm_100 or sm_100f or sm_103 or sm_103a or sm_103f",
        "images/sm_103/policy.yaml",
    ):  # fmt: skip
        assert part in text, text
    assert caught.value.exit_code == 1


def test_cut_out_code_counts_as_missing(tmp_path):
    blanked = library(fat((Code("elf", 90), 64)) + _blank(fat((Code("elf", 103), 64))))
    row = audit_of(tmp_path, {"k/a.so": blanked}).rows[0]
    assert row.counts == {"missing": 2}
    assert row.blank == 64
    assert "it has sm_90;" in row.problem or row.problem.endswith("it has sm_90")


def _blank(container: bytes) -> bytes:
    return container[:80] + bytes(len(container) - 80)


def test_rules(tmp_path):
    why = "because a test says so"
    files = {"k/a.so": GOOD, "k/old.so": OLD}
    may_miss = {"wheel": "kernels", "files": "*/old.so", "every": "missing", "reason": why}
    assert audit_of(tmp_path, files, may_miss).ok
    native = {"wheel": "*", "every": "native", "reason": why}
    assert [r.path for r in audit_of(tmp_path, files, may_miss, native).violations] == ["k/a.so"]
    some = {"wheel": "*", "files": "k/a.so", "some": "native", "reason": why}
    assert audit_of(tmp_path, files, may_miss, some).ok
    stale = {"wheel": "gone", "every": "native", "reason": why}
    assert audit_of(tmp_path, files, may_miss, stale).ok
    whole = audit_of(tmp_path, files, may_miss, stale, whole=True)
    assert whole.stale == ("gone *",)
    assert "no file matches the rule for gone *" in violations(whole)


def test_jit_is_not_compatible(tmp_path):
    row = audit_of(tmp_path, {"k/a.so": library(fat((Code("ptx", 90), 64)))}).rows[0]
    assert row.level == "ptx"
    assert "1 run only by JIT" in row.problem


def test_a_damaged_library_is_a_violation(tmp_path):
    bad = GOOD.replace(b"\x50\xed\x55\xba\x01", b"\x50\xed\x55\xba\x02")
    row = audit_of(tmp_path, {"k/a.so": bad}).rows[0]
    assert row.problem.startswith("cannot be read: no GPU-code container at")


def test_loose_cubins_count_as_one_library(tmp_path):
    data = IMAGES.parent / "tests" / "data" / "gpucode"
    files = {f"k/{arch}/{n}.cubin": (data / f"one.{arch}.cubin").read_bytes()
             for arch in ("sm_100a", "sm_100f", "sm_103a") for n in range(3)}  # fmt: skip
    row = audit_of(tmp_path, files).rows[0]
    assert (row.path, row.files) == ("k/**/*.cubin", 9)
    assert row.counts == {"compatible": 3, "missing": 3, "native": 3}


def test_folders_wheels_and_images_give_the_same_rows(tmp_path):
    record = "k/a.so,,\nk/old.so,,\nkernels-1.0.dist-info/RECORD,,\n"
    files = {"k/a.so": GOOD, "k/old.so": OLD, "kernels-1.0.dist-info/RECORD": record.encode()}
    site = tmp_path / "site-packages"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
            info = tarfile.TarInfo(f"opt/venv/lib/python3.11/site-packages/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    folder, image = path_facts(site, 1), tar_facts(stream, tmp_path)
    assert folder == image == path_facts(wheel(tmp_path, files), 1)
    assert list(folder) == ["kernels"]
    with pytest.raises(ManifestError, match="no such wheel, file or folder"):
        path_facts(tmp_path / "nothing", 1)


def test_facts_are_read_once(tmp_path):
    path = wheel(tmp_path, {"k/a.so": GOOD})
    artifact = Artifact("wheel", "kernels", "1.0", path.name, "0" * 64, path.stat().st_size)
    lines = []
    first = plan_facts([artifact], lambda _: path, tmp_path / "cache", lines.append, 1)
    path.unlink()
    again = plan_facts([artifact], lambda _: path, tmp_path / "cache", lines.append, 1)
    assert again == first
    assert [f.path for f in first["kernels"]] == ["k/a.so"]
    assert len(lines) == 1


def test_report_forms(tmp_path):
    found = audit_of(tmp_path, {"k/a.so": GOOD, "k/old.so": OLD})
    assert from_json(json.dumps(to_json(found))) == found
    text = table(found)
    assert "VIOLATION" in text and "k/old.so" in text and "2 files" in text
    better = audit_of(tmp_path, {"k/a.so": GOOD, "k/old.so": GOOD, "k/new.so": GOOD})
    assert difference(found, found) == "no difference"
    lines = difference(found, better).splitlines()
    assert lines[0] == "+ kernels k/new.so: compatible"
    assert "level missing -> compatible" in lines[1] and "lost sm_80 sm_90a" in lines[1]


@pytest.mark.parametrize("arch", ["sm_90", "sm_103", "sm_120"])
def test_each_image_has_a_policy(arch):
    found, _ = read_policy(IMAGES, parse_arch(arch))
    assert found.arch == arch
    assert {rule.wheel for rule in found.rules} >= {"sglang-kernel", "nvidia-cublas"}


def test_a_policy_in_the_wrong_folder_is_refused(tmp_path):
    (tmp_path / "sm_120").mkdir()
    (tmp_path / "sm_120" / "policy.yaml").write_text("schema: 1\narch: sm_103\n")
    with pytest.raises(ManifestError, match="differs from its folder"):
        read_policy(tmp_path, SM120)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{wheel: a, reason: no level given here}]", "give one of every and some"),
        ("rules: [{wheel: a, every: native, some: native, reason: two levels are one too many}]", "one of"),
        ("rules: [{wheel: a, every: good, reason: no such level}]", "native"),
        ("rules: [{wheel: a, every: native, reason: short}]", "three words"),
    ],
)
def test_wrong_rules_are_refused(tmp_path, text, message):
    (tmp_path / "sm_120").mkdir()
    (tmp_path / "sm_120" / "policy.yaml").write_text(f"schema: 1\narch: sm_120\n{text}\n")
    with pytest.raises(Diagnostics, match=message):
        read_policy(tmp_path, SM120)


def test_every_arch_can_be_judged(tmp_path):
    facts = path_facts(wheel(tmp_path, {"k/a.so": GOOD}), 1)
    levels = {
        gpu.name: judge(facts, gpu, policy(arch=gpu.name), whole=False).rows[0].level for gpu in archs()
    }
    assert levels["sm_103"] == "compatible"
    assert levels["sm_90"] == levels["sm_120"] == "missing"
