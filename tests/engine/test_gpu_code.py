# SPDX-License-Identifier: Apache-2.0
"""Our reader against NVIDIA's cuobjdump, on every library of the pinned stack.

Needs the fetched wheels (`build.py fetch --arch sm_103`; fetched here if they are missing) and
cuobjdump, which is a development dependency.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuild.arch import parse_arch
from imagebuild.catalog import project_root
from imagebuild.fetch import fetch
from imagebuild.gpucache import plan_facts
from imagebuild.layer.binary import FileSource
from imagebuild.layer.gpucode import Code, loadable
from imagebuild.layer.proof import prove
from imagebuild.layer.scan import FileCode, scan
from imagebuild.layer.slim_file import slim_file
from imagebuild.plan import Plan
from imagebuild.plugin import is_local
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings
from tests.gpufiles import library

LISTED = re.compile(r"^Fatbin (elf|ptx) code:\n=+\narch = sm_(\d+)([af]?)$", re.MULTILINE)
SLIMMED = ("torch", "torchvision", "torchaudio", "torchao", "sglang-kernel")
# libtorch_cuda and flash_ops are covered by the proof of every build; these stay within seconds.
MAX_BYTES = 100 << 20


Libraries = Iterator[tuple[str, str, Path]]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve(project_root() / "images", "sm_103")


@pytest.fixture(scope="module")
def cuobjdump() -> str:
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    (found,) = site.glob("nvidia/*/bin/cuobjdump")
    found.chmod(0o755)
    return str(found)


@pytest.fixture(scope="module")
def libraries(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Iterator[tuple[str, str, Path]]]:
    """Yield (package, member, file) of each library with GPU code, one at a time on disk."""
    settings = load_settings({})
    found = [a for layer in plan.layers for a in layer.artifacts]
    wheels = [a for a in found if a.kind == "wheel" and not is_local(a)]  # no index has a plugin of ours
    store = fetch(wheels, settings, created=plan.created)
    facts = plan_facts(wheels, lambda a: store.path(a.sha256), settings.cache_dir, lambda _: None)
    folder = tmp_path_factory.mktemp("libraries")

    def each() -> Libraries:
        for wheel in wheels:
            names = [f.path for f in facts[wheel.name] if f.groups and f.kind in ("elf", "archive")]
            with zipfile.ZipFile(store.path(wheel.sha256)) as archive:
                for name in names:
                    path = folder / ("x.a" if name.endswith(".a") else "x.so")
                    with archive.open(name) as source, open(path, "wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
                    yield wheel.name, name, path
                    path.unlink()

    yield each()


def dumped(cuobjdump: str, path: Path) -> Counter[Code]:
    done = subprocess.run([cuobjdump, "-all", str(path)], capture_output=True, text=True, check=False)
    found: Counter[Code] = Counter()
    for kind, number, suffix in LISTED.findall(done.stdout):
        found[Code(kind, int(number), suffix)] += 1
    return found


def read(path: Path) -> FileCode:
    with open(path, "rb") as file:
        found = scan(FileSource.of(file.fileno()))
    assert found is not None
    return found


def ours(code: FileCode) -> Counter[Code]:
    """What cuobjdump would list: its sections, cubins and PTX."""
    return Counter(
        entry.code
        for found in code.found
        if found.place in ("fatbin", "relocatable")
        for entry in found.container.entries
        if entry.code.kind != "other"
    )


def left_over(path: Path, out: Path) -> None:
    """Write a library of what is not blank: cuobjdump stops at the first payload that is no cubin."""
    data = path.read_bytes()
    containers = []
    for found in read(path).found:
        if found.place in ("fatbin", "relocatable"):
            at, kept = found.container.at + 16, b""
            for entry in found.container.entries:
                end = entry.at + entry.size
                kept += b"" if entry.blank else data[at:end]
                at = end
            containers.append(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(kept)) + kept)
    out.write_bytes(library(*(c for c in containers if len(c) > 16)))


def test_equal_to_cuobjdump_before_and_nothing_loadable_lost_after(libraries, cuobjdump, tmp_path):
    """One walk over the libraries for both questions, since unpacking them takes most of the time."""
    files = total = slimmed = 0
    for package, name, path in libraries:
        before = dumped(cuobjdump, path)
        assert ours(read(path)) == before, name
        files += 1
        total += sum(before.values())
        if package not in SLIMMED or path.stat().st_size > MAX_BYTES or "libnv" in name:
            continue
        for arch in ("sm_103", "sm_120", "sm_90"):
            gpu = parse_arch(arch).number
            blank = tmp_path / "blank.so"
            with open(path, "rb") as file:
                changed = slim_file(FileSource.of(file.fileno()), blank, gpu, compact=False)
                if not changed:
                    continue
                with open(blank, "rb") as edited:
                    prove(FileSource.of(file.fileno()), FileSource.of(edited.fileno()), gpu)
            left_over(blank, tmp_path / "left.so")
            after = dumped(cuobjdump, tmp_path / "left.so")
            assert after == {c: n for c, n in before.items() if loadable(c, gpu)}, (name, arch)
            slimmed += 1
            blank.unlink()
    assert files >= 30 and total > 20_000 and slimmed >= 20
