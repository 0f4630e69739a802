# SPDX-License-Identifier: Apache-2.0
"""`build.py kubernetes`: the recipes' services as Kubernetes manifests."""

from __future__ import annotations

from pathlib import Path

import click

from imagebuild.catalog import arch_names, project_root
from imagebuild.command_compose import compose_dir
from imagebuild.options import Reporter, arch_option, images_dir, output_options, print_result


def deploy_dir() -> Path:
    """Return the project's deploy/kubernetes/ folder."""
    return project_root() / "deploy" / "kubernetes"


@click.group()
def kubernetes() -> None:
    """Turn services of compose/recipes/ into Kubernetes manifests."""


@kubernetes.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 4 if a file differs.")
@output_options
def render(check: bool, as_json: bool, verbose: int, quiet: bool) -> None:
    """Write the examples deploy/kubernetes/*.yaml."""
    from imagebuild.serving.compose import write_all
    from imagebuild.serving.deploy import render_examples
    from imagebuild.serving.service import read_all

    recipes = read_all(compose_dir(), images_dir())
    files = render_examples(deploy_dir(), recipes, arch_names(images_dir()))
    deploy_dir().mkdir(parents=True, exist_ok=True)
    changed = [str(path) for path in write_all(files, check=check)]
    for path in changed:
        Reporter(quiet)(f"{path}: written")
    print_result(as_json, {"changed": changed}, "\n".join(changed) or "up to date")


@kubernetes.command()
@click.argument("service")
@arch_option
@click.option("--image", required=True, help="REGISTRY/REPOSITORY@sha256:… that the cluster pulls.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--models-claim", default="", help="A claim with the weights that is there; default: make one.")
@click.option("--storage-class", default="", help="Of the claims that are made; default: the cluster's own.")
@click.option("--runtime-class", default="", help='"nvidia", where that is not the default runtime.')
@click.option(
    "--rdma", default="", help="Resource of the RDMA device plugin, for example rdma/hca_shared_devices_a."
)
@output_options
def show(  # noqa: PLR0913, PLR0917 - one parameter per option
    service: str,
    arch: str,
    image: str,
    gpus_per_node: int,
    models_claim: str,
    storage_class: str,
    runtime_class: str,
    rdma: str,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Print the manifests of SERVICE, for kubectl apply -f -; exit 2 with the reason if it is refused.

    A Deployment if its GPUs are on one node, else a LeaderWorkerSet.
    """
    from imagebuild.arch import parse_arch
    from imagebuild.diagnostics import Refused, closest
    from imagebuild.serving.deploy import models_gib, render
    from imagebuild.serving.kubernetes import Site, manifests
    from imagebuild.serving.service import read_all, resolve_service

    recipes = read_all(compose_dir(), images_dir())
    names = [item.name for recipe in recipes for item in recipe.file.services]
    recipe = next((r for r in recipes if any(i.name == service for i in r.file.services)), None)
    if recipe is None:
        raise Refused(f'no service "{service}"', allowed=names, suggestion=closest(service, names))
    serving = resolve_service(recipe, service, parse_arch(arch).name)
    site = Site(
        image, gpus_per_node, models_gib(recipe), models_claim, storage_class, runtime_class, rdma
    )  # fmt: skip
    value = {"apiVersion": "v1", "kind": "List", "items": manifests(serving, site)}
    print_result(as_json, value, render(serving, site).rstrip("\n"))
