# SPDX-License-Identifier: Apache-2.0
"""Is there room for the model, how much of it is there already, and does the hub answer?"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from imagebuild.errors import ImageBuildError
from imagebuild.host.facts import HubAnswer, Storage
from imagebuild.models import hub as hub_module
from imagebuild.models.lockfile import ModelLock, repo_files
from imagebuild.models.room import look
from imagebuild.models.source import ModelSource


def read_storage(source: ModelSource, lock: ModelLock | None, drafter: str | None, folder: Path) -> Storage:
    """Return sizes of the target and one drafter, and the room below the models folder."""
    names = ["target", *([drafter] if drafter else [])]
    needed = present = 0
    for name in names:
        repo = source.repos()[name]
        size = repo_files(repo, lock.repo(name) if lock else None)
        needed += size
        present += min(size, _bytes(folder / repo.place))
    room = look(folder)
    return Storage(str(folder), needed, present, room.free, room.inodes, room.quota)


def _bytes(folder: Path) -> int:
    """Return what a folder's files hold, unfinished ones of `models fetch` included, as far as readable."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def ask_hub(source: ModelSource, token_file: Path | None = None) -> HubAnswer:
    """Ask the hub once for the model's repo. The answer holds no token and no credentials."""
    try:
        hub = hub_module.open_hub(token_file)
        commit = hub_module.reach(hub, source.target.repo, source.target.revision)
    except ImageBuildError as error:
        return HubAnswer(answers=False, detail=error.message)
    return HubAnswer(answers=True, detail=f"{source.target.repo} is at commit {commit[:12]}")
