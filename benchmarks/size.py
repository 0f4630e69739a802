# SPDX-License-Identifier: Apache-2.0
"""How large an image is to pull and on disk: slim against plain, per layer and per wheel.

usage: python -m benchmarks.size --arch sm_103 [--arch …] [--gzip] [--json]

Makes every layer's canonical tar from the fetched wheels, without an engine, and compresses it with
zstd (as a layer of the embedded engine) and on request gzip -6 (what `docker push` makes of it). Sizes are
MB of 10^6 bytes. Needs the fetched files (`build.py fetch`), about 4 GB of disk and two minutes
a plan on two cores.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.context import write_contexts
from imagebuild.layer.edits import installed_wheels
from imagebuild.layer.entries import Entry
from imagebuild.layer.run import context_files, layer_entries
from imagebuild.layer.spec import Artifact
from imagebuild.layer.tarball import write_tar
from imagebuild.layer.transforms import Context
from imagebuild.layer.wheel import Scheme
from imagebuild.oci_blob import ZSTD_LEVEL
from imagebuild.plan import Plan
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings


class Gauge(io.RawIOBase):
    """Counts what is written: plain, zstd and optionally gzip."""

    def __init__(self, gzip: bool) -> None:
        self.plain = self.zstd = self.gzip = 0
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=2).compressobj()
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, 31) if gzip else None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        self.plain += len(data)
        self.zstd += len(self._zstd.compress(bytes(data)))
        if self._gzip is not None:
            self.gzip += len(self._gzip.compress(data))
        return len(data)

    def finish(self) -> None:
        """Count what the compressors still hold."""
        self.zstd += len(self._zstd.flush())
        if self._gzip is not None:
            self.gzip += len(self._gzip.flush())


@dataclass(frozen=True)
class Row:
    """One layer or wheel, bytes. `content` is the files' own size, the others are of a tar of them."""

    name: str
    files: int
    content: int
    zstd: int
    gzip: int


def measure(name: str, entries: Iterable[Entry], mtime: int, gzip: bool) -> Row:
    """Pack entries and count."""
    entries = list(entries)
    gauge = Gauge(gzip)
    write_tar(entries, gauge, mtime)
    gauge.finish()
    files = [entry for entry in entries if entry.kind == "file"]
    return Row(name, len(files), sum(entry.size for entry in files), gauge.zstd, gauge.gzip)


def base_row(tar: Path, gzip: bool) -> Row:
    """Count the base's tar."""
    gauge = Gauge(gzip)
    with open(tar, "rb") as stream:
        while chunk := stream.read(1 << 20):
            gauge.write(chunk)
    gauge.finish()
    return Row("base", 0, tar.stat().st_size, gauge.zstd, gauge.gzip)


def layers(plan: Plan, cache: Path, *, gzip: bool, wheels: bool) -> tuple[list[Row], list[Row], float]:
    """Return a row per layer, per wheel (if asked) and the seconds of making the layers' entries."""
    store = Store(cache)

    def locate(artifact: Artifact) -> Path:
        return store.path(artifact.sha256)

    contexts = write_contexts(plan, project_root() / "images", cache / "contexts", locate, lambda _: None)
    scheme = Scheme(plan.prefix.lstrip("/"), plan.python)
    rows, by_wheel = [base_row(contexts["base"] / "base.tar", gzip)], []
    seconds = 0.0
    for layer in plan.layers[1:]:
        start = time.monotonic()
        inputs = contexts[layer.name]
        context = Context(context_files(layer, inputs), 2, scratch=cache)
        entries = layer_entries(layer, inputs, scheme, context, [])
        seconds += time.monotonic() - start
        rows.append(measure(layer.name, entries, plan.mtime, gzip))
        if wheels:
            owner = {path: wheel.name for wheel in installed_wheels(entries) for path in wheel.rows}
            groups: dict[str, list[Entry]] = {}
            for entry in entries:
                groups.setdefault(owner.get(entry.path, ""), []).append(entry)
            by_wheel += [measure(n, g, plan.mtime, gzip) for n, g in sorted(groups.items()) if n]
    return rows, by_wheel, seconds


def total(rows: list[Row]) -> Row:
    """Add rows up."""
    return Row(
        "total", sum(r.files for r in rows), sum(r.content for r in rows), sum(r.zstd for r in rows),
        sum(r.gzip for r in rows),
    )  # fmt: skip


def table(title: str, plain: list[Row], slim: list[Row], gzip: bool) -> str:
    """Return a Markdown table of both, largest first, small ones left out."""
    after = {row.name: row for row in slim}
    none = Row("", 0, 0, 0, 0)
    head = [title, "unpacked", "slim", "zstd", "slim", *(["gzip", "slim"] if gzip else [])]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in [*sorted(plain, key=lambda r: -r.content), total(plain)]:
        new = total(slim) if row.name == "total" else after.get(row.name, none)
        if row.content < 20e6 and row.zstd == new.zstd:
            continue
        pairs = [(row.content, new.content), (row.zstd, new.zstd), *([(row.gzip, new.gzip)] if gzip else [])]
        cells = [f"{value / 1e6:,.0f}" for pair in pairs for value in pair]
        lines.append("| " + " | ".join([row.name, *cells]) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", action="append", required=True)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--wheels", action="store_true", help="a row per wheel too (doubles the time)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cache = load_settings({}).cache_dir
    report = {}
    for arch in options.arch:
        results = {}
        for slim in (False, True):
            plan = resolve(project_root() / "images", arch, slim=slim)
            rows, wheels, seconds = layers(plan, cache, gzip=options.gzip, wheels=options.wheels)
            results[slim] = (rows, wheels)
            print(f"{arch} slim={slim}: entries made in {seconds:.0f} s", file=sys.stderr)
        report[arch] = {
            name: [asdict(row) for row in rows]
            for slim in (False, True)
            for name, rows in zip((f"layers slim={slim}", f"wheels slim={slim}"), results[slim], strict=True)
        }
        if not options.json:
            print(f"### {arch} (MB)\n\n" + table("layer", results[False][0], results[True][0], options.gzip))
            if options.wheels:
                print("\n" + table("wheel", results[False][1], results[True][1], options.gzip))
    if options.json:
        print(json.dumps(report, indent=1))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
