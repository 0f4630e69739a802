# SPDX-License-Identifier: Apache-2.0
"""Facts about a plan's wheels, kept in the cache: the same wheel is read once for all archs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from imagebuild.crew import cores
from imagebuild.digest import digest
from imagebuild.errors import IntegrityError
from imagebuild.files import write_text
from imagebuild.gpufacts import FileFacts, wheel_facts
from imagebuild.layer.entries import LayerError
from imagebuild.layer.spec import Artifact
from imagebuild.toolbox import reader_digest

_FACTS = TypeAdapter(tuple[FileFacts, ...])


def plan_facts(
    wheels: list[Artifact],
    locate: Callable[[Artifact], Path],
    cache_dir: Path,
    report: Callable[[str], None],
    workers: int | None = None,
) -> dict[str, tuple[FileFacts, ...]]:
    """Return the facts of each wheel by package name; reads those that the cache does not have."""
    folder = cache_dir / "gpucode" / digest([reader_digest()])[:16]
    folder.mkdir(parents=True, exist_ok=True)
    known = {wheel: _read(folder / f"{wheel.sha256}.json") for wheel in wheels}
    missing = [wheel for wheel, facts in known.items() if facts is None]
    if missing:
        size = sum(wheel.size for wheel in missing) / 1e9
        report(f"reading the GPU code of {len(missing)} wheels ({size:.1f} GB)")
        try:
            found = wheel_facts([locate(w) for w in missing], folder, workers or cores())
        except LayerError as error:  # names the file in the cache, whose name is its sha256
            origin, _, what = str(error).partition(": ")
            file = next((w.file for w in missing if locate(w).name == origin), origin)
            raise IntegrityError(f"{file}: {what}", hint="report it to the wheel's project") from error
        for wheel in missing:
            known[wheel] = facts = found.get(locate(wheel), ())
            text = _FACTS.dump_json(facts, exclude_defaults=True).decode()
            write_text(folder / f"{wheel.sha256}.json", text)
    return {wheel.name: facts or () for wheel, facts in known.items()}


def _read(path: Path) -> tuple[FileFacts, ...] | None:
    try:
        return _FACTS.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
