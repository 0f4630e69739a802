# SPDX-License-Identifier: Apache-2.0
"""`build.py models identify`, `plan` and `check`: they look and compute, and change nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuild.errors import CheckFailed, ManifestError
from imagebuild.model_options import (
    dir_option,
    drafter_option,
    models_root,
    name_argument,
    read_both,
    settings_with,
    share_network,
    token_option,
)
from imagebuild.options import Reporter, images_dir, output_options, print_result

if TYPE_CHECKING:
    from imagebuild.models.lockfile import ModelLock
    from imagebuild.models.source import ModelSource


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--full", is_flag=True, help="Hash every byte, not only small files.")
@click.option("--hub", "ask_hub", is_flag=True, help="Ask the hub about the repos that it may be.")
@token_option
@output_options
def identify(
    folder: Path, full: bool, ask_hub: bool, token_file: Path | None, as_json: bool, verbose: int, quiet: bool
) -> None:
    """Say where a folder came from: repo, commit, quantisation, confidence, evidence. Exit 1: unknown."""
    from imagebuild.models.clues import collect
    from imagebuild.models.identify import describe
    from imagebuild.models.identify import identify as name_it
    from imagebuild.models.known import known_repos
    from imagebuild.models.lockfile import lock_path, read_lock
    from imagebuild.models.source import model_names, read_source
    from imagebuild.progress import open_progress

    images = images_dir()
    names = model_names(images)
    locks = [lock for name in names if (lock := read_lock(lock_path(images, name))) is not None]
    known = known_repos([read_source(images, name) for name in names], locks)
    with open_progress(quiet=quiet) as progress:
        clues = collect(folder, full=full, progress=progress)
    if ask_hub:
        from imagebuild.models.hub import open_hub
        from imagebuild.models.suspects import ask

        share_network(settings_with(None))
        more, notes = ask(open_hub(token_file), clues, known)
        known = [*more, *known]
        for note in notes:
            Reporter(quiet)(note)
    found = name_it(clues, known)
    print_result(as_json, asdict(found), describe(found))
    if found.confidence == "unknown":
        raise CheckFailed(
            f"{folder}: where it came from cannot be known from what is there",
            hint="--hub asks the hub; or run `models lock` once, then identify compares offline",
        )


# --- plan and check ---------------------------------------------------------------------------


@click.command()
@name_argument
@drafter_option
@click.option("--gpu", help="B300, H200, RTX-PRO-6000 … (images/gpus.yaml).")
@click.option("--gpu-memory", type=click.IntRange(1024, 4 << 20), help="MiB of one GPU, for one not listed.")
@click.option("--tp", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--ep", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--pp", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--context", type=click.IntRange(1), help="Tokens of one request; default: all that the model has."
)
@click.option(
    "--requests", type=click.IntRange(1), default=1, show_default=True, help="Such requests at once."
)
@click.option("--kv-dtype", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True)
@click.option("--mem-fraction", type=click.FloatRange(0.1, 0.99), default=0.85, show_default=True)
@click.option("--tree-nodes", type=click.IntRange(0, 1024), default=0, help="Nodes of a DDTree.")
@output_options
def plan(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: str,
    drafter: str | None,
    gpu: str | None,
    gpu_memory: int | None,
    tp: int,
    ep: int,
    pp: int,
    context: int | None,
    requests: int,
    kv_dtype: str,
    mem_fraction: float,
    tree_nodes: int,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Compute the memory per GPU from the configs alone; exit 1 and say what would fit if it does not."""
    from imagebuild.models import memory
    from imagebuild.models.gpus import find_gpu

    source, locked = read_both(name)
    if gpu is None and gpu_memory is None:
        raise ManifestError("--gpu or --gpu-memory is missing", hint="for example: --gpu B300 --tp 8")
    title, size = gpu or "GPU", gpu_memory
    if gpu is not None and size is None:
        found = find_gpu(images_dir(), gpu)
        title, size = found.short, found.memory_mib
    assert size is not None
    target, small = _shapes(source, locked, drafter)
    setup = memory.Setup(
        gpu=title, memory=size << 20, tp=tp, ep=ep, pp=pp, context=context or 0, requests=requests,
        kv_dtype="fp8" if kv_dtype == "fp8" else "bf16", mem_fraction=mem_fraction, tree_nodes=tree_nodes,
    )  # fmt: skip
    result = memory.plan(target, small, setup)
    text = memory.describe(result, context or target.context)
    print_result(as_json, {"fits": result.fits, **asdict(result)}, text)
    if not result.fits:
        ways = "; ".join(result.ways)
        raise CheckFailed(
            f"it does not fit: {len(result.problems)} reasons",
            hint=f"one of: {ways}" if ways else "choose other GPUs, or more of them",
        )


def _shapes(source: ModelSource, lock: ModelLock | None, drafter: str | None) -> tuple[Any, Any]:
    """Return the shapes of target and drafter: the lock's, which come from config.json, else the source's."""
    chosen = source.drafter(drafter)
    target = lock.repo("target") if lock else None
    small = lock.repo(chosen.name) if lock and chosen else None
    first = target.shape if target and target.shape else source.target.shape
    second = small.shape if small and small.shape else (chosen.shape if chosen else None)
    return first, second


@click.command()
@name_argument
@drafter_option
@dir_option
@click.option("--target-dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--drafter-dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--tp", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--pp", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--block-size", type=click.IntRange(1), help="--speculative-dflash-block-size of the server.")
@click.option("--window", type=click.IntRange(1), help="--speculative-draft-window-size of the server.")
@click.option("--draft-tokens", type=click.IntRange(1), help="--speculative-num-draft-tokens of the server.")
@click.option("--tree", is_flag=True, help="The server runs DDTree.")
@click.option("--attention", help="--attention-backend of the server.")
@click.option("--page-size", type=click.IntRange(1), help="--page-size of the server.")
@output_options
def check(
    name: str,
    drafter: str | None,
    root: Path | None,
    target_dir: Path | None,
    drafter_dir: Path | None,
    as_json: bool,
    verbose: int,
    quiet: bool,
    **flags: Any,
) -> None:
    """Check that a drafter fits its target and the server's flags, before anything is loaded."""
    from imagebuild.models.config import drafter_shape, read_json, target_shape
    from imagebuild.models.contract import Flags, describe
    from imagebuild.models.contract import check as find
    from imagebuild.models.shards import check_weights

    source, locked = read_both(name)
    chosen = source.drafter(drafter)
    if chosen is None:
        raise ManifestError(f"{name} without a drafter: there is nothing to check")
    target, small = _shapes(source, locked, drafter)
    places = (
        target_dir or models_root(root) / source.target.place,
        drafter_dir or models_root(root) / chosen.place,
    )
    read = [place / "config.json" for place in places]
    used = [str(path) if path.is_file() else "images/models" for path in read]
    if read[0].is_file():
        target = target_shape(read_json(read[0]), str(read[0]))
    tensors, damage = None, []
    if read[1].is_file():
        small = drafter_shape(read_json(read[1]), str(read[1]))
        weights = check_weights(places[1])
        tensors = weights.tensors
        damage = [f"{places[1]}/{name}: {text}" for name, texts in weights.problems.items() for text in texts]
    found = find(target, small, Flags(**flags), tensors)
    text = f"target from {used[0]}, drafter from {used[1]}\n{describe(found)}"
    value = {
        "target": used[0],
        "drafter": used[1],
        "violations": [asdict(v) for v in found],
        "damage": damage,
    }
    print_result(as_json, value, text)
    errors = [v for v in found if v.level == "error"]
    if errors or damage:
        raise CheckFailed(
            "\n".join([f"the drafter does not fit: {len(errors)} rules broken", *damage]),
            hint=f"choose another drafter of {name}, correct the flags, or fetch the damaged files",
        )
