# SPDX-License-Identifier: Apache-2.0
"""`build.py models`: fetch, lock and verify; the commands that only look are in command_models_facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuild.command_models_facts import check, identify, plan
from imagebuild.errors import IntegrityError
from imagebuild.files import write_text
from imagebuild.model_options import (
    chosen,
    dir_option,
    drafter_option,
    from_option,
    jobs_option,
    models_root,
    name_argument,
    now,
    read_both,
    settings_with,
    share_network,
    token_option,
)
from imagebuild.options import images_dir, output_options, print_result
from imagebuild.settings import Settings

WORD = "unlocked"

if TYPE_CHECKING:
    from imagebuild.models.hub import Hub
    from imagebuild.models.lockfile import LockedRepo, ModelLock
    from imagebuild.models.source import ModelSource


@click.group()
def models() -> None:
    """Fetch, lock, check and identify the models that a server loads. NAME is images/models/NAME.yaml."""


# --- lock -------------------------------------------------------------------------------------


@models.command()
@name_argument
@click.option("--drafter", "drafters", multiple=True, help="Lock this drafter too; default: the first.")
@click.option("--all", "everything", is_flag=True, help="Lock every drafter.")
@from_option
@dir_option
@token_option
@jobs_option
@output_options
def lock(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: str,
    drafters: tuple[str, ...],
    everything: bool,
    source_dir: Path | None,
    root: Path | None,
    token_file: Path | None,
    jobs: int | None,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Resolve each repo to a commit and write every file's size and sha256 to images/models/NAME.lock.

    With --from the hashes are those of a folder that you trust (DIR/<repo> or DIR itself).
    """
    from imagebuild.models.lockfile import ModelLock, changes, lock_path, read_lock, render_lock
    from imagebuild.models.source import read_source, source_inputs
    from imagebuild.progress import open_progress

    source = read_source(images_dir(), name)
    path = lock_path(images_dir(), name)
    old = read_lock(path)
    known = {repo.name for repo in old.repos} if old else set()
    wanted = set(source.repos()) if everything else {*chosen(source, None), *drafters, *known}
    for drafter in drafters:
        source.drafter(drafter)
    settings = settings_with(jobs)
    with open_progress(quiet=quiet) as progress:
        repos = [
            _pin(source, repo, source_dir, settings, token_file, progress)
            for repo in source.repos() if repo in wanted
        ]  # fmt: skip
    new = ModelLock(schema=1, name=name, created=now(), inputs=source_inputs(source), repos=tuple(repos))
    lines = changes(old, new)
    if lines or old is None or old.inputs != new.inputs:
        write_text(path, render_lock(new))
    total = "\n".join(
        f"{r.repo} {r.commit or '(from a folder)'}: {len(r.files)} files, {r.total} bytes" for r in repos
    )
    text = f"{path}: {'written' if lines else 'up to date'}\n{total}" + "".join(f"\n  {x}" for x in lines)
    commits = {r.name: {"repo": r.repo, "commit": r.commit, "bytes": r.total} for r in repos}
    print_result(as_json, {"lock": str(path), "changes": lines, "repos": commits}, text)


def _pin(
    source: ModelSource,
    name: str,
    folder: Path | None,
    settings: Settings,
    token_file: Path | None,
    progress: Any,
) -> LockedRepo:
    from imagebuild.models.hub import open_hub
    from imagebuild.models.pin import pin_at_hub, pin_folder

    repo = source.repos()[name]
    if folder is not None:
        inner = folder / repo.place
        return pin_folder(name, repo, inner if inner.is_dir() else folder, progress=progress)
    share_network(settings)
    return pin_at_hub(name, repo, open_hub(token_file), settings, progress=progress)


# --- fetch ------------------------------------------------------------------------------------


@models.command()
@name_argument
@drafter_option
@dir_option
@from_option
@click.option(f"--{WORD}", is_flag=True, help="Fetch without a lock what the hub has now, and trust it.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and whether there is room.")
@token_option
@jobs_option
@output_options
def fetch(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: str,
    drafter: str | None,
    root: Path | None,
    source_dir: Path | None,
    unlocked: bool,
    dry_run: bool,
    token_file: Path | None,
    jobs: int | None,
    as_json: bool,
    verbose: int,
    quiet: bool,
) -> None:
    """Bring the target and a drafter, check every byte, and go on where an earlier run stopped."""
    from imagebuild.models import fetch as fetching
    from imagebuild.models.hub import open_hub
    from imagebuild.models.verify import describe, require, verify
    from imagebuild.progress import open_progress, size_text

    source, locked = read_both(name)
    names, settings, folder = chosen(source, drafter), settings_with(jobs), models_root(root)
    hub = open_hub(token_file) if source_dir is None else None
    if hub is not None:
        share_network(settings)
    with open_progress(quiet=quiet) as progress:
        repos = _locked(source, locked, names, unlocked, hub, settings, progress)
        wanted = [
            fetching.Wanted(
                repo, folder / source.repos()[repo.name].place, (source_dir,) if source_dir else ()
            )
            for repo in repos
        ]
        if dry_run:
            need = fetching.missing_bytes(wanted)
            fetching.check_room(wanted)
            text = f"{size_text(need)} to fetch into {folder}; there is room"
            print_result(as_json, {"bytes": need, "dir": str(folder)}, text)
            return
        done = fetching.fetch(wanted, settings, hub, progress=progress)
        reports = [verify(want.folder, want.repo, progress=progress) for want in wanted]
    require(reports, name)
    text = "\n".join(describe(report) for report in reports)
    text += f"\n{done.files} files, {size_text(done.size)} fetched; {done.there} were there"
    value = {
        "fetched": {"files": done.files, "bytes": done.size},
        "folders": {report.repo.name: str(report.folder) for report in reports},
        "commits": {report.repo.name: report.repo.commit for report in reports},
    }
    print_result(as_json, value, text)


def _locked(
    source: ModelSource, lock: ModelLock | None, names: list[str], unlocked: bool, hub: Hub | None,
    settings: Settings, progress: Any,
) -> list[LockedRepo]:  # fmt: skip
    """Return the repos as locked; those that are not need the user's explicit word."""
    found = {name: lock.repo(name) if lock else None for name in names}
    bare = [name for name, repo in found.items() if repo is None]
    if bare and not (unlocked or _asked(source, bare)):
        what = ", ".join(source.repos()[name].repo for name in bare)
        raise IntegrityError(
            f"no lock for {what}: nothing says which bytes are right",
            hint=f"python build.py models lock {source.name}; or say --{WORD} to take what the hub has now",
        )
    if bare and hub is None:
        raise IntegrityError(
            "a folder without a lock cannot be checked",
            hint=f"python build.py models lock {source.name} --from DIR",
        )
    from imagebuild.models.pin import pin_at_hub

    for name in bare:
        assert hub is not None
        repo = pin_at_hub(name, source.repos()[name], hub, settings, progress=progress)
        progress.say(f"{repo.repo}: not locked; taking commit {repo.commit}")
        found[name] = repo
    return [repo for repo in found.values() if repo is not None]


def _asked(source: ModelSource, bare: list[str]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    repos = ", ".join(source.repos()[name].repo for name in bare)
    text = f'{repos}: no lock. Type "{WORD}" to take what the hub has now'
    return bool(click.prompt(text, default="", show_default=False, err=True) == WORD)


# --- verify -----------------------------------------------------------------------------------


@models.command()
@name_argument
@drafter_option
@dir_option
@click.option("--full", is_flag=True, help="Hash every byte, whatever an earlier check has seen.")
@output_options
def verify(
    name: str, drafter: str | None, root: Path | None, full: bool, as_json: bool, verbose: int, quiet: bool
) -> None:
    """Compare the folders with the lock: all bytes at first, quickly afterwards. Exit 4 if not right."""
    from imagebuild.models.verify import describe, require
    from imagebuild.models.verify import verify as check
    from imagebuild.progress import open_progress

    source, locked = read_both(name)
    repos = [locked.repo(n) if locked else None for n in chosen(source, drafter)]
    missing = [n for n, repo in zip(chosen(source, drafter), repos, strict=True) if repo is None]
    if missing:
        raise IntegrityError(
            f"no lock for {', '.join(missing)}: nothing says which bytes are right",
            hint=f"python build.py models lock {name}",
        )
    with open_progress(quiet=quiet) as progress:
        reports = [
            check(models_root(root) / source.repos()[repo.name].place, repo, full=full, progress=progress)
            for repo in repos if repo is not None
        ]  # fmt: skip
    require(reports, name)
    value = {
        report.repo.name: {
            "folder": str(report.folder), "commit": report.repo.commit, "files": len(report.findings),
            "hashed": sum(f.hashed for f in report.findings), "bytes": report.repo.total,
            "extra": list(report.extra),
        }
        for report in reports
    }  # fmt: skip
    print_result(as_json, value, "\n".join(describe(report) for report in reports))


for command in (identify, plan, check):
    models.add_command(command)
