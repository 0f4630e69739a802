# SPDX-License-Identifier: Apache-2.0
"""The ledger on the real, pinned wheels (from the cache, or from the index)."""

import zipfile
from pathlib import Path

import pytest

from imagebuild.catalog import arch_names, project_root, stack_names
from imagebuild.cli import run
from imagebuild.errors import IntegrityError
from imagebuild.fetch import fetch
from imagebuild.patch_probe import check_stack
from imagebuild.patch_tree import stack_patches, stack_wheel
from imagebuild.patchcheck import check_layer, check_patches, patched_wheels
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings

ROOT = project_root().resolve()
IMAGES = ROOT / "images"
ALL = [(stack, patch.id) for stack in stack_names(IMAGES) for patch in stack_patches(IMAGES, stack)]


@pytest.fixture(scope="module")
def locate():
    """Return a function: artifact → the wheel on disk, fetched."""
    wheels = {a.sha256: a for arch in arch_names(IMAGES) for a in patched_wheels(resolve(IMAGES, arch))}
    store = fetch(wheels.values(), load_settings({}))
    return lambda artifact: store.path(artifact.sha256)


@pytest.fixture(scope="module")
def checked(locate):
    """Return (stack, patch id) → what its probe says without it, with it, and with all."""
    found = {}
    for stack in stack_names(IMAGES):
        patches = stack_patches(IMAGES, stack)
        packages = {patch.manifest.package for patch in patches if patch.manifest.package}
        wheels = [stack_wheel(IMAGES, stack, package) for package in sorted(packages)]
        found |= {(stack, item.patch): item for item in check_stack(patches, wheels, ROOT, locate)}
    return found


@pytest.mark.parametrize("key", ALL, ids=lambda key: key[1])
def test_the_fault_is_there_without_the_patch_and_gone_with_it(checked, key):
    assert checked[key].ok, str(checked[key])


def test_the_command_is_green(capsys):
    assert run(["patches", "check"]) == 0
    assert capsys.readouterr().out.count(": ok (") == len(ALL)


@pytest.mark.parametrize("arch", arch_names(IMAGES))
def test_patched_modules_compile_and_end_as_the_ledger_says(locate, arch):
    for layer in resolve(IMAGES, arch).layers:
        for step in check_layer(layer, IMAGES, locate):
            compile(step.after, step.path, "exec")
            assert step.before != step.after


def changed_wheel(path: Path, target: Path, name: str, old: bytes, new: bytes) -> Path:
    """Copy a wheel with one line of one file changed."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as out:
        for info in source.infolist():
            content = source.read(info)
            if info.filename == name:
                assert content.count(old) == 1
                content = content.replace(old, new)
            if info.filename.endswith((".py", "RECORD")):
                out.writestr(info, content)
    return target


def test_one_changed_context_line_upstream_stops_the_build(locate, tmp_path):
    plan = resolve(IMAGES, "sm_120")
    (wheel,) = patched_wheels(plan)
    name = "sglang/srt/model_executor/model_runner.py"
    old = b"        if forward_batch.input_embeds is not None:\n"
    path = changed_wheel(
        locate(wheel), tmp_path / "x.whl", name, old, old.replace(b"is not None", b"!= None")
    )
    check_patches(plan, IMAGES, locate)
    with pytest.raises(IntegrityError) as caught:
        check_patches(plan, IMAGES, lambda _: path)
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert f"patch input-embeds-dtype: {name} is not the file it was made for" in text
    assert "hunk 1, line 2957: expected '        if forward_batch.input_embeds is not None:'" in text
    assert "there is instead: '        if forward_batch.input_embeds != None:'" in text
