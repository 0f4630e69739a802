# SPDX-License-Identifier: Apache-2.0
"""`build.py compose`: the compose files and the recipes that they come from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from imagebuild.catalog import arch_names, project_root
from imagebuild.options import Reporter, images_dir, output_options, print_result


def compose_dir() -> Path:
    """Return the project's compose/ folder."""
    return project_root() / "compose"


@click.group()
def compose() -> None:
    """Render and list the services of compose/, made from compose/recipes/."""


@compose.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 4 if a file differs.")
@output_options
def render(check: bool, as_json: bool, verbose: int, quiet: bool) -> None:
    """Write compose/<arch>.yaml and the GPU overrides; refuse what SGLang would refuse, with the reason."""
    from imagebuild.serving.compose import render_all, write_all
    from imagebuild.serving.service import read_all

    recipes = read_all(compose_dir(), images_dir())
    changed = [str(p) for p in write_all(render_all(compose_dir(), images_dir(), recipes), check=check)]
    for path in changed:
        Reporter(quiet)(f"{path}: written")
    print_result(as_json, {"changed": changed}, "\n".join(changed) or "up to date")


@compose.command("list")
@click.option("--arch", help="One arch only; default: all.")
@click.option("--service", help="One service only, with all of its flags, or why it is refused.")
@output_options
def list_services(arch: str | None, service: str | None, as_json: bool, verbose: int, quiet: bool) -> None:
    """Print the services of each arch; exit 2 with the reason if a --service is refused."""
    from imagebuild.arch import parse_arch
    from imagebuild.serving.compose import flag_lines
    from imagebuild.serving.service import read_all, resolve_service, services_of

    archs = [parse_arch(arch).name] if arch else arch_names(images_dir())
    recipes = read_all(compose_dir(), images_dir())
    rows, lines = [], []
    for recipe in recipes:
        for name in archs:
            one = [resolve_service(recipe, service, name)] if service else []
            found = one or services_of(recipe, name)
            for item in found:
                rows.append(asdict(item) | {"gpu": item.gpu.name})
                lines.append(f"{item.arch:<7} {item.service:<15} {item.parallel.gpus} GPUs  {item.title}")
                lines += [f"    {line}" for line in flag_lines(item.flags)] if service else []
    print_result(as_json, {"services": rows}, "\n".join(lines))
