# SPDX-License-Identifier: Apache-2.0
"""The metrics image: Debian's Prometheus with our scrape settings, rules and page, in one layer."""

from __future__ import annotations

import calendar
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from imagebuild.catalog import read_base
from imagebuild.errors import IntegrityError
from imagebuild.layer.base import base_entries
from imagebuild.layer.entries import Entry, file_entry, merge
from imagebuild.layer.spec import Artifact, FileInput, LayerSpec
from imagebuild.layer.spool import Spool
from imagebuild.oci_blob import write_blob
from imagebuild.oci_layout import OciImage, make_image
from imagebuild.plan import LABEL_PREFIX, SCHEMA, Config, Plan
from imagebuild.resolve import fresh_lock
from imagebuild.toolbox import base_digest

BASE, REPOSITORY, HOME, PORT = "metrics", "k26-metrics", "/etc/imagebuild/metrics", 9090
FOLDERS = ("consoles", "rules")
FLAGS = (
    f"--config.file={HOME}/prometheus.yml",
    f"--web.console.templates={HOME}/consoles",
    "--web.console.libraries=/usr/share/prometheus/console_libraries",
    "--storage.tsdb.path=/data",
    "--storage.tsdb.retention.time=30d",
)


def _files(images: Path) -> Iterator[FileInput]:
    folder = images / "metrics"
    paths = [folder / "prometheus.yml", *(p for name in FOLDERS for p in sorted((folder / name).iterdir()))]
    for path in paths:
        source = path.relative_to(images).as_posix()
        target = f"{HOME}/{path.relative_to(folder).as_posix()}"
        yield FileInput(source, target, 0o644, hashlib.sha256(path.read_bytes()).hexdigest())


def metrics_plan(images: Path) -> Plan:
    """Return the Plan of the metrics image.

    Raises Diagnostics for a wrong manifest, IntegrityError for a stale lock.
    """
    base, file = read_base(images, BASE)
    lock = fresh_lock(file)
    version = next(a.version for a in lock.artifacts if a.name == "prometheus").partition("+")[0]
    config = Config(
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        user="1000:0",
        workdir="/data",
        volumes=("/data",),
        entrypoint=("/usr/bin/prometheus", *FLAGS),
        ports=(PORT,),
        labels={
            "org.opencontainers.image.created": lock.created,
            "org.opencontainers.image.title": "Prometheus with rules and dashboards for SGLang",
            "org.opencontainers.image.version": version,
            f"{LABEL_PREFIX}.stack": BASE,
        },
    )
    return Plan(
        schema_version=SCHEMA,
        arch="amd64",
        stack=BASE,
        repository=REPOSITORY,
        tag_stem=f"{version}-{lock.created[:10].replace('-', '')}",
        created=lock.created,
        mtime=calendar.timegm(time.strptime(lock.created, "%Y-%m-%dT%H:%M:%SZ")),
        prefix="/",
        python="",
        base=base.settings,
        layers=(LayerSpec("base", lock.artifacts, tuple(_files(images))),),
        overlaps=(),
        tools=(),
        tool_code="",
        base_code=base_digest(),
        config=config,
    )


def _own_files(plan: Plan, images: Path) -> Iterator[Entry]:
    for item in plan.layers[0].files:
        content = (images / item.source).read_bytes()
        if hashlib.sha256(content).hexdigest() != item.sha256:
            raise IntegrityError(
                f"{images / item.source}: changed while the image was built", hint="run again"
            )
        yield file_entry(item.target.lstrip("/"), content, item.mode)


def build_metrics(plan: Plan, images: Path, locate: Callable[[Artifact], Path], blobs: Path) -> OciImage:
    """Unpack the packages, add our files, and return the image; the layer lies below `blobs`.

    Equal Plans give equal digests. Raises LayerError for a bad package, IntegrityError, OSError.
    """
    layer = plan.layers[0]
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder, Spool(Path(folder)) as spool:
        base = base_entries([locate(a) for a in layer.artifacts], plan.base, spool)
        have = {entry.path for entry in base}
        own = [entry for entry in merge(_own_files(plan, images)) if entry.path not in have]
        entries = [*base, *own]
        blob = write_blob(entries, blobs, plan.mtime, "zstd", os.cpu_count() or 1, lambda _: None)
    return make_image(plan, [(layer.name, blob)], blobs)
