# SPDX-License-Identifier: Apache-2.0
"""Find the URL of a locked wheel on the host's Python indexes (simple repository API, PEP 503 and 691).

The hash comes from our lock only. An index that states another hash for the file is skipped, and
if no index has the right one that is an error before a byte is downloaded.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

import requests
from packaging.utils import canonicalize_name
from pypi_simple import (
    DistributionPackage,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.hostconf import HostNetwork
from imagebuild.layer.spec import Artifact
from imagebuild.redact import redact, without_credentials
from imagebuild.session import LoginRefused

log = logging.getLogger(__name__)

_HTML = {".html", ".htm"}
# What a page can raise; HTTPError, InvalidURL and JSON errors among them. ValueError: pydantic's too.
_BAD_PAGE = (requests.HTTPError, UnsupportedContentTypeError, UnsupportedRepoVersionError, ValueError)


@dataclass(frozen=True)
class Offer:
    """A file that some index or folder offers. `sha256` is None where the place states none."""

    file: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class _Place:
    shown: str
    offers: Callable[[], Iterator[Offer]]


def find_wheel(artifact: Artifact, host: HostNetwork, session: requests.Session) -> str:
    """Return the URL (http, https or file) of the file with the artifact's name and hash.

    Folders of this host are looked at first, then the main index, then further ones.

    Raises IntegrityError if only files with another hash are offered, PreconditionError if no
    place has the file or an index refuses or cannot be read; requests.RequestException if an
    index could not be reached and no other one has the file.
    """
    different: list[str] = []
    others: set[str] = set()
    trouble: Exception | None = None
    places = list(_places(artifact, host, session))
    for place in places:
        try:
            for offer in place.offers():
                if offer.file != artifact.file:
                    if f"-{artifact.version}-" in offer.file:
                        others.add(offer.file)
                    continue
                if offer.sha256 is None or offer.sha256 == artifact.sha256:
                    return offer.url
                different.append(f"{place.shown} has sha256 {offer.sha256}")
        except (requests.RequestException, ImageBuildError) as error:
            log.debug("%s: %s", place.shown, redact(str(error)))
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    if different:
        raise IntegrityError(
            f"{artifact.file}: the lock has sha256 {artifact.sha256}, but " + "; ".join(different),
            hint="use an index with the locked file (--index-url), or write a new lock: python build.py lock",
        )
    where = ", ".join(place.shown for place in places) or "no index (the host's `no-index` is set)"
    more = f"; offered for this version: {', '.join(sorted(others)[:5])}" if others else ""
    raise PreconditionError(
        f"{artifact.file}: not found on {where}{more}",
        hint="name an index that has it: --index-url URL, or in addition IMAGEBUILD_EXTRA_INDEX_URLS=URL",
    )


def offered_wheels(name: str, version: str, host: HostNetwork, session: requests.Session) -> list[Offer]:
    """Return the wheels of one version of a package that the host's folders and indexes offer.

    Raises PreconditionError if an index refuses or cannot be read, requests.RequestException if
    one could not be reached.
    """
    wanted = Artifact("wheel", name, version, "", "", 0)
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}-"
    offers = (offer for place in _places(wanted, host, session) for offer in place.offers())
    return [offer for offer in offers if offer.file.lower().startswith(stem) and offer.file.endswith(".whl")]


def _places(artifact: Artifact, host: HostNetwork, session: requests.Session) -> Iterator[_Place]:
    """Yield where to look: local folders, then remote ones in their order."""
    project = canonicalize_name(artifact.name)
    remote: list[_Place] = []
    for link in host.find_links:
        if link.startswith(("http://", "https://")):
            remote.append(_Place(without_credentials(link), _bound(_remote_page, link, session)))
        else:
            path = _path(link)
            yield _Place(str(path), _bound(_local, path, artifact.file))
    indexes = [url for url in (host.index_url, *host.extra_index_urls) if url]
    for url in indexes:
        if url.startswith("file:"):
            path = _path(url)
            yield _Place(str(path), _bound(_local, path / project, artifact.file))
    for url in indexes:
        if not url.startswith("file:"):
            yield _Place(without_credentials(url), _bound(_project, url, project, session))
    yield from remote


def _bound(function: Callable[..., Iterator[Offer]], *args: object) -> Callable[[], Iterator[Offer]]:
    return lambda: function(*args)


def _path(link: str) -> Path:
    if link.startswith("file:"):
        return Path(url2pathname(urlsplit(link).path))
    return Path(link).expanduser().absolute()


def _local(path: Path, wanted: str) -> Iterator[Offer]:
    """Yield what a folder or a saved page offers; a missing one offers nothing, as with pip."""
    page = path if path.suffix in _HTML else path / "index.html"
    if page.is_file():
        listed = ProjectPage.from_html("", page.read_bytes(), base_url=page.absolute().as_uri())
        yield from (_offer(package) for package in listed.packages)
    elif (path / wanted).is_file():
        with (path / wanted).open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        yield Offer(wanted, (path / wanted).as_uri(), digest.hexdigest())
    elif path.is_dir():
        yield from (Offer(p.name, p.as_uri(), None) for p in path.iterdir() if p.suffix == ".whl")
    else:
        log.debug("no such folder: %s", path)


def _project(index: str, project: str, session: requests.Session) -> Iterator[Offer]:
    try:
        page = PyPISimple(index, session=session).get_project_page(project)
    except NoSuchProjectError:
        return
    except _BAD_PAGE as error:
        raise _refused(index, error) from error
    yield from (_with_login(_offer(package), index) for package in page.packages)


def _remote_page(url: str, session: requests.Session) -> Iterator[Offer]:
    try:
        response = session.get(url)
        if response.status_code == 404:
            return
        response.raise_for_status()
        page = ProjectPage.from_html("", response.content, base_url=response.url)
    except _BAD_PAGE as error:
        raise _refused(url, error) from error
    yield from (_with_login(_offer(package), url) for package in page.packages)


def _refused(index: str, error: Exception) -> Exception:
    """Return what an index's answer means; server trouble stays as it is, for a retry."""
    shown = without_credentials(index)
    response = error.response if isinstance(error, requests.HTTPError) else None
    status = response.status_code if response is not None else 0
    if status in (401, 403, 407):
        return (PreconditionError if status == 403 else LoginRefused)(
            f"the index {shown} refuses us: HTTP {status}",
            hint="put the user name and password into ~/.netrc or into the index URL of pip's configuration",
        )
    if status >= 500 or status in (408, 425, 429):
        return error
    return PreconditionError(
        f"the index {shown} does not answer as a Python index: {redact(str(error))}",
        hint="give the URL of its simple API (it often ends in /simple): --index-url URL",
    )


def _offer(package: DistributionPackage) -> Offer:
    name = unquote(urlsplit(package.url).path.rpartition("/")[2])
    digest = package.digests.get("sha256")
    return Offer(name, package.url, digest.lower() if digest else None)


def _with_login(offer: Offer, index: str) -> Offer:
    """Give the index's own user name and password to files on the same host, as pip does."""
    ours, theirs = urlsplit(index), urlsplit(offer.url)
    login, _, netloc = ours.netloc.rpartition("@")
    if not login or theirs.netloc != netloc or theirs.scheme != ours.scheme:
        return offer
    url = urlunsplit(theirs._replace(netloc=f"{login}@{netloc}"))
    return Offer(offer.file, url, offer.sha256)
