# SPDX-License-Identifier: Apache-2.0
"""Where did this folder come from? Prepared folders, each with the right answer, "unknown" among them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.models.clues import collect
from imagebuild.models.config import target_shape
from imagebuild.models.hub import HubFile, Snapshot
from imagebuild.models.identify import Identity, describe, identify
from imagebuild.models.known import Known, from_hub, known_repos
from imagebuild.models.lockfile import ModelLock, locked_facts
from imagebuild.models.naming import count, says
from imagebuild.models.pin import git_blob
from imagebuild.models.source import read_source
from imagebuild.models.suspects import suspects
from tests.modelfiles import (
    DRAFTER_CONFIG,
    TARGET_CONFIG,
    header,
    images_with_tiny,
    index,
    locked,
    noise,
    safetensors,
    shards,
    small_drafter,
    small_target,
    target_tensors,
    write,
)

C = "c" * 40
TENSORS = target_tensors(target_shape(TARGET_CONFIG))
SHARD = "model-00002-of-000003.safetensors"
TITLED = b"---\nlicense: mit\n---\n# Tiny\n\nTiny is small.\n"


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Identity]:
    """Return a function that writes a folder's files and identifies it, with or without a lock."""
    source = read_source(images_with_tiny(tmp_path / "project"), "tiny")

    def run(
        files: dict[str, bytes] | Path,
        *,
        lock: bool = True,
        full: bool = True,
        more: list[Known] | None = None,
    ) -> Identity:
        folder = files if isinstance(files, Path) else write(tmp_path / "models" / "whatever", files)
        target = locked(small_target()).model_copy(
            update={
                **locked_facts(TARGET_CONFIG),
                "tensors": len(TENSORS),
                "tensor_bytes": header(TENSORS)[1],
            }
        )
        drafter = locked(small_drafter(), "acme/Tiny-DFlash", "long", "d" * 40)
        drafter = drafter.model_copy(update=locked_facts(DRAFTER_CONFIG))
        locks = (
            [ModelLock(schema=1, name="tiny", created="", inputs="", repos=(target, drafter))] if lock else []
        )
        found = identify(collect(folder, full=full), [*(more or []), *known_repos([source], locks)])
        assert describe(found)
        return found

    return run


def answer(found: Identity) -> tuple[str, str, str]:
    return found.repo, found.commit, found.confidence


def test_01_an_exact_copy_under_another_name(ask: Any) -> None:
    found = ask(small_target())
    assert answer(found) == ("acme/Tiny", C, "certain")
    assert found.quantisation == "compressed-tensors INT4 g32 (experts)"
    assert found.stored == "packed integers (compressed-tensors)"


def test_02_files_that_were_renamed(ask: Any) -> None:
    files = {name.replace("model-0", "weights-0"): data for name, data in small_target().items()}
    assert answer(ask(files))[:2] == ("acme/Tiny", C)


def test_03_a_part_of_a_download(ask: Any) -> None:
    files = small_target()
    del files[SHARD]
    found = ask(files)
    assert answer(found) == ("acme/Tiny", C, "strong") and found.missing == (SHARD,)
    assert any("a part of it: 2 of 3" in line for line in found.evidence)


def test_04_requantised_weights(ask: Any) -> None:
    config = json.loads(json.dumps(TARGET_CONFIG))
    config["text_config"]["quantization_config"] = {"quant_method": "fp8"}
    tensors = {f"model.layers.{i}.w": ("F8_E4M3", (64, 64)) for i in range(9)}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors(tensors)}
    found = ask({**files, "README.md": TITLED})
    assert answer(found) == ("", "", "unknown") and found.derived_from == "acme/Tiny"
    assert found.quantisation == "fp8 FP8 (linear)" and found.stored == "FP8"


def test_05_weights_stored_anew_beside_the_old_config(ask: Any) -> None:
    files = small_target()
    plain = {f"model.layers.{i}.w": ("BF16", (64, 64)) for i in range(9)}
    kept = {name: data for name, data in files.items() if not name.startswith("model")}
    for lock in (True, False):
        found = ask({**kept, "model.safetensors": safetensors(plain)}, lock=lock)
        assert answer(found) == ("", "", "unknown") and found.derived_from == "acme/Tiny"


def test_06_two_models_in_one_folder(ask: Any) -> None:
    found = ask({**small_target(), **small_drafter()})
    assert answer(found) == ("", "", "unknown")
    assert set(found.candidates) == {"acme/Tiny", "acme/Tiny-DFlash"}
    assert "2 repos in one folder" in found.evidence[0]


def test_07_a_foreign_model(ask: Any) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
        "max_position_embeddings": 128,
    }  # fmt: skip
    files = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": safetensors({"w": ("BF16", (8,))}),
    }
    found = ask({**files, "README.md": TITLED})
    assert answer(found) == ("", "", "unknown") and found.quantisation == "none" and not found.derived_from


def test_08_no_lock_and_a_readme_without_a_name(ask: Any) -> None:
    """The case that started it: a folder of the right shape whose README says compressed-tensors only."""
    found = ask(small_target(), lock=False)
    assert answer(found) == ("", "", "unknown")
    assert found.candidates == ("acme/Tiny", "acme/Tiny-Old"), "its lookalike has the same shape"
    assert any("tags: compressed-tensors" in line for line in found.evidence)
    assert found.quantisation == "compressed-tensors INT4 g32 (experts)"


def test_09_no_lock_but_a_readme_that_names_it(ask: Any, tmp_path: Path) -> None:
    found = ask({**small_target(), "README.md": TITLED}, lock=False)
    assert answer(found) == ("acme/Tiny", "", "likely"), "a name proves no commit"
    assert answer(ask(write(tmp_path / "Tiny", small_target()), lock=False)) == ("", "", "unknown")
    found = ask({**small_target(), "README.md": b"# Tiny-Old\n"}, lock=False)
    assert answer(found) == ("", "", "unknown")


def test_10_a_download_by_the_client_into_a_folder(ask: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "models" / "Tiny", small_target())
    traces = folder / ".cache" / "huggingface" / "download"
    traces.mkdir(parents=True)
    for name in small_target():
        (traces / f"{name.replace('/', '_')}.metadata").write_text(f"{'e' * 40}\nabc\n1.0\n")
    assert answer(ask(folder, lock=False)) == ("acme/Tiny", "e" * 40, "likely")
    (traces / "config.json.metadata").write_text(f"{'f' * 40}\nabc\n1.0\n")
    found = ask(folder, lock=False)
    assert answer(found) == ("", "", "unknown") and "several commits" in found.evidence[0]


def test_11_a_snapshot_in_the_clients_cache(ask: Any, tmp_path: Path) -> None:
    base = tmp_path / "models--acme--Tiny"
    snapshot = base / "snapshots" / ("e" * 40)
    for path, data in small_target().items():
        blob = base / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(blob)
    assert answer(ask(snapshot, lock=False, full=False)) == ("acme/Tiny", "e" * 40, "strong")
    assert answer(ask(snapshot)) == ("acme/Tiny", C, "certain"), "the lock's commit has these very bytes"


def test_12_an_edited_file(ask: Any) -> None:
    found = ask({**small_target(), "chat_template.jinja": b"edited"})
    assert answer(found) == ("acme/Tiny", C, "strong") and found.different == ("chat_template.jinja",)


def test_13_shards_cut_anew(ask: Any) -> None:
    files = small_target()
    split = dict(shards(TENSORS, 5))
    kept = {name: data for name, data in files.items() if not name.startswith("model")}
    anew = {name: safetensors(tensors, name) for name, tensors in split.items()}
    found = ask({**kept, **anew, "model.safetensors.index.json": index(split)})
    assert answer(found) == ("acme/Tiny", "", "likely") and "cut anew" in found.evidence[0]


def test_14_a_drafter(ask: Any) -> None:
    assert answer(ask(small_drafter())) == ("acme/Tiny-DFlash", "d" * 40, "certain")
    found = ask(small_drafter("other"), lock=False)
    assert answer(found) == ("", "", "unknown")
    assert found.candidates == ("acme/Tiny-DFlash", "acme/Old-DFlash")


@pytest.mark.parametrize(
    "files",
    [
        {}, {"README.md": b"# Tiny\n"}, {"config.json": b"{"}, {"pytorch_model.bin": b"x"},
        {"config.json": b'{"hidden_size": true}', "README.md": b"---\n[\n---\n"},
    ],
)  # fmt: skip
def test_15_folders_that_say_nothing(ask: Any, tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "models" / "whatever").mkdir(parents=True)
    assert answer(ask(files)) == ("", "", "unknown")


def test_16_a_git_clone(ask: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "clone", small_target())
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text('[remote "origin"]\n\turl = https://hub.example/acme/Tiny\n')
    (folder / ".git" / "HEAD").write_text("a" * 40 + "\n")
    assert answer(ask(folder, lock=False)) == ("acme/Tiny", "a" * 40, "strong")


def test_17_the_hub_settles_it_by_git_ids_and_hashes(ask: Any) -> None:
    files = small_target()
    listed = tuple(
        HubFile(p, len(d), hashlib.sha256(d).hexdigest(), "") if p.endswith("safetensors")
        else HubFile(p, len(d), None, git_blob(d))
        for p, d in files.items()
    )  # fmt: skip
    newer = (*listed[:-1], HubFile(listed[-1].path, listed[-1].size, "0" * 64, ""))
    hub = [
        from_hub(Snapshot("acme/Tiny", "b" * 40, newer), None),
        from_hub(Snapshot("acme/Tiny", C, listed), None),
    ]
    assert answer(ask(files, lock=False, more=hub)) == ("acme/Tiny", C, "certain")


def test_quick_answers_say_that_they_are(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagebuild.models.clues.SMALL", 5000)
    found = ask(small_target(), full=False)
    assert answer(found) == ("acme/Tiny", C, "strong")
    assert any("were not hashed (--full does)" in line for line in found.evidence)
    other = {n: noise("x", len(d)) if n.endswith("safetensors") else d for n, d in small_target().items()}
    assert ask(other, full=True).confidence == "unknown"


def test_who_is_asked_at_the_hub(tmp_path: Path) -> None:
    source = read_source(images_with_tiny(tmp_path / "p"), "tiny")
    readme = b"---\nbase_model: [other/Base, 7]\n---\n"
    clues = collect(write(tmp_path / "m", {**small_target(), "README.md": readme}))
    assert suspects(clues, known_repos([source], [])) == ["other/Base", "acme/Tiny", "acme/Tiny-Old"]


def test_names_in_texts() -> None:
    for text in ("Kimi K2.6", "the kimi-k2.6 model", "Kimi_K2.6", "KimiK2.6!", "moonshotai/Kimi-K2.6"):
        assert says(text, "moonshotai/Kimi-K2.6"), text
    for text in ("Kimi K2", "Kimi K2.65", "Kimi-K2.6-DFlash", "Kimi K2.6.1", "xKimi K2.6"):
        assert not says(text, "moonshotai/Kimi-K2.6"), text
    assert count("Kimi K2.6 and Kimi K2.6, not Kimi K2.5", "a/Kimi-K2.6") == 2
