# SPDX-License-Identifier: Apache-2.0
"""`diff` names every difference of two Plans; `explain` says why a layer is made anew."""

from dataclasses import replace

import pytest

from imagebuild.catalog import project_root
from imagebuild.cli import run
from imagebuild.compare import Change, Layer, Side, compare, comparison_json, comparison_text
from imagebuild.explain import explain, explanation_json, explanation_text
from imagebuild.layer.spec import Transform
from imagebuild.oci_blob import Blob
from imagebuild.plan import to_text
from imagebuild.resolve import resolve

IMAGES = project_root() / "images"


@pytest.fixture(scope="module")
def plan():
    return resolve(IMAGES, "sm_103")


def changed_layer(plan, name, **more):
    layers = tuple(replace(layer, **more) if layer.name == name else layer for layer in plan.layers)
    return plan.model_copy(update={"layers": layers})


def layers_of(plan, *other):
    """Layers of 100 bytes; those that `other` names have another digest."""
    return tuple(
        Layer(f"sha256:{(name + 'x' if name in other else name).encode().hex():0<64}", 100)
        for name in (layer.name for layer in plan.layers)
    )


def test_the_same_image_has_no_differences(plan):
    found = compare(Side("a", plan, layers_of(plan)), Side("b", plan, layers_of(plan)))
    assert found.same
    assert found.pull == 0
    assert "nothing differs" in comparison_text(found)


def test_archs_and_their_settings_differ():
    found = compare(Side("a", resolve(IMAGES, "sm_103")), Side("b", resolve(IMAGES, "sm_120")))
    assert Change("arch", "sm_103", "sm_120") in found.archs
    assert Change("wheel flashinfer-cubin", "0.6.12", None) in found.packages
    assert "env CUTE_DSL_ARCH" in {change.name for change in found.settings}
    assert found.pull is None
    assert {change.name for change in found.layers} >= {"torch", "kernels"}


def test_a_package_a_patch_and_a_layer(plan):
    torch = next(layer for layer in plan.layers if layer.name == "torch")
    newer = tuple(replace(a, version="9") if a.name == "torch" else a for a in torch.artifacts)
    after = changed_layer(plan, "torch", artifacts=newer)
    sglang = next(layer for layer in plan.layers if layer.name == "sglang")
    kept = tuple(
        replace(t, args={**t.args, "ledger": t.args["ledger"][1:]}) if t.kind == "patch" else t
        for t in sglang.transforms
    )
    after = changed_layer(after, "sglang", transforms=kept)
    found = compare(Side("a", plan, layers_of(plan)), Side("b", after, layers_of(plan, "torch")))
    assert [str(change) for change in found.packages] == ["~ wheel torch 2.11.0 -> 9"]
    assert [change.name for change in found.patches] == [plan.ledger[0]["id"]]
    assert [change.name for change in found.layers] == ["torch"]
    assert (found.pull, comparison_json(found)["same"]) == (100, False)


def blob(name):
    return Blob(f"sha256:{name.encode().hex():0<64}", 100, "sha256:" + "0" * 64, 200, "x")


def test_what_is_cached_is_reused(plan):
    specs = {layer.name: layer for layer in plan.layers}
    found = explain(plan, {name: blob(name) for name in specs}, specs, {}, 0, 2)
    assert all(layer.reused for layer in found.layers)
    assert (found.pull, found.seconds) == (0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda spec: {"artifacts": spec.artifacts[1:]}, "package new: "),
        (lambda spec: {"artifacts": spec.artifacts[::-1]}, "another order"),
        (lambda spec: {"transforms": spec.transforms[1:]}, "transform new: "),
        (lambda spec: {"transforms": (*spec.transforms, Transform("symlinks"))}, "transform gone: symlinks"),
        (lambda spec: {}, "the code that makes layers"),
    ],
)
def test_why_a_layer_is_made_anew(plan, change, reason):
    specs = {layer.name: layer for layer in plan.layers}
    before = specs | {"torch": replace(specs["torch"], **change(specs["torch"]))}
    cached = {name: blob(name) for name in specs if name != "torch"}
    found = explain(plan, cached, before, {"torch": 7}, 0, 2)
    (torch,) = [layer for layer in found.layers if not layer.reused]
    assert torch.name == "torch"
    assert reason in torch.reasons[0]
    assert found.pull == torch.pull == 7
    assert found.seconds > 0
    assert torch.reasons[0] in explanation_text(found)
    assert explanation_json(found)["pull"] == 7


def test_a_changed_patch_is_named(plan):
    specs = {layer.name: layer for layer in plan.layers}
    patches = tuple(
        replace(t, args={**t.args, "ledger": [{**t.args["ledger"][0], "sha256": "0"}, *t.args["ledger"][1:]]})
        if t.kind == "patch"
        else t
        for t in specs["sglang"].transforms
    )
    before = specs | {"sglang": replace(specs["sglang"], transforms=patches)}
    found = explain(plan, {}, before, {}, 0, 2)
    (sglang,) = [layer for layer in found.layers if layer.name == "sglang"]
    assert sglang.reasons == (f"transform changed: patch {plan.ledger[0]['id']}",)


def test_a_layer_that_was_never_made(plan):
    found = explain(plan, {}, {}, {}, 5, 2)
    assert {layer.reasons for layer in found.layers} == {("no layer of this name was made here before",)}
    assert found.fetch == 5


def test_the_commands(plan, tmp_path, capsys):
    (tmp_path / "plan.json").write_text(to_text(plan))
    assert run(["diff", str(tmp_path / "plan.json"), "sm_103", "--cache-dir", str(tmp_path)]) == 0
    assert "nothing differs" in capsys.readouterr().out
    assert run(["explain", "--arch", "sm_103", "--cache-dir", str(tmp_path)]) == 0
    assert "was made here before" in capsys.readouterr().out
    (tmp_path / "plan.json").write_text("{}")
    assert run(["diff", str(tmp_path / "plan.json"), "sm_103"]) == 2
    assert "no plan that this version reads" in capsys.readouterr().err
