# SPDX-License-Identifier: Apache-2.0
"""What the stack's `slim` settings become in a plan, and in the image's labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.cli import run
from imagebuild.errors import ManifestError
from imagebuild.plan import Plan
from imagebuild.resolve import resolve
from tests.checkouts import copy_images

IMAGES = Path(__file__).parents[2] / "images"
ARCHS = ["sm_90", "sm_103", "sm_120"]


@pytest.fixture
def images(tmp_path):
    return copy_images(tmp_path)


def edit_stack(images: Path, old: str, new: str) -> None:
    (path,) = images.glob("stacks/*/stack.yaml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def slims(plan: Plan):
    return {layer.name: t.args for layer in plan.layers for t in layer.transforms if t.kind == "slim"}


@pytest.mark.parametrize("arch", ARCHS)
def test_each_layer_is_told_what_concerns_it(arch):
    found = slims(resolve(IMAGES, arch))
    assert set(found) == {"torch", "kernels"}
    assert {args["gpu"] for args in found.values()} == {int(arch[3:])}
    assert set(found["torch"]["declared"]) == {"torchvision", "torchaudio", "nvidia-nccl-cu13"}
    assert set(found["kernels"]["declared"]) == {"torchao"}
    gone, kept = ("sm100", "sm90") if arch == "sm_90" else ("sm90", "sm100")
    assert f"sgl_kernel/{gone}/*" in found["kernels"]["ballast"]
    assert f"sgl_kernel/{kept}/*" not in found["kernels"]["ballast"]
    ptxas = [path.rpartition("/")[2] for path in found["torch"]["ballast"] if "/bin/ptxas" in path]
    assert ptxas == ["ptxas", "ptxas-blackwell" if arch == "sm_90" else "ptxas"]


@pytest.mark.parametrize("arch", ARCHS)
def test_no_slim_is_another_plan_of_untouched_files(arch):
    slim, plain = resolve(IMAGES, arch), resolve(IMAGES, arch, slim=False)
    assert slims(plain) == {}
    assert plain.digest != slim.digest and plain.tag != slim.tag
    assert plain.artifacts == slim.artifacts
    assert plain.labels["io.imagebuild.slim"] == "none"
    assert slim.labels["io.imagebuild.slim"] == f"loadable on {arch}"


def test_the_default_rule_lets_the_image_be_passed_on(images):
    label = "io.imagebuild.redistributable"
    assert label not in resolve(images, "sm_103").labels
    edit_stack(
        images, "  declared:\n",
        "    LicenseRef-NVIDIA-Proprietary: our contract with NVIDIA allows it\n  declared:\n",
    )  # fmt: skip
    widened = resolve(images, "sm_103")
    assert widened.labels[label] == "no"
    assert label not in resolve(images, "sm_103", slim=False).labels


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    - package: torchao\n", "    - package: torchoa\n", "torchoa is not in the lock"),
        ("    - package: xgrammar\n", "    - package: xgramar\n", "xgramar is not in the lock"),
        ("    - package: torchaudio\n", "    - package: torchvision\n", "torchvision is declared twice"),
        ("[torch/bin/ptxas, ", '["xgrammar/lib/*.a", ', "is there twice"),
        ("slim:\n  # SPDX", "slom:\n  # SPDX", "slim"),
    ],
)
def test_wrong_settings_are_refused(images, old, new, message):
    edit_stack(images, old, new)
    with pytest.raises(ManifestError, match=message):
        resolve(images, "sm_103")


def test_slim_without_settings_is_refused(images):
    (path,) = images.glob("stacks/*/stack.yaml")
    text = path.read_text()
    start, end = text.index("slim:\n  # SPDX"), text.index("files:\n  - source: launch")
    path.write_text(text[:start] + text[end:])
    with pytest.raises(ManifestError, match="a slim transform needs the stack's `slim` settings"):
        resolve(images, "sm_103")


def test_a_build_of_a_widened_rule_warns(images, monkeypatch, capsys):
    edit_stack(
        images, "  declared:\n",
        "    LicenseRef-NVIDIA-Proprietary: our contract with NVIDIA allows it\n  declared:\n",
    )  # fmt: skip
    monkeypatch.setattr("imagebuild.command_build.images_dir", lambda: images)
    assert run(["--arch", "sm_103", "--stop-after", "plan"]) == 0
    assert "licence does not allow passing it on" in capsys.readouterr().err


def test_the_command_line_offers_both(capsys):
    digests = []
    for options in ([], ["--no-slim"]):
        assert run(["--arch", "sm_103", "--stop-after", "plan", "-q", *options]) == 0
        assert run(["plan", "--arch", "sm_103", "-q", *options]) == 0
        digests.append(capsys.readouterr().out.split()[0])
    assert len(set(digests)) == 2
