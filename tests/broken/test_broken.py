# SPDX-License-Identifier: Apache-2.0
"""Every broken manifest under cases/ gives exactly the diagnostics committed beside it.

A case is `<name>.yaml`; its first line names the model (`# model: image`). The snapshot is
`<name>.txt`. After a wanted change: UPDATE_SNAPSHOTS=1 python -m pytest tests/broken, then read
the diff, because users will read those texts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from imagebuild.errors import ManifestError
from imagebuild.ledger import PatchManifest
from imagebuild.manifest import BaseManifest, ImageManifest, StackManifest, ToolsManifest
from imagebuild.serving.recipe import RecipeFile
from imagebuild.yamlfile import load

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.yaml"))
MODELS: dict[str, type[BaseModel]] = {
    "base": BaseManifest,
    "image": ImageManifest,
    "patch": PatchManifest,
    "recipe": RecipeFile,
    "stack": StackManifest,
    "tools": ToolsManifest,
}


def model_of(case: Path) -> type[BaseModel]:
    first = case.read_bytes().splitlines()[0].decode("ascii")
    return MODELS[first.removeprefix("# model: ")]


@pytest.mark.parametrize("name", NAMES)
def test_diagnostics(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(CASES)
    case, snapshot = Path(f"{name}.yaml"), Path(f"{name}.txt")
    with pytest.raises(ManifestError) as caught:
        load(case, model_of(case))
    assert caught.value.exit_code == 2
    text = f"{caught.value}\n"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        snapshot.write_text(text, encoding="utf-8")
    assert snapshot.exists(), f"no {snapshot}: run with UPDATE_SNAPSHOTS=1 and read it"
    assert text == snapshot.read_text(encoding="utf-8")


def test_every_snapshot_has_its_case():
    assert sorted(path.stem for path in CASES.glob("*.txt")) == NAMES
