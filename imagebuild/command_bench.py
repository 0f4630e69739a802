# SPDX-License-Identifier: Apache-2.0
"""`build.py bench`: run a suite, report a result, compare two. `scripts/bench` is the same."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuild.errors import ManifestError
from imagebuild.files import write_text
from imagebuild.options import Reporter, images_dir, output_options, print_result

if TYPE_CHECKING:
    from imagebuild.bench.server import Server
    from imagebuild.bench.suite import ArmSpec, Suite

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIR = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure served models, recommend a strategy, and tell a change from noise."""


def _urls(values: tuple[str, ...], suite: Suite) -> dict[str, str]:
    urls: dict[str, str] = {}
    for value in values:
        name, _, url = value.partition("=")
        if not url.startswith(("http://", "https://")):
            raise ManifestError(f"--url {value}: not ARM=http://…", hint="--url tp8=http://127.0.0.1:30000")
        urls[suite.arm(name).name] = url.rstrip("/")
    return urls


def _part(suite: Suite, concurrency: tuple[int, ...], repeats: int | None) -> Suite:
    """Return the suite with fewer cells or other repeats; a part has a results folder of its own."""
    change: dict[str, Any] = {}
    if concurrency:
        change["concurrency"] = tuple(sorted(set(concurrency)))
    if repeats:
        change["repeats"] = repeats
    return suite.model_copy(update=change)


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ManifestError(f"{path}: expected a JSON object")
    return value


def _sha256(path: Path | None) -> str:
    from imagebuild.cache import hash_file

    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hash_file(file)[0]


@bench.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Results folder; a re-run goes on."
)
@click.option("--arm", "arms", multiple=True, help="Only this arm (again for more); default: all.")
@click.option("--concurrency", multiple=True, type=click.IntRange(1), help="Only these numbers of users.")
@click.option("--repeats", type=click.IntRange(1), help="Instead of the suite's own number.")
@click.option("--url", "urls", multiple=True, metavar="ARM=URL", help="A server that runs already.")
@click.option("--service-url", default="http://127.0.0.1:30000", help="Where compose services are reached.")
@click.option("--compose-file", type=_FILE, help="Default: compose.yaml of the project.")
@click.option("--load-python", help="For --url: a Python here that has SGLang (inside the image: python).")
@click.option("--load-image", help="For --url: an image that makes the load, in a container of its own.")
@click.option("--tokenizer", type=_DIR, help="For --load-*: the model's tokenizer folder.")
@click.option("--host", "host_file", type=_FILE, help="Host profile (host.json) to keep with the result.")
@click.option("--receipt", type=_FILE, help="The image's receipt; its sha256 is kept with the result.")
@output_options
def run(**given: Any) -> None:
    """Measure what is missing of SUITE (images/bench/NAME.yaml or a file) and write result.json.

    Arms without --url are compose services: started one by one, and stopped again.
    """
    from imagebuild.bench.recommend import advice
    from imagebuild.bench.runner import Setting, run_suite
    from imagebuild.bench.runs import Folder
    from imagebuild.bench.service import Compose
    from imagebuild.bench.suite import read_suite, suite_path
    from imagebuild.models.lockfile import lock_path
    from imagebuild.progress import open_progress

    whole, prompts = read_suite(suite_path(images_dir(), given["suite_name"]))
    suite = _part(whole, given["concurrency"], given["repeats"])
    wanted = [suite.arm(name) for name in given["arms"]] or list(suite.arms)
    urls = _urls(given["urls"], suite)
    services = {arm.compose_service for arm in wanted if arm.name not in urls}
    compose = Compose(given["compose_file"]) if services else None
    if compose is not None:
        compose.require(services)
    where = _where(given, compose)
    with open_progress(quiet=given["quiet"]) as progress:
        setting = Setting(
            suite=suite,
            prompts=prompts,
            folder=Folder(given["out"], suite, prompts),
            urls=urls,
            service_url=given["service_url"],
            where=where,
            compose=compose,
            progress=progress,
            report=Reporter(given["quiet"]),
            host=_read_json(given["host_file"]),
            receipt=_sha256(given["receipt"]),
            weights_lock=_sha256(lock_path(images_dir(), suite.model)),
        )
        result, path = run_suite(setting, wanted)
    lines = advice(result)
    value = {"result": str(path), "complete": result.complete, "advice": lines}
    print_result(given["as_json"], value, "\n".join([*lines, str(path)]))


def _where(given: dict[str, Any], compose: Any) -> Any:
    """Return where the load generator runs for an arm's server."""
    from urllib.parse import urlsplit

    from imagebuild.bench.load import Where, in_image, in_service

    port = urlsplit(given["service_url"]).port or 30000

    def where(arm: ArmSpec, server: Server) -> Where:
        if server.url == given["service_url"].rstrip("/") and compose is not None:
            return in_service(compose.argv, arm.compose_service, port, server.tokenizer())
        tokenizer: Path | None = given["tokenizer"]
        if given["load_python"]:
            return Where((given["load_python"],), server.url, str(tokenizer or server.tokenizer()))
        if given["load_image"] and tokenizer is not None:
            return in_image(given["load_image"], server.url, tokenizer)
        raise ManifestError(
            f"{arm.name}: nothing to make the load with",
            hint="--load-python PYTHON where SGLang is installed, or --load-image IMAGE with --tokenizer DIR",
        )

    return where


@bench.command()
@click.argument("result_path", metavar="RESULT", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default: the result's own.")
@click.option("--no-plots", is_flag=True, help="Tables and text only.")
@output_options
def report(
    result_path: Path, out: Path | None, no_plots: bool, as_json: bool, verbose: int, quiet: bool
) -> None:
    """Write report.md and its plots from a result (a folder or result.json); print the recommendation."""
    from imagebuild.bench.plots import plot_all
    from imagebuild.bench.recommend import advice
    from imagebuild.bench.references import read_references
    from imagebuild.bench.report import report_text
    from imagebuild.bench.result import read_result

    result = read_result(result_path)
    folder = out or (result_path if result_path.is_dir() else result_path.parent)
    folder.mkdir(parents=True, exist_ok=True)
    references = read_references(images_dir() / "bench" / "references.yaml")
    plots = [] if no_plots else plot_all(result, folder)
    about = references if references.about == result.model else None
    write_text(folder / "report.md", report_text(result, about, plots))
    lines = advice(result)
    value = {"report": str(folder / "report.md"), "plots": [name for _, name in plots], "advice": lines}
    print_result(as_json, value, "\n".join([*lines, str(folder / "report.md")]))


@bench.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@output_options
def compare(old: Path, new: Path, as_json: bool, verbose: int, quiet: bool) -> None:
    """Say which figures of two results changed (Welch's t-test, p < 0.05 after Holm, 2 % or more).

    Exit code 1 if a figure got worse.
    """
    from imagebuild.bench.compare import compare as compare_results
    from imagebuild.bench.compare import compare_text
    from imagebuild.bench.result import read_result

    before, after = read_result(old), read_result(new)
    changes = compare_results(before, after)
    print_result(as_json, {"changes": [asdict(c) for c in changes]}, compare_text(changes, before, after))
    if any(change.verdict == "worse" for change in changes):
        raise click.exceptions.Exit(1)
