# SPDX-License-Identifier: Apache-2.0
"""The ledger in a Plan: order, archs, labels, what an edit rebuilds; and the real one's rules."""

import re
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from imagebuild.catalog import arch_names
from imagebuild.digest import digest
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.patching import sha256
from imagebuild.ledger import patch_ids, read_patch
from imagebuild.manifest import Patches
from imagebuild.patch_tree import ordered_ids, stack_patches
from imagebuild.resolve import resolve
from tests.ledgers import BEFORE, IMAGES, PATH, STACK, add_patch, list_patches, two_patches

FIRST = BEFORE.replace("line 5\n", "line five\n")
SECOND = FIRST.replace("line 9\n", "line nine\n")


@pytest.fixture
def images(tmp_path):
    return two_patches(tmp_path, FIRST, SECOND)


def ledger(plan):
    return [
        item
        for layer in plan.layers
        for t in layer.transforms
        if t.kind == "patch"
        for item in t.args["ledger"]
    ]


def test_the_plan_has_hash_and_states_of_each_patch(images):
    plan = resolve(images, "sm_90")
    assert [item["id"] for item in ledger(plan)] == ["one", "two"]
    assert ledger(plan)[1]["sha256"] == sha256((images / "patches/two/change.patch").read_bytes())
    assert {f.source for f in plan.files} >= {"patches/one/change.patch", "patches/two/change.patch"}


def test_labels_name_the_patches(images):
    labels = resolve(images, "sm_90").config.labels
    assert labels["io.imagebuild.patches"] == "one two"
    assert labels["io.imagebuild.patches.digest"] == digest(ledger(resolve(images, "sm_90")))
    list_patches(images)
    assert "io.imagebuild.patches" not in resolve(images, "sm_90").config.labels


def test_patching_goes_before_byte_compiling():
    for arch in arch_names(IMAGES):
        for layer in resolve(IMAGES, arch).layers:
            kinds = [t.kind for t in layer.transforms]
            assert "patch" not in kinds or kinds.index("patch") < kinds.index("bytecompile")


def layers(plan):
    return {layer.name: digest(asdict(layer)) for layer in plan.layers}


def test_an_edited_patch_changes_one_layer(images):
    before = resolve(images, "sm_90")
    third = SECOND.replace("line 20\n", "line twenty\n")
    add_patch(images, "three", SECOND, third)
    list_patches(images, "one", "two", "three")
    after = resolve(images, "sm_90")
    changed = {name for name, value in layers(before).items() if layers(after)[name] != value}
    assert changed == {"sglang"}
    assert before.digest != after.digest


def test_words_about_a_patch_rebuild_nothing(images):
    before = resolve(images, "sm_90")
    path = images / "patches/one/patch.yaml"
    path.write_text(re.sub(r"why: .*", "why: other words about the same thing", path.read_text()))
    assert resolve(images, "sm_90").digest == before.digest


def test_wrong_order_is_refused(images):
    list_patches(images, "two", "one")
    with pytest.raises(IntegrityError, match=r"patch one: demo/code\.py: made for sha256"):
        resolve(images, "sm_90")


def test_an_unknown_patch_is_told_with_its_place(images):
    list_patches(images, "one", "twoo")
    with pytest.raises(ManifestError) as caught:
        resolve(images, "sm_90")
    assert "no patch twoo" in str(caught.value)
    assert 'did you mean "two"?' in str(caught.value)
    assert re.search(r"stack\.yaml:\d+:\d+: error", str(caught.value))


def test_a_patch_of_another_stack_is_refused(images):
    add_patch(images, "other", SECOND, SECOND + "more\n", stacks="[sglang-9]")
    list_patches(images, "other")
    with pytest.raises(ManifestError, match="other is made for sglang-9"):
        resolve(images, "sm_90")


def test_a_patch_of_another_layers_wheel_is_refused(images):
    add_patch(images, "other", BEFORE, FIRST, package="torch")
    list_patches(images, "other")
    with pytest.raises(ManifestError, match="changes torch, which is not in layer sglang"):
        resolve(images, "sm_90")


def test_a_patch_for_some_archs_only(images):
    folder = images / "patches/two/patch.yaml"
    folder.write_text(folder.read_text().replace("stacks:", "archs: [sm_103]\nstacks:"))
    assert [item["id"] for item in ledger(resolve(images, "sm_103"))] == ["one", "two"]
    assert [item["id"] for item in ledger(resolve(images, "sm_90"))] == ["one"]


def test_change_and_manifest_must_name_the_same_files(images):
    path = images / "patches/one/patch.yaml"
    path.write_text(path.read_text().replace(f"  {PATH}:", "  demo/other.py:"))
    with pytest.raises(IntegrityError, match=r"name different files: demo/code.py, demo/other.py"):
        resolve(images, "sm_90")


def test_a_patch_needs_its_probe(images):
    (images / "patches/one/probe.py").unlink()
    with pytest.raises(ManifestError, match="a patch needs its probe"):
        resolve(images, "sm_90")


def test_a_damaged_change_is_an_integrity_error(images):
    (images / "patches/one/change.patch").write_text("--- a/x\n")
    with pytest.raises(IntegrityError, match="patches new one"):
        resolve(images, "sm_90")


# The real ledger.


def test_every_entry_is_used_and_complete():
    assert sorted(patch.id for patch in stack_patches(IMAGES, STACK)) == patch_ids(IMAGES)
    for name in patch_ids(IMAGES):
        text = (IMAGES / "patches" / name / "patch.yaml").read_text()
        assert "TODO" not in text
        assert name in (IMAGES.parent / "docs/patches.md").read_text(), (
            f"docs/patches.md says nothing of {name}"
        )


def test_every_arch_has_the_same_patches():
    """So that what a test on one GPU shows holds for the files of all."""
    labels = {resolve(IMAGES, arch).config.labels["io.imagebuild.patches"] for arch in arch_names(IMAGES)}
    assert len(labels) == 1


def test_patches_are_small():
    for name in patch_ids(IMAGES):
        patch = read_patch(IMAGES, name)
        added = sum(line.startswith("+") for part in patch.parts for h in part.hunks for line in h.lines)
        assert added <= 60, name


def test_ordered_ids_goes_over_layers():
    layer = SimpleNamespace(transforms=(Patches(kind="patch", patches=("a", "b")),))
    stack: Any = SimpleNamespace(layers=(layer, layer))
    assert ordered_ids(stack) == ["a", "b", "a", "b"]
