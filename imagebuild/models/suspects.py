# SPDX-License-Identifier: Apache-2.0
"""Ask the hub about the repos that a folder may have come from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagebuild.errors import ImageBuildError
from imagebuild.models.clues import Clues
from imagebuild.models.hub import Hub, snapshot
from imagebuild.models.known import Known, from_hub

MAX_ASKED = 8
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def suspects(clues: Clues, known: Iterable[Known]) -> list[str]:
    """Return repos worth asking about: named by traces, config or README, then those with the same shape."""
    base = clues.front.get("base_model")
    named = [clues.trace.repo, clues.name_or_path, *(base if isinstance(base, list) else [base])]
    found = [name for name in named if isinstance(name, str) and _REPO.fullmatch(name)]
    for one in known:
        if clues.shape is not None and type(one.shape) is type(clues.shape):
            found += [one.repo, *one.lookalikes]
    return list(dict.fromkeys(found))[:MAX_ASKED]


def ask(hub: Hub, clues: Clues, known: list[Known]) -> tuple[list[Known], list[str]]:
    """Return what the hub has of each suspect, and why it told nothing of others.

    The commit of a trace is asked for too, since a folder may be older than the newest commit.
    """
    by_repo = {one.repo: one for one in known}
    out: list[Known] = []
    notes: list[str] = []
    for repo in suspects(clues, known):
        for revision in [clues.trace.commit, "main"] if clues.trace.commit else ["main"]:
            try:
                out.append(from_hub(snapshot(hub, repo, revision), by_repo.get(repo)))
            except ImageBuildError as error:
                notes.append(f"the hub told nothing of {repo} at {revision}: {error.message}")
    return out, notes
