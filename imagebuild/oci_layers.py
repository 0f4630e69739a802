# SPDX-License-Identifier: Apache-2.0
"""Build contexts → layer blobs: all cores, each layer once per content, nothing on disk but the blobs."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from imagebuild.cache import hash_file
from imagebuild.context import TOOLS, base_tar_key
from imagebuild.crew import cores
from imagebuild.digest import digest
from imagebuild.files import write_text
from imagebuild.layer.entries import Entry
from imagebuild.layer.run import context_files, layer_entries
from imagebuild.layer.spec import LayerSpec, layer_from_json
from imagebuild.layer.tarball import tar_entries
from imagebuild.layer.transforms import Context
from imagebuild.layer.wheel import Scheme
from imagebuild.oci_blob import GZIP_LEVEL, MEDIA_TYPES, ZSTD_LEVEL, Blob, Compression, blob_path, write_blob
from imagebuild.oci_python import ImagePython, unpack_python
from imagebuild.plan import Plan

Ready = Callable[[Blob], None]
_REPORT_SECONDS = 3.0
# Raise it when the bytes of a layer change for the same inputs, so that cached ones are not used.
_FORMAT = 1


@dataclass(frozen=True)
class Job:
    """One layer to make, with all that a worker process needs. `folder` is where blobs go."""

    layer: str
    inputs: Path
    base_tar: Path
    folder: Path
    python: ImagePython
    prefix: str
    mtime: int
    compression: Compression
    threads: int


def layer_key(plan: Plan, layer: LayerSpec, compression: Compression) -> str:
    """Return the digest of everything that a layer blob's bytes depend on."""
    embedded = any(t.kind == "embed" for t in layer.transforms)
    made_by = list(zstandard.ZSTD_VERSION) if compression == "zstd" else zlib.ZLIB_RUNTIME_VERSION
    tool = [_FORMAT, compression, ZSTD_LEVEL if compression == "zstd" else GZIP_LEVEL, made_by]
    place = [plan.prefix, plan.python, plan.mtime, plan.tool_code, base_tar_key(plan)]
    return digest([asdict(layer), plan.digest if embedded else "", tool, place])


def _like_base(entries: list[Entry], base: dict[str, Entry]) -> list[Entry]:
    """Give directories that are only somebody's parent what the base gave them (so /tmp stays 1777)."""
    return [base[e.path] if e.implied and e.path in base else e for e in entries]


_counter: Any = None


def _start(counter: Any) -> None:
    global _counter  # noqa: PLW0603 - how a worker process is handed something shared
    _counter = counter


def _advance(count: int) -> None:
    if _counter is not None:
        with _counter.get_lock():
            _counter.value += count


@functools.lru_cache(1)
def _base(tar: Path) -> list[Entry]:
    """Return the base's entries, read once by each worker process."""
    return tar_entries(tar)


def make_layer(job: Job) -> Blob:
    """Assemble one layer and write its blob; runs in a worker process."""
    layer = layer_from_json((job.inputs / "layer.json").read_text(encoding="utf-8"))
    base = _base(job.base_tar)
    python = job.python
    files = context_files(layer, job.inputs)
    context = Context(files, job.threads, python.compile, python.cache_tag, job.folder)
    scheme = Scheme(job.prefix.lstrip("/"), python.python)
    is_base = any(artifact.kind == "deb" for artifact in layer.artifacts)
    entries = layer_entries(layer, job.inputs, scheme, context, base if is_base else [])
    if is_base:
        have = {entry.path for entry in base}
        entries = [*base, *(e for e in entries if e.path not in have)]
    else:
        entries = _like_base(entries, {e.path: e for e in base if e.kind == "dir"})
    return write_blob(entries, job.folder, job.mtime, job.compression, job.threads, _advance)


def _cached(record: Path, blobs: Path) -> Blob | None:
    """Return the layer that a record names, if its blob is there and has that digest.

    A damaged blob is removed, so that the layer is made again.
    """
    try:
        blob = Blob(**json.loads(record.read_text(encoding="utf-8")))
        with open(blob_path(blobs, blob.digest), "rb") as file:
            found, _ = hash_file(file)
    except (OSError, ValueError, TypeError):
        return None
    if f"sha256:{found}" == blob.digest:
        return blob
    blob_path(blobs, blob.digest).unlink(missing_ok=True)
    return None


def _wait(
    pending: dict[Future[Blob], str], counter: Any, report: Callable[[str], None], ready: Ready
) -> dict[str, Blob]:
    made: dict[str, Blob] = {}
    left = dict(pending)
    start = time.monotonic()
    while left:
        done, _ = wait(left, timeout=_REPORT_SECONDS, return_when="FIRST_COMPLETED")
        for future in done:
            name = left.pop(future)
            made[name] = future.result()
            ready(made[name])
            seconds = time.monotonic() - start
            report(f"layer {name}: {made[name].size / 1e6:,.0f} MB after {seconds:.0f} s")
        if not done:
            report(f"{counter.value / 1e6:,.0f} MB assembled")
    return made


def build_layers(
    plan: Plan,
    contexts: dict[str, Path],
    cache: Path,
    compression: Compression,
    report: Callable[[str], None],
    *,
    use_cache: bool = True,
    ready: Ready = lambda _: None,
) -> dict[str, Blob]:
    """Return the blob of each layer by name, made below `cache` unless it is there already.

    `ready` gets each as soon as it is whole, in any order; what it raises ends the build. Raises
    LayerError, BuildError or OSError as making a layer does; no half blob is left.
    """
    blobs, records = cache / "blobs", cache / "layers"
    blobs.mkdir(parents=True, exist_ok=True)
    records.mkdir(parents=True, exist_ok=True)
    keys = {layer.name: layer_key(plan, layer, compression) for layer in plan.layers}
    made: dict[str, Blob] = {}
    if use_cache:
        with ThreadPoolExecutor(cores()) as pool:
            found = pool.map(lambda key: _cached(records / key, blobs), keys.values())
            made = {name: blob for name, blob in zip(keys, found, strict=True) if blob is not None}
    for name, blob in made.items():
        report(f"layer {name}: cached")
        ready(blob)
    missing = [layer for layer in plan.layers if layer.name not in made]
    if not missing:
        return made
    available = cores()
    base_tar = contexts[plan.layers[0].name] / "base.tar"
    # A worker process that is started anew inherits neither threads nor locks of this one.
    fresh = multiprocessing.get_context("spawn")
    counter = fresh.Value("Q", 0)
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        python = unpack_python(tar_entries(base_tar), Path(folder), contexts[TOOLS].resolve(), plan.python)
        workers = min(available, len(missing))
        with ProcessPoolExecutor(workers, fresh, _start, (counter,)) as makers:
            pending = {}
            for layer in sorted(missing, key=lambda x: -sum(a.size for a in x.artifacts)):
                job = Job(
                    layer.name, contexts[layer.name].resolve(), base_tar.resolve(), blobs.resolve(), python,
                    plan.prefix, plan.mtime, compression, max(1, available // workers),
                )  # fmt: skip
                pending[makers.submit(make_layer, job)] = layer.name
            try:
                made |= _wait(pending, counter, report, ready)
            except BaseException:
                makers.shutdown(wait=True, cancel_futures=True)
                raise
    for layer in missing:
        write_text(records / keys[layer.name], json.dumps(asdict(made[layer.name])) + "\n")
    return made


def remove_layers(cache: Path, plans: Iterable[Plan], *, dry_run: bool) -> int:
    """Remove the kept layers that none of the plans has; return the bytes (to be) freed.

    A blob whose build is still running has no record yet and goes too: that build then fails.
    """
    keep = {layer_key(plan, layer, kind) for plan in plans for layer in plan.layers for kind in MEDIA_TYPES}
    needed = set()
    for record in sorted((cache / "layers").glob("*")):
        if record.name in keep:
            with contextlib.suppress(OSError, ValueError, KeyError):
                needed.add(json.loads(record.read_text(encoding="utf-8"))["digest"])
        elif not dry_run:
            record.unlink(missing_ok=True)
    freed = 0
    for blob in sorted((cache / "blobs" / "sha256").glob("*")):
        if f"sha256:{blob.name}" not in needed:
            freed += blob.stat().st_size
            if not dry_run:
                blob.unlink(missing_ok=True)
    return freed
