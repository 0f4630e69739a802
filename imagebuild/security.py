# SPDX-License-Identifier: Apache-2.0
"""Say which security advisories a refreshed Debian lock brings, from the packages' own changelogs."""

from __future__ import annotations

from imagebuild.debian import security_changes
from imagebuild.fetch import fetch
from imagebuild.layer.deb import Deb, Spool, read_deb
from imagebuild.layer.spec import Artifact
from imagebuild.locking import Refreshed
from imagebuild.progress import open_progress
from imagebuild.settings import Settings


def security_report(refreshed: Refreshed, settings: Settings, quiet: bool) -> list[str]:
    """Return one line per package whose new version names advisories; fetches those packages.

    Nothing for a Python lock or a first lock. Raises as `fetch` does.
    """
    if refreshed.job.kind != "debian" or refreshed.old is None:
        return []
    before = {(a.name, a.version) for a in refreshed.old.artifacts}
    names = {a.name for a in refreshed.old.artifacts}
    changed = [a for a in refreshed.new.artifacts if a.name in names and (a.name, a.version) not in before]
    if not changed:
        return []
    with open_progress(quiet=quiet) as progress, Spool() as spool:
        store = fetch(changed, settings, source=None, created=refreshed.new.created, progress=progress)

        def open_deb(artifact: Artifact) -> Deb:
            return read_deb(store.path(artifact.sha256), spool)

        found = security_changes(refreshed.old.artifacts, refreshed.new.artifacts, open_deb)
    return [
        f"{change.name} {change.old} -> {change.new}: {', '.join(change.advisories)}"
        for change in found
        if change.advisories
    ]
