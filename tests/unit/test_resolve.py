# SPDX-License-Identifier: Apache-2.0
"""resolve over the real images/ folder, whole and with one thing changed."""

import json
import shutil

import pytest

from imagebuild.catalog import arch_names, project_root, read_recipe
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.plan import from_json, to_text
from imagebuild.resolve import resolve
from tests.checkouts import copy_images

IMAGES = project_root().resolve() / "images"
STACK = "stacks/sglang-0.5.15.post1/stack.yaml"


@pytest.fixture
def images(tmp_path):
    return copy_images(tmp_path)


def edit(images, name, old, new):
    path = images / name
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("spelling", ["sm_103", "sm103", "103", "10.3", "10.3a"])
def test_every_spelling_gives_the_same_plan(spelling):
    assert resolve(IMAGES, spelling).digest == resolve(IMAGES, "sm_103").digest


@pytest.mark.parametrize("arch", arch_names(IMAGES))
def test_json_round_trip_keeps_the_digest(arch):
    plan = resolve(IMAGES, arch)
    assert from_json(to_text(plan)).digest == plan.digest
    assert to_text(from_json(to_text(plan))) == to_text(plan)


def test_the_plan_does_not_depend_on_place_time_or_environment(images, monkeypatch):
    before = resolve(IMAGES, "sm_103")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@example.org:1")
    monkeypatch.chdir(images)
    after = resolve(images, "sm_103")
    assert to_text(after) == to_text(before)
    assert "secret" not in to_text(after)
    assert str(images) not in to_text(after)


def test_layers_go_slow_to_fast_and_hold_each_package_once():
    plan = resolve(IMAGES, "sm_103")
    names = [layer.name for layer in plan.layers]
    assert names == ["base", "toolchain", "torch", "kernels", "python", "sglang", "launch"]
    packages = [a.name for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"]
    lock = read_recipe(IMAGES, "sm_103").python_lock.read()
    assert sorted(packages) == sorted([*(a.name for a in lock.artifacts), "sglang-ddtree"])
    assert [a.name for a in plan.layers[-2].artifacts] == ["sglang", "sglang-ddtree"]


def test_the_toolchain_is_of_one_release():
    versions = {a.name: a.version for a in resolve(IMAGES, "sm_103").layers[1].artifacts}
    assert {v.rsplit(".", 1)[0] for v in versions.values()} == {"13.0"}


def test_excluded_packages_are_left_out():
    names = {a.name for layer in resolve(IMAGES, "sm_120").layers for a in layer.artifacts}
    assert "flashinfer-cubin" not in names
    assert "flashinfer-python" in names


def test_environment_is_filled_for_the_arch():
    env = resolve(IMAGES, "sm_120").config.env
    assert env["TORCH_CUDA_ARCH_LIST"] == "12.0a"
    assert env["FLASHINFER_CUDA_ARCH_LIST"].startswith("12.0")
    assert env["CUDA_HOME"].endswith("/site-packages/nvidia/cu13")
    assert not any("{" in value for value in env.values())


def test_declared_order_is_kept(images):
    plan = resolve(IMAGES, "sm_103")
    position = {a.name: i for i, a in enumerate(a for layer in plan.layers for a in layer.artifacts)}
    assert plan.overlaps
    assert all(position[before] < position[after] for before, after in plan.overlaps)


def test_order_can_turn_the_alphabet_round(images):
    edit(
        images,
        STACK,
        "\norder:\n",
        "\norder:\n  - {before: tilelang, after: apache-tvm-ffi, reason: only a test here}\n",
    )
    kernels = [a.name for a in resolve(images, "sm_103").layers[3].artifacts]
    assert kernels.index("tilelang") < kernels.index("apache-tvm-ffi")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("sm_103/image.yaml", "stack: sglang-0.5.15.post1", "stack: sglang-0.5.15", "no such stack"),
        ("sm_103/image.yaml", "arch: sm_103", "arch: sm_120", "differs from its folder"),
        (STACK, "base: bookworm", "base: bookwurm", 'did you mean "bookworm"'),
        (STACK, "main: sglang", "main: vllm", "vllm"),
        (STACK, "name: sglang-0.5.15.post1", "name: other", "differs from its folder"),
        (STACK, "      - torchao\n", "      - torchaoo\n", "no locked package matches torchaoo"),
        (STACK, "source: launch/entrypoint", "source: launch/nothing", "cannot read"),
        (STACK, 'CUDA_HOME: "{cuda_home}"', 'CUDA_HOME: "{cuda_hom}"', "cannot fill"),
        ("sm_120/image.yaml", "flashinfer-cubin:", "flashinfer-cubins:", "not in the lock"),
        ("sm_120/image.yaml", "flashinfer-cubin:", "sglang:", "the package this image exists for"),
    ],
)
def test_wrong_manifests_are_refused_with_their_place(images, file, old, new, message):
    edit(images, file, old, new)
    with pytest.raises(ManifestError, match=message) as caught:
        resolve(images, file[:6] if file.startswith("sm_") else "sm_103")
    assert caught.value.exit_code == 2
    assert f"{file}:" in str(caught.value)


def test_an_order_in_a_circle_is_refused(images):
    item = "  - {{before: {}, after: {}, reason: only a test here}}\n"
    circle = item.format("tilelang", "torchao") + item.format("torchao", "tilelang")
    edit(images, STACK, "\norder:\n", "\norder:\n" + circle)
    with pytest.raises(ManifestError, match="circle"):
        resolve(images, "sm_103")


def test_an_arch_without_an_image_says_which_there_are(images):
    with pytest.raises(ManifestError, match="images/ has sm_90, sm_103, sm_120"):
        resolve(images, "sm_100")


def test_a_changed_pin_makes_the_lock_stale(images):
    edit(images, STACK, "torch==2.11.0", "torch==2.11.1")
    with pytest.raises(IntegrityError, match="stale") as caught:
        resolve(images, "sm_103")
    assert caught.value.exit_code == 4
    assert "build.py lock" in str(caught.value)


def test_a_lock_that_lies_about_a_pin_is_refused(images):
    path = images / "stacks/sglang-0.5.15.post1/python.lock"
    raw = json.loads(path.read_text())
    for artifact in raw["artifacts"]:
        if artifact["name"] == "torch":
            artifact["version"] = "2.12.0"
    path.write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match=r"the lock has torch 2\.12\.0"):
        resolve(images, "sm_103")


def test_a_new_arch_is_a_data_change(images):
    shutil.copytree(images / "sm_103", images / "sm_100")
    edit(images, "sm_100/image.yaml", "arch: sm_103", "arch: sm_100")
    plan = resolve(images, "sm_100")
    assert plan.config.env["TORCH_CUDA_ARCH_LIST"] == "10.0a"
    assert "-sm100-" in plan.tag


def test_a_launch_file_changes_the_last_layer_only(images):
    before = resolve(images, "sm_103")
    with open(images / "launch/entrypoint", "a") as file:
        file.write("# changed\n")
    after = resolve(images, "sm_103")
    assert after.layers[:-1] == before.layers[:-1]
    assert after.layers[-1] != before.layers[-1]
    assert after.tag != before.tag


def test_the_tag_holds_versions_arch_day_and_digest():
    plan = resolve(IMAGES, "sm_103")
    stem, _, head = plan.tag.rpartition("-")
    assert stem.startswith("0.5.15.post1-cu130-sm103-2026")
    assert plan.digest.startswith(head)
