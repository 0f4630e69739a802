# SPDX-License-Identifier: Apache-2.0
"""What a hub says: a repo's commit and files, and where one file's bytes are. No other module asks it.

The endpoint is HF_ENDPOINT or huggingface_hub's own, the token HF_TOKEN, HF_TOKEN_PATH or the one that
`hf auth login` stored. Tokens appear in no message, log or repr.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from imagebuild.errors import ImageBuildError, IntegrityError, ManifestError, PreconditionError
from imagebuild.redact import redact, without_credentials

T = TypeVar("T")

# Read when huggingface_hub is imported, which only functions of this package do: no word to anybody about
# what runs here, and no request beside those that were asked for.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_ATTEMPTS = 5
_MAX_WAIT_S = 120.0
_TIMEOUT_S = 30.0
_REACH_S = 10.0


@dataclass(frozen=True)
class Hub:
    """Where to ask, as whom, and how long to wait after the first failure (doubling)."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    pause_s: float = 1.0


@dataclass(frozen=True)
class HubFile:
    """One file as the hub lists it: `sha256` None for files in git itself, whose `blob` is the git id."""

    path: str
    size: int
    sha256: str | None
    blob: str


@dataclass(frozen=True)
class Snapshot:
    """A repo at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


@dataclass(frozen=True)
class Remote:
    """Where one file's bytes are: `url` at the hub, which redirects, or a Xet hash and its token's URL."""

    url: str
    commit: str
    etag: str
    size: int | None
    xet_hash: str = ""
    xet_route: str = field(default="", repr=False)


def open_hub(token_file: Path | None = None) -> Hub:
    """Return the hub as the environment says. Raises ManifestError if the token file cannot be read."""
    from huggingface_hub import constants, get_token

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        shown = without_credentials(endpoint)
        raise ManifestError(f"HF_ENDPOINT: {shown} is no http or https URL", hint="unset it, or correct it")
    if token_file is None:
        return Hub(endpoint, os.environ.get("HF_TOKEN", "").strip() or get_token() or None)
    try:
        token = token_file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ManifestError(f"--token-file {token_file}: cannot be read: {error}") from None
    if not token or len(token.split()) != 1:
        raise ManifestError(f"--token-file {token_file}: expected one token and nothing else")
    return Hub(endpoint, token)


def reach(hub: Hub, repo: str, revision: str) -> str:
    """Ask once, without patience, and return the commit of a revision. Raises as `snapshot` does."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="imagebuild")
    try:
        with _explained(hub, f"{repo} at {revision}"):
            return api.model_info(repo, revision=revision, timeout=_REACH_S).sha or ""
    except _Passing as trouble:
        raise trouble.error from trouble.__cause__


def snapshot(hub: Hub, repo: str, revision: str) -> Snapshot:
    """Resolve a revision to its commit and list the files there.

    Raises PreconditionError (no network, no access, no such repo), IntegrityError (no such revision).
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="imagebuild")

    def ask() -> Snapshot:
        commit = api.model_info(repo, revision=revision, timeout=_TIMEOUT_S).sha
        if not commit:
            raise PreconditionError(f"{repo}: the hub names no commit for {revision}")
        entries = api.list_repo_tree(repo, recursive=True, revision=commit)
        files = tuple(_file(entry) for entry in entries if isinstance(entry, RepoFile))
        return Snapshot(repo, commit, files)

    return _patiently(hub, f"{repo} at {revision}", ask)


def _file(entry: Any) -> HubFile:
    lfs = entry.lfs
    return HubFile(
        path=entry.path,
        size=lfs.size if lfs else entry.size,
        sha256=lfs.sha256 if lfs else None,
        blob=entry.blob_id,
    )


def locate(hub: Hub, repo: str, commit: str, path: str) -> Remote:
    """Ask where a file's bytes are, as `hf download` does (HEAD on its resolve URL).

    Raises PreconditionError, or IntegrityError if the hub has no such file or commit.
    """
    from huggingface_hub import get_hf_file_metadata

    url = file_url(hub, repo, commit, path)

    def ask() -> Remote:
        found = get_hf_file_metadata(
            url, token=hub.token or False, timeout=_TIMEOUT_S, endpoint=hub.endpoint
        )  # fmt: skip
        xet = found.xet_file_data
        return Remote(
            url=url,
            commit=found.commit_hash or "",
            etag=found.etag or "",
            size=found.size,
            xet_hash=xet.file_hash if xet else "",
            xet_route=xet.refresh_route if xet else "",
        )

    return _patiently(hub, f"{repo}/{path} at {commit[:12]}", ask)


def file_url(hub: Hub, repo: str, commit: str, path: str) -> str:
    """Return the URL that a file's bytes are asked for at."""
    from huggingface_hub import constants, hf_hub_url

    url = hf_hub_url(repo, path, revision=commit)
    return hub.endpoint + url.removeprefix(constants.ENDPOINT)


def cached_blob(repo: str, sha256: str) -> Path:
    """Return where huggingface_hub's own cache has a file of this hash, if it has it."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "blobs" / sha256


def xet_off() -> bool:
    """Tell whether the user has switched Xet off (HF_HUB_DISABLE_XET)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_DISABLE_XET)


# --- trouble ----------------------------------------------------------------------------------


def _patiently(hub: Hub, what: str, ask: Callable[[], T]) -> T:
    """Ask again after trouble that may pass; a hub's Retry-After is kept to."""
    for attempt in range(_ATTEMPTS):
        try:
            with _explained(hub, what):
                return ask()
        except _Passing as trouble:
            if attempt == _ATTEMPTS - 1:
                raise trouble.error from trouble.__cause__
            time.sleep(min(max(hub.pause_s * 2**attempt, trouble.after_s), _MAX_WAIT_S))
    raise AssertionError


class _Passing(Exception):
    """Trouble that may pass; `error` is what the user is told if it does not."""

    def __init__(self, error: ImageBuildError, after_s: float = 0) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


@contextmanager
def _explained(hub: Hub, what: str) -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise PreconditionError(
            f"{what}: HF_HUB_OFFLINE is set",
            hint="unset it, or use --from DIR with a folder that has the files",
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        told = _told(hub, what, error, status)
        if status in _AGAIN:
            after = error.response.headers.get("Retry-After", "")
            raise _Passing(told, float(after) if after.isdigit() else 0) from error
        raise told from error
    except (errors.HFValidationError, errors.FileMetadataError) as error:
        raise PreconditionError(f"{what}: {_clean(hub, error)}", hint="is HF_ENDPOINT a hub?") from error
    except Exception as error:
        # huggingface_hub 1.x speaks through httpx, 2.x through httpx2; neither is a dependency of ours.
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise
        told = PreconditionError(
            f"{what}: {without_credentials(hub.endpoint)} does not answer: {_clean(hub, error)}",
            hint="check network, HTTPS_PROXY, SSL_CERT_FILE and HF_ENDPOINT; without network: --from DIR",
        )
        raise _Passing(told) from error


def _told(hub: Hub, what: str, error: Exception, status: int) -> ImageBuildError:
    from huggingface_hub import errors

    login = "log in with `hf auth login`, or set HF_TOKEN or --token-file"
    if isinstance(error, errors.GatedRepoError):
        return PreconditionError(
            f"{what}: gated (HTTP {status}): its owner wants you to accept terms first",
            hint=f"accept them on the repo's page, then {login}" if not hub.token
            else "accept them on the repo's page with the account of your token; fine-grained tokens "
            "also need the right to read gated repos",
        )  # fmt: skip
    if isinstance(error, errors.RevisionNotFoundError):
        hint = "the commit was removed: `python build.py models lock` takes the present one"
        return IntegrityError(f"{what}: the repo has no such revision (HTTP {status})", hint=hint)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        hint = "`python build.py models lock` reads the list anew"
        return IntegrityError(f"{what}: the commit has no such file (HTTP {status})", hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        who = "your token has no right to read it" if hub.token else "it is private, or does not exist"
        return PreconditionError(f"{what}: no access (HTTP {status}): {who}", hint=login)
    if status == 429:
        hint = "wait some minutes and run again; with a token (HF_TOKEN) the hub allows more"
        return PreconditionError(f"{what}: the hub says too many requests (HTTP 429)", hint=hint)
    return PreconditionError(f"{what}: HTTP {status}: {_clean(hub, error)}", hint="run again later")


def _clean(hub: Hub, error: Exception) -> str:
    """Return an error's first line without secrets."""
    text = redact(str(error).strip().partition("\n")[0]) or type(error).__name__
    return text.replace(hub.token, "***") if hub.token else text
