# SPDX-License-Identifier: Apache-2.0
"""Recipes: what they render to, and that what SGLang forbids is refused with its place and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuild.catalog import arch_names, project_root
from imagebuild.cli import run
from imagebuild.diagnostics import Diagnostics
from imagebuild.errors import IntegrityError
from imagebuild.serving.compose import render_all, write_all
from imagebuild.serving.service import read_all, read_model_recipes, resolve_service, services_of

ROOT = project_root().resolve()
IMAGES, COMPOSE = ROOT / "images", ROOT / "compose"
SERVICES = ["k26-tp8", "k26-ep8", "k26-ep4", "k26-pp8", "k26-tp8-plain"]
FILES = render_all(COMPOSE, IMAGES, read_all(COMPOSE, IMAGES))


class _Loader(yaml.SafeLoader):
    """Takes Compose's !reset."""


_Loader.add_constructor("!reset", lambda loader, node: "reset")


def services(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)["services"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_committed_compose_file_is_current(path):
    assert path.read_text(encoding="utf-8") == FILES[path], "python build.py compose render"


@pytest.mark.parametrize("arch", arch_names(IMAGES))
def test_every_arch_has_the_services_and_what_they_wait_for(arch):
    found = services(COMPOSE / f"{arch}.yaml")
    assert set(SERVICES) <= found.keys()
    for name in SERVICES:
        waits = ["models", "drafter"] if "--speculative-algorithm" in found[name]["command"] else ["models"]
        assert list(found[name]["depends_on"]) == waits
        assert not {"privileged", "network_mode", "pid"} & found[name].keys()
        assert found[name]["read_only"] is True
        assert found[name]["ports"][0].startswith("${IMAGEBUILD_BIND:-127.0.0.1}:")
        for volume in found[name]["volumes"]:
            assert volume == "cache:/cache" or volume["read_only"] is True
    assert {name for name in found if name not in ("models", "drafter")} == set(
        services(COMPOSE / "gpu-nvidia.yaml")
    )


def test_every_server_gets_gpus_by_either_way_or_none():
    nvidia, cdi, none = (
        services(COMPOSE / name) for name in ("gpu-nvidia.yaml", "gpu-cdi.yaml", "no-gpu.yaml")
    )
    assert nvidia.keys() == cdi.keys() == none.keys()
    for name in SERVICES:
        (device,) = nvidia[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 8, "capabilities": ["gpu"]}
        assert none[name]["deploy"] == "reset"


def test_plain_services_have_no_speculation():
    for arch in arch_names(IMAGES):
        found = services(COMPOSE / f"{arch}.yaml")
        assert "speculative" not in found["k26-tp8-plain"]["command"]
        assert "speculative" not in found["k26-pp8"]["command"]


def test_a_host_without_nvlink_is_told_the_measured_reason():
    found = services(COMPOSE / "sm_103.yaml")
    text = found["k26-tp8"]["environment"]["IMAGEBUILD_WITHOUT_NVLINK"]
    assert text.startswith("k26-ep8 instead")
    assert "26 against 65 tokens/s at concurrency 1" in text
    for name in ("k26-ep8", "k26-tp8-plain", "k26-pp8"):  # nothing better that offers the same
        assert "IMAGEBUILD_WITHOUT_NVLINK" not in found[name]["environment"]


def test_check_names_the_file_that_differs(tmp_path):
    path = tmp_path / "sm_1.yaml"
    with pytest.raises(IntegrityError, match=r"sm_1\.yaml.*\n.*compose render"):
        write_all({path: "a: 1\n"}, check=True)
    assert write_all({path: "a: 1\n"}, check=False) == [path]
    assert write_all({path: "a: 1\n"}, check=True) == []


# --- refusals ---------------------------------------------------------------------------------

TP8 = "  - name: k26-tp8\n    title: tensor parallel over 8 GPUs, DFlash\n    parallel: {tp: 8}\n"


def changed(tmp_path: Path, old: str, new: str):
    text = (COMPOSE / "recipes" / "k26.yaml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "recipes").mkdir(parents=True)
    (tmp_path / "recipes" / "k26.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return read_model_recipes(tmp_path, IMAGES, "k26")


@pytest.mark.parametrize(
    ("old", "new", "arch", "reasons"),
    [
        (TP8, TP8.replace("{tp: 8}", "{tp: 4, pp: 2}"), "sm_103", ["one pipeline stage only"]),
        (TP8, TP8.replace("{tp: 8}", "{tp: 8, dp_attention: 8}"), "sm_103", ["data-parallel attention"]),
        (TP8, TP8.replace("{tp: 8}", "{tp: 7}"), "sm_103", ["--tp 7 does not divide the 64"]),
        (TP8, TP8.replace("{tp: 8}", "{tp: 8, ep: 3}"), "sm_103", ["--ep 3 does not divide --tp 8"]),
        (TP8, TP8.replace("{tp: 8}", "{tp: 4}"), "sm_120", ["the weights do not fit", "--tp 8"]),
        ("context: 65536", "context: 262144", "sm_120", ["the context does not fit", "would fit: --context"]),
        (TP8, TP8 + "    draft_attention: trtllm_mla\n    reason: a b c\n", "sm_103", ["drafter cannot run"]),
        ("attention: triton", "attention: trtllm_mla", "sm_120", ["compute capability 10.0, 10.3"]),
        ("attention: triton", "attention: fa3", "sm_120", ["Ampere and Hopper"]),
        ("moe: marlin", "moe: flashinfer_trtllm", "sm_120", ["MoE kernels are for 10.x"]),
        ("moe: marlin", "moe: marlin\n    all_reduce_fusion: mnnvl", "sm_120", ["is for 9.0 and 10.x"]),
        ("draft_attention: flashinfer", "draft_attention: fa4", "sm_103", ["fails on 10.3"]),
        ("    drafter: long\n", "    drafter: none\n", "sm_103", ["needs a drafter"]),
        ("parallel: {pp: 8}", "parallel: {pp: 8}\n    drafter: long", "sm_103", ["would never be used"]),
    ],
)  # fmt: skip
def test_what_sglang_forbids_is_refused_with_the_reason(tmp_path, old, new, arch, reasons):
    with pytest.raises(Diagnostics) as caught:
        services_of(changed(tmp_path, old, new), arch)
    text = str(caught.value)
    for reason in reasons:
        assert reason in text
    assert all(d.line > 0 and d.column > 0 for d in caught.value.diagnostics)


def test_a_tree_on_a_backend_that_drops_its_mask_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "imagebuild.serving.service.stack_plugins", lambda images, arch: frozenset({"ddtree"})
    )
    old = "    attention: triton\n    draft_attention: triton\n    reason: only Triton"
    for backend in ("flashinfer", "trtllm_mla"):
        recipes = changed(tmp_path / backend, old, old.replace("triton", backend, 1))
        with pytest.raises(Diagnostics, match="drops a tree's mask on MLA"):
            resolve_service(recipes, "k26-tp8-ddtree", "sm_103")
    found = resolve_service(read_model_recipes(COMPOSE, IMAGES, "k26"), "k26-tp8-ddtree", "sm_103")
    assert "--speculative-algorithm DDTREE" in " ".join(found.flags)
    assert "--speculative-num-draft-tokens 17" in " ".join(found.flags)


def test_a_tree_needs_the_plugin_in_the_stack(monkeypatch):
    monkeypatch.setattr("imagebuild.serving.service.stack_plugins", lambda images, arch: frozenset())
    recipes = read_model_recipes(COMPOSE, IMAGES, "k26")
    assert "k26-tp8-ddtree" not in [s.service for s in services_of(recipes, "sm_103")]
    with pytest.raises(Diagnostics, match="would not know the algorithm DDTREE"):
        resolve_service(recipes, "k26-tp8-ddtree", "sm_103")


def test_the_commands(capsys):
    assert run(["compose", "render", "--check"]) == 0
    assert run(["compose", "list", "--arch", "120", "--service", "k26-ep8"]) == 0
    assert "--ep-size 8" in capsys.readouterr().out
    assert run(["compose", "list", "--arch", "120", "--service", "k26-tp9"]) == 2
    assert 'k26 has no service "k26-tp9"' in capsys.readouterr().err
