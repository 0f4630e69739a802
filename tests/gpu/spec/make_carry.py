# SPDX-License-Identifier: Apache-2.0
"""Pack what the GPU host lacks: SGLang with the image's patches, DDTREE, this kit, and their needs.

    python -m tests.gpu.spec.make_carry [--overlay-only] [--out .gpu-carry/ddtree] [--wheels DIR]

site.tar.xz (37 MB): requirements.txt's wheels for CPython 3.12, without what one sm_90 GPU with
Triton attention never loads. overlay.tar.xz: the patched files, the plugins and the kit, which change
more often.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from imagebuild.catalog import project_root
from imagebuild.ledger import read_patch
from imagebuild.plugin import build_plugin

HERE = Path(__file__).resolve().parent
LEFT_OUT = (
    "sgl_kernel/flash_ops.abi3.so",  # FlashAttention 3, 1.7 GB
    "sgl_kernel/sm100/",  # the operators for Blackwell
    "sgl_kernel/flashmla_ops.abi3.so",
    "sglang/multimodal_gen/",
    "sglang/test/",
    "sglang/srt/grpc/",
    "jedi/third_party/",
)
GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17)


def wanted() -> dict[str, str]:
    """requirements.txt: normalized name → version."""
    lines = (line.split("#")[0].strip() for line in (HERE / "requirements.txt").read_text().splitlines())
    return {_name(line.split("==")[0]): line.split("==")[1] for line in lines if line}


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def download(wheels: Path) -> list[Path]:
    """Fetch the pinned wheels that are not there yet (1 GB)."""
    tags = ["--only-binary=:all:", "--no-deps", "--python-version", "3.12", "--implementation", "cp"]
    tags += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
    platforms = [f"manylinux_2_{n}_x86_64" for n in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    tags += [part for platform in platforms for part in ("--platform", platform)]
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", *tags, "--dest", str(wheels)]
    command += ["--find-links", str(wheels), "--requirement", str(HERE / "requirements.txt")]
    subprocess.run(command, check=True)
    pins = wanted()
    found = [
        w
        for w in sorted(wheels.glob("*.whl"))
        if pins.get(_name(w.name.split("-")[0])) == w.name.split("-")[1]
    ]
    missing = sorted(set(pins) - {_name(w.name.split("-")[0]) for w in found})
    if missing:
        raise SystemExit(f"no wheel for {', '.join(missing)} in {wheels}")
    return found


def unpack(wheels: list[Path], site: Path) -> None:
    """Unpack wheels, leaving out the large parts that are not used."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [m for m in archive.namelist() if not m.startswith(LEFT_OUT)])
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            for path in sorted((data / kind).rglob("*")):
                if path.is_file():
                    target = site / path.relative_to(data / kind)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.rename(target)


def overlay(out: Path, unpacked: Path) -> None:
    """Write overlay.tar.xz: patched files of `unpacked`, plugin, kit, oracle."""
    root = project_root()
    with tarfile.open(out / "overlay.tar.xz", "w:xz") as archive:
        for folder in sorted((root / "images/patches").iterdir()):
            if (folder / "patch.yaml").is_file():
                for path in read_patch(root / "images", folder.name).manifest.files or {}:
                    archive.add(unpacked / path, path)
        with zipfile.ZipFile(io.BytesIO(build_plugin(root / "plugins/ddtree").content)) as wheel:
            for name in wheel.namelist():
                info = tarfile.TarInfo(name)
                content = wheel.read(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        archive.add(HERE, "kit", filter=lambda i: None if "__pycache__" in i.name else i)
        archive.add(root / "tests/treeoracle.py", "kit/treeoracle.py")
        archive.add(root / "tests/gpu/two_gpus.py", "kit/two_gpus.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".gpu-carry/ddtree"))
    parser.add_argument("--wheels", type=Path, default=Path(".gpu-carry/wheels"))
    parser.add_argument("--overlay-only", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.overlay_only:
        with tempfile.TemporaryDirectory() as site:
            unpack(download(args.wheels), Path(site))
            with tarfile.open(args.out / "site.tar.xz", "w:xz") as archive:
                archive.add(site, ".")
    with tempfile.TemporaryDirectory() as tree:
        command = [sys.executable, "build.py", "patches", "new", "carry", "--unpack", tree]
        subprocess.run(command, check=True, cwd=project_root())
        overlay(args.out, Path(tree))
    for path in sorted(args.out.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
