# SPDX-License-Identifier: Apache-2.0
"""Plugins: a source folder becomes the same wheel everywhere and lands in the layer that lists it."""

import shutil
import zipfile
from pathlib import Path

import pytest

from imagebuild.cache import Store
from imagebuild.errors import IntegrityError, ManifestError
from imagebuild.layer.wheel import Scheme, wheel_entries
from imagebuild.overlaps import find_overlaps
from imagebuild.plugin import build_plugin, is_local, place_plugins
from imagebuild.resolve import resolve
from tests.ledgers import BEFORE, add_patch, list_patches, make_images

PYPROJECT = """\
[project]
name = "Demo-Plugin"
version = "1.0"
description = "a plugin for a test"
license = "Apache-2.0"
requires-python = ">=3.10"
dependencies = ["torch>=2"]

[project.entry-points."sglang.srt.plugins"]
demo = "demo_plugin:register"
"""
YAML = """\
schema: 1
id: demo
title: A plugin for a test
why: shows that plugins work
stacks: [sglang-0.5.15.post1]
plugin: demo
upstream: {reference: none, state: ours}
drop_when: the test is removed
"""
SITE = "opt/venv/lib/python3.11/site-packages"


def make_plugin(root: Path) -> Path:
    folder = root / "plugins" / "demo"
    package = folder / "src" / "demo_plugin"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("def register():\n    return 'registered'\n")
    (package / "tree.py").write_text("WIDTH = 4\n")
    return folder


@pytest.fixture
def plugin(tmp_path):
    return make_plugin(tmp_path)


@pytest.fixture
def images(tmp_path, plugin):
    found = make_images(tmp_path)
    folder = found / "patches" / "demo"
    folder.mkdir()
    (folder / "patch.yaml").write_text(YAML)
    (folder / "probe.py").write_text("import sys\nsys.exit(1)\n")
    list_patches(found, "demo")
    return found


def test_the_same_bytes_whatever_the_times_and_modes(tmp_path, plugin):
    other = tmp_path / "elsewhere" / "demo"
    shutil.copytree(plugin, other)
    for path in other.rglob("*.py"):
        path.chmod(0o600)
    (other / "src/demo_plugin/__pycache__").mkdir()
    (other / "src/demo_plugin/__pycache__/tree.cpython-311.pyc").write_bytes(b"x")
    assert build_plugin(other) == build_plugin(plugin)


def test_these_are_the_bytes(plugin):
    """A change of this hash changes every image with a plugin: it must be meant."""
    wanted = "ef3d0e8f69e1338fb7586ca030ceff0f739259165083a805efdea62531b16955"
    assert build_plugin(plugin).artifact.sha256 == wanted


def test_it_is_a_wheel_that_installs(tmp_path, plugin):
    built = build_plugin(plugin)
    path = tmp_path / built.artifact.file
    path.write_bytes(built.content)
    assert built.artifact.file == "demo_plugin-1.0-py3-none-any.whl"
    entries = {e.path: e for e in wheel_entries(path, Scheme("opt/venv", "3.11"))}
    assert entries[f"{SITE}/demo_plugin/tree.py"].read() == b"WIDTH = 4\n"
    info = f"{SITE}/demo_plugin-1.0.dist-info"
    points = entries[f"{info}/entry_points.txt"].read().decode()
    assert points == "[sglang.srt.plugins]\ndemo = demo_plugin:register\n"
    metadata = entries[f"{info}/METADATA"].read().decode()
    assert "Name: Demo-Plugin\n" in metadata
    assert "Requires-Dist: torch>=2\n" in metadata
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert find_overlaps([built.artifact], lambda _: path) == {}


@pytest.mark.subprocess
def test_pip_takes_it_too(tmp_path, plugin):
    import importlib.metadata
    import subprocess
    import sys

    built = build_plugin(plugin)
    path = tmp_path / built.artifact.file
    path.write_bytes(built.content)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "t"),
    ]
    subprocess.run([*argv, str(path)], check=True, capture_output=True)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "t")])
    (point,) = found.entry_points
    assert (point.group, point.name, point.value) == ("sglang.srt.plugins", "demo", "demo_plugin:register")


def test_it_lands_in_the_layer_that_lists_it(images):
    plan = resolve(images, "sm_120")
    (layer,) = [layer for layer in plan.layers if any(is_local(a) for a in layer.artifacts)]
    assert layer.name == "sglang"
    (wheel,) = [a for a in layer.artifacts if is_local(a)]
    assert (wheel.name, wheel.version, wheel.path) == ("demo-plugin", "1.0", "plugins/demo")
    (item,) = next(t for t in layer.transforms if t.kind == "patch").args["ledger"]
    assert (item["plugin"], item["sha256"]) == ("plugins/demo", wheel.sha256)
    assert plan.config.labels["io.imagebuild.patches"] == "demo"


def test_a_name_that_is_taken(images, plugin):
    path = plugin / "pyproject.toml"
    path.write_text(path.read_text().replace("Demo-Plugin", "torch"))
    with pytest.raises(ManifestError, match="another wheel of the image is called torch"):
        resolve(images, "sm_120")


def test_its_source_decides_the_plan(images, plugin):
    before = resolve(images, "sm_120").digest
    (plugin / "src/demo_plugin/tree.py").write_text("WIDTH = 8\n")
    assert resolve(images, "sm_120").digest != before


def test_it_can_stand_among_patches(images):
    add_patch(images, "one", BEFORE, BEFORE + "more\n")
    list_patches(images, "demo", "one")
    assert resolve(images, "sm_120").config.labels["io.imagebuild.patches"] == "demo one"


def test_it_is_built_into_the_cache_and_not_fetched(tmp_path, images):
    plan = resolve(images, "sm_120")
    store = Store(tmp_path / "cache")
    place_plugins(plan.artifacts, tmp_path, store)
    (wheel,) = [a for a in plan.artifacts if is_local(a)]
    assert store.has(wheel)
    store.verify([wheel])
    place_plugins(plan.artifacts, tmp_path, store)


def test_a_source_that_changed_since_the_plan(tmp_path, images, plugin):
    plan = resolve(images, "sm_120")
    (plugin / "src/demo_plugin/tree.py").write_text("WIDTH = 8\n")
    with pytest.raises(IntegrityError, match="changed since the plan was made"):
        place_plugins(plan.artifacts, tmp_path, Store(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('version = "1.0"\n', "", "needs name and version"),
        ('version = "1.0"', 'version = "one"', "Invalid version"),
        ("dependencies = [", "dependencies = ['=', ", "project"),
        ("[project]\n", "[project]\nreadme = 'x'\n", "found readme"),
        ("[project]\n", "[project\n", "cannot read"),
    ],
)
def test_a_wrong_pyproject(plugin, old, new, message):
    path = plugin / "pyproject.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ManifestError, match=message):
        build_plugin(plugin)


def test_a_folder_without_modules_or_with_a_link(plugin):
    (plugin / "src/demo_plugin/link.py").symlink_to("tree.py")
    with pytest.raises(ManifestError, match="is a link"):
        build_plugin(plugin)
    shutil.rmtree(plugin / "src")
    with pytest.raises(ManifestError, match="holds no module"):
        build_plugin(plugin)
