# SPDX-License-Identifier: Apache-2.0
"""`build.py metrics`: make the image of the compose profile `metrics`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from imagebuild import dotenv
from imagebuild.catalog import project_root
from imagebuild.options import Reporter, images_dir, network_options, output_options, print_result
from imagebuild.settings import Settings


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Layout folder, or one file if *.tar.")
@click.option("--load", is_flag=True, help="Load into the Docker Engine and note the image in .env.")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take packages from this folder, not from the network.",
)
@network_options
@output_options
def metrics(
    output: Path | None,
    load: bool,
    source: Path | None,
    settings: Settings,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Build the image of Prometheus with our rules and dashboards; print its digest.

    `docker compose --profile metrics up` starts it beside the servers: http://127.0.0.1:9090/consoles/sglang.html
    """
    from imagebuild.fetch import fetch
    from imagebuild.metrics.image import build_metrics, metrics_plan
    from imagebuild.outputs import Wanted, deliver
    from imagebuild.progress import open_progress

    report = Reporter(quiet)
    plan = metrics_plan(images_dir())
    with open_progress(quiet=quiet) as progress:
        store = fetch(plan.artifacts, settings, source=source, created=plan.created, progress=progress)
    blobs = settings.cache_dir / "blobs"
    image = build_metrics(plan, images_dir(), lambda artifact: store.path(artifact.sha256), blobs)
    done = deliver(image, Wanted(output=output, load=load), None, quiet, report)
    if load:
        dotenv.update(project_root() / dotenv.NAME, {dotenv.METRICS_IMAGE: done["loaded"]})
        report(f"{dotenv.NAME}: {dotenv.METRICS_IMAGE}={done['loaded']}")
    value: dict[str, Any] = {"reference": image.reference, "digest": image.digest, **done}
    print_result(as_json, value, image.digest)
