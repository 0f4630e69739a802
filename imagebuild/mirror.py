# SPDX-License-Identifier: Apache-2.0
"""Where Debian packages come from: the mirrors of this host, and the URLs of one locked package.

A lock names pool paths, never hosts; this module is the only place where both meet.

How a locked version that Debian has superseded is still found: Debian's main archive keeps the packages of
old point releases, and a point release moves security updates into it under the same file name (only
`pool/updates/main/...` becomes `pool/main/...`). So after the mirror a package was locked from, the other
one is tried. Between two point releases a superseded security update is on no mirror at all; only a snapshot
service (layout of Debian's: `<base>/archive/<archive>/<timestamp>/<pool path>`) still has it, and its user
names that base. The timestamp is the time the lock was made, when the version was current.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.layer.spec import Artifact

# Debian releases a host or an image can have, and their aliases; Ubuntu's code names are not among them.
_RELEASES = "buster|bullseye|bookworm|trixie|forky|duke|sid|oldoldstable|oldstable|stable|testing|unstable"
_SUITE = re.compile(rf"(?:{_RELEASES})(?P<part>-updates|-security|/updates|-proposed-updates|-backports)?/?")
_HINT = (
    "give --debian-mirror URL, set IMAGEBUILD_DEBIAN_MIRROR, or set debian_mirror in the user configuration "
    "(for example http://deb.example.org/debian)"
)
_SECURITY_HINT = (
    "give --debian-security-mirror URL, set IMAGEBUILD_DEBIAN_SECURITY_MIRROR, or set debian_security_mirror "
    "in the user configuration"
)


@dataclass(frozen=True)
class Mirrors:
    """Base URLs (no trailing slash) of the Debian archive and of its security archive."""

    archive: str
    security: str


@dataclass(frozen=True)
class Source:
    """One enabled `deb` entry of apt's sources: a base URL and one of its suites."""

    url: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""


def find_mirrors(
    *, option: str | None, security_option: str | None, apt_dir: Path = Path("/etc/apt")
) -> Mirrors:
    """Return the Debian mirrors to use: the caller's options first, then the host's own apt sources.

    `option` and `security_option` are already merged from command line, environment and configuration. A
    security mirror that nothing names is assumed beside an archive whose URL ends in `/debian`, at
    `/debian-security`, as Debian's mirrors have it.

    Raises ManifestError for an option that is no http(s) or file URL, PreconditionError if a mirror is
    neither given nor found.
    """
    archive = _checked(option, "--debian-mirror")
    security = _checked(security_option, "--debian-security-mirror")
    if archive is None:
        sources = [source for source in apt_sources(apt_dir) if _is_debian(source)]
        archive = _first(sources, ("", "-updates", "-proposed-updates", "-backports"))
        if security is None:
            security = _first(sources, ("-security", "/updates"))
    if archive is None:
        raise PreconditionError(f"no Debian mirror: none given, and {apt_dir} names none", hint=_HINT)
    if security is None and archive.endswith("/debian"):
        security = archive + "-security"
    if security is None:
        raise PreconditionError(
            f"no Debian security mirror: none given, {apt_dir} names none, and the archive mirror's URL does "
            "not end in /debian, so its neighbour cannot be assumed",
            hint=_SECURITY_HINT,
        )
    return Mirrors(archive, security)


def urls_for(
    artifact: Artifact, mirrors: Mirrors, snapshot: str | None = None, created: str = ""
) -> tuple[str, ...]:
    """Return the URLs that can hold a locked .deb, most likely first.

    First the mirror of the suite it was locked from, then the other one (see the module's text), then the
    snapshot service at `snapshot`, if given, for the time `created` (the lock's, `2026-12-01T00:00:00Z`).
    The sha256 in the lock decides whether what an URL gives is the package.
    """
    plain = re.sub(r"^pool/updates/", "pool/", artifact.path)
    updates = re.sub(r"^pool/", "pool/updates/", plain)
    places = [("debian", mirrors.archive, plain), ("debian-security", mirrors.security, updates)]
    if artifact.suite.endswith(("-security", "/updates")):
        places.reverse()
    urls = [f"{base}/{path}" for _, base, path in places]
    if snapshot:
        stamp = re.sub(r"[-:]", "", created)
        if not re.fullmatch(r"\d{8}T\d{6}Z", stamp):
            raise ManifestError(
                f"{artifact.file}: a snapshot needs the lock's time as 2026-12-01T00:00:00Z, not {created!r}"
            )
        urls += [f"{snapshot.rstrip('/')}/archive/{name}/{stamp}/{path}" for name, _, path in places]
    return tuple(urls)


def apt_sources(apt_dir: Path) -> list[Source]:
    """Return the enabled binary sources of `sources.list` and `sources.list.d`, in apt's order.

    Both formats are read (see sources.list(5)): one line per entry in `*.list`, deb822 stanzas in
    `*.sources`. A `mirror+file:` URL stands for the first mirror in its file. Unreadable files are left out.
    """
    parts = apt_dir / "sources.list.d"
    files = [apt_dir / "sources.list"]
    if parts.is_dir():
        files += sorted(p for p in parts.iterdir() if p.suffix in (".list", ".sources"))
    found: list[Source] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        found += _deb822(text) if file.suffix == ".sources" else _one_line(text)
    return found


def _one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)([^#]*)", line)
        if match is None:
            continue
        options, uri, suite, rest = match.groups()
        signed = re.search(r"signed-by=(\S+)", options or "", re.IGNORECASE)
        for url in _urls([uri]):
            yield Source(url, suite, tuple(rest.split()), signed.group(1) if signed else "")


def _deb822(text: str) -> Iterator[Source]:
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[key] = fields.get(key, "") + " " + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without", "disable"):
            continue
        components = tuple(fields.get("components", "").split())
        for url in _urls(fields.get("uris", "").split()):
            for suite in fields.get("suites", "").split():
                yield Source(url, suite, components, fields.get("signed-by", "").strip())


def _urls(uris: Iterable[str]) -> Iterator[str]:
    for uri in uris:
        if uri.startswith(("http://", "https://", "file:")):
            yield uri.rstrip("/")
        elif uri.startswith("mirror+file:"):
            try:
                lines = Path(re.sub("^mirror[+]file:(//)?", "", uri)).read_text(errors="replace").splitlines()
            except OSError:
                continue
            listed = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
            yield from list(_urls(listed))[:1]


def _is_debian(source: Source) -> bool:
    """Tell Debian's own archives from others that use Debian's suite names (they bring their own key)."""
    ours = all("debian-archive" in word for word in source.signed_by.split() if word.startswith("/"))
    return (
        _SUITE.fullmatch(source.suite) is not None
        and "main" in source.components
        and ours
        and "BEGIN PGP" not in source.signed_by
    )


def _first(sources: Iterable[Source], parts: tuple[str, ...]) -> str | None:
    """Return the URL of the first source whose suite ends in one of `parts`, earlier parts preferred."""
    for wanted in parts:
        for source in sources:
            match = _SUITE.fullmatch(source.suite)
            if match is not None and (match.group("part") or "") == wanted:
                return source.url
    return None


def _checked(url: str | None, option: str) -> str | None:
    if not url:
        return None
    if not re.match(r"(https?://[^/\s]+|file:/)\S*$", url):
        raise ManifestError(
            f"{option}: {url!r} is not a mirror's URL; allowed: http://, https:// or file:/ and a path",
            hint=_HINT,
        )
    return url.rstrip("/")
