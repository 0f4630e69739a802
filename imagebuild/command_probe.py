# SPDX-License-Identifier: Apache-2.0
"""`build.py probe`: what this host is, which service suits it, and `.env` for Compose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuild import dotenv
from imagebuild.catalog import project_root
from imagebuild.command_compose import compose_dir
from imagebuild.errors import ImageBuildError, ManifestError
from imagebuild.files import write_text
from imagebuild.model_options import (
    dir_option,
    drafter_option,
    models_root,
    now,
    read_both,
    settings_with,
    share_network,
    token_option,
)
from imagebuild.options import Reporter, images_dir, output_options

if TYPE_CHECKING:
    from imagebuild.host.facts import Host
    from imagebuild.host.report import Finding, Report


@dataclass(frozen=True)
class ProbeOptions:
    """What a user asked `probe` for."""

    name: str | None
    root: Path | None
    drafter: str | None
    token_file: Path | None
    source: Path | None
    output: Path | None
    no_env: bool
    offline: bool
    allreduce: bool
    python: str | None
    deadline: float
    as_json: bool
    verbose: int
    quiet: bool


@click.command()
@click.argument("name", required=False)
@dir_option
@drafter_option
@token_option
@click.option("--no-env", is_flag=True, help="Leave .env alone.")
@click.option("--offline", is_flag=True, help="Do not ask the hub whether it answers.")
@click.option(
    "--allreduce", is_flag=True, help="Also let all GPUs add up checked numbers, in the image of .env."
)
@click.option("--python", help="--allreduce: with this Python, which has torch, instead of the image.")
@click.option(
    "--deadline", type=click.FloatRange(5, 3600), default=180, show_default=True,
    help="--allreduce: seconds for all of it.",
)  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Also write the report to this file.")
@click.option(
    "--from", "source", type=click.Path(path_type=Path),
    help="Judge the host of this host.json instead of this one; .env is left alone.",
)  # fmt: skip
@output_options
def probe(**given: Any) -> None:
    """Look at GPUs, links, driver, containers, memory and disk; recommend a service of model NAME.

    One line per finding, each with a stable id (docs/probe.md). Writes .env for Compose. Exit 1: a check
    failed; 3: something is missing.
    """
    from imagebuild.host.probe import describe, judge, require
    from imagebuild.host.report import read_report, to_json
    from imagebuild.serving.recipe import recipe_names
    from imagebuild.serving.service import read_model_recipes

    options = ProbeOptions(**given)
    names = recipe_names(compose_dir())
    name = options.name or names[0]
    if name not in names:
        raise ManifestError(f'no recipes for "{name}": there are {", ".join(names)}')
    recipes = read_model_recipes(compose_dir(), images_dir(), name)
    if options.source is not None:
        old = read_report(options.source)
        report = judge(old.host, recipes, old.created)
    else:
        host = _look(options, name)
        report = judge(host, recipes, now(), _allreduce(options, host))
        if not options.no_env:
            _note(report, options)
    if options.output is not None:
        write_text(options.output, to_json(report))
    click.echo(to_json(report) if options.as_json else describe(report), nl=not options.as_json)
    require(report.findings)


def _env() -> dict[str, str]:
    return dotenv.read(project_root() / dotenv.NAME)


def _look(options: ProbeOptions, name: str) -> Host:
    """Read this host."""
    from imagebuild.host.containers import read_containers
    from imagebuild.host.facts import Host, HubAnswer
    from imagebuild.host.gpus import read_gpus
    from imagebuild.host.machine import read_machine
    from imagebuild.host.storage import ask_hub, read_storage

    source, lock = read_both(name)
    drafter = source.drafter(options.drafter)
    kept = _env().get(dotenv.MODELS_DIR)
    folder = models_root(options.root or (Path(kept) if kept else None)).absolute()
    gpus = read_gpus()
    hub = HubAnswer()
    if not options.offline:
        share_network(settings_with(None))
        hub = ask_hub(source, options.token_file)
    return Host(
        gpus=gpus,
        machine=read_machine([gpu.bus_id for gpu in gpus.devices]),
        containers=read_containers(),
        storage=read_storage(source, lock, drafter.name if drafter else None, folder),
        hub=hub,
    )


def _allreduce(options: ProbeOptions, host: Host) -> list[Finding]:
    from imagebuild.host.run_allreduce import run_allreduce

    if not options.allreduce:
        return []
    env = _env()
    image = env.get(dotenv.image_key(env.get(dotenv.ARCH, "")))
    return run_allreduce(host, options.python, image, options.deadline)


def _note(report: Report, options: ProbeOptions) -> None:
    """Write what Compose needs to know into .env; say so, and never fail for it."""
    from imagebuild.host.checks_machine import gpu_driver

    advice, host = report.advice, report.host
    driver = gpu_driver(host.containers)
    values = {dotenv.ARCH: advice.arch} if advice.arch and advice.options else {}
    values |= {dotenv.GPU_DRIVER: driver} if driver else {}
    path, say = project_root() / dotenv.NAME, Reporter(options.quiet)
    try:
        if options.root is not None or dotenv.MODELS_DIR not in dotenv.read(path):
            values[dotenv.MODELS_DIR] = os.fspath(host.storage.models_dir)
        changed = dotenv.update(path, values)
    except (ImageBuildError, OSError) as error:
        say(f"warning: {path} is left alone: {error}")
        return
    what = ", ".join(f"{key}={value}" for key, value in values.items())
    say(f"{path}: {what}" + ("" if changed else " (as before)"))
