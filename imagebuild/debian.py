# SPDX-License-Identifier: Apache-2.0
"""Choose Debian packages: names in, exact files out, by the host's apt with a private state.

apt decides versions and dependencies and checks the archive's signature. It sees none of the host's sources,
pins or installed packages; only its network settings (proxies, certificates, credentials) are the host's.
"""

from __future__ import annotations

import gzip
import re
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imagebuild import process
from imagebuild.errors import BuildError, IntegrityError, ManifestError, PreconditionError
from imagebuild.layer.deb import Deb, parse_stanzas
from imagebuild.layer.spec import Artifact
from imagebuild.mirror import Mirrors

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# `#clear` removes the host's hooks, which would run its own programs on our private state; ForceEssential
# would otherwise add apt itself.
_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Default-Release;
#clear APT::Architectures;
#clear DPkg::Pre-Install-Pkgs;
pkgCacheGen::ForceEssential ",";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}/cache";
Dir::Etc::sourcelist "{state}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
"""
_URI_LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+)(?: \S+)?")


@dataclass(frozen=True)
class PackageChange:
    """What a new lock changes for one package.

    `old` or `new` is empty where the package is new or gone. `advisories` are the CVE and DSA/DLA ids that
    the new package's changelog names for the versions above the old one, sorted.
    """

    name: str
    old: str
    new: str
    advisories: tuple[str, ...] = ()


def find_keyring(path: Path = KEYRING) -> Path:
    """Return the host's Debian archive keyring.

    Raises PreconditionError if the host has none.
    """
    if not path.is_file():
        raise PreconditionError(
            f"no Debian archive keyring at {path}, so the packages' signature cannot be checked",
            hint="install the package debian-archive-keyring (Debian and Ubuntu have it)",
        )
    return path


def resolve_packages(
    packages: Iterable[str], *, release: str, architecture: str, mirrors: Mirrors, keyring: Path
) -> tuple[Artifact, ...]:
    """Return Debian's Essential packages, `packages` and all they depend on, sorted by name.

    Of a version that several suites have, the first of release, -updates and -security is named: the main
    archive keeps old versions, the security archive does not. Recommended packages are left out.

    Raises PreconditionError if apt is missing or the mirrors do not answer, ManifestError if a package does
    not exist or cannot be installed, IntegrityError if apt chose a file that no signed index lists.
    """
    wanted = sorted(set(packages))
    for name in wanted:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
            raise ManifestError(f"{name!r} is not a Debian package name")
    suites = (release, f"{release}-updates", f"{release}-security")
    with tempfile.TemporaryDirectory(prefix="imagebuild-apt-") as folder:
        state = Path(folder)
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache" / "archives" / "partial").mkdir(parents=True)
        (state / "status").touch()
        (state / "apt.conf").write_text(_CONFIG.format(architecture=architecture, state=state))
        lines = [
            f"deb [signed-by={keyring} arch={architecture}] "
            f"{mirrors.security if suite.endswith('-security') else mirrors.archive} {suite} main\n"
            for suite in suites
        ]
        (state / "sources.list").write_text("".join(lines))
        # -c is read after the host's configuration; APT_CONFIG would be read before it.
        apt = ("apt-get", "-c", str(state / "apt.conf"), "-qq")
        _apt((*apt, "update"), PreconditionError, "apt could not read the Debian mirrors")
        listing = _apt(
            (*apt, "install", "--print-uris", "?essential", *wanted),
            ManifestError,
            f"apt cannot install the base packages for {release}/{architecture}",
        )
        index = _read_indexes(state / "lists", suites)
    return _artifacts(listing, index)


def security_changes(
    old: Iterable[Artifact], new: Iterable[Artifact], open_deb: Callable[[Artifact], Deb]
) -> tuple[PackageChange, ...]:
    """Return what changed between two locks, sorted by package name.

    `open_deb` reads a .deb of the new lock; it is called for changed packages only.
    """
    before = {a.name: a.version for a in old if a.kind == "deb"}
    after = {a.name: a for a in new if a.kind == "deb"}
    changed = [a for name, a in after.items() if before.get(name, a.version) != a.version]
    debs = {a.name: open_deb(a) for a in changed}
    # Packages of one source often share one changelog, by a link to the package that has it.
    texts: dict[str, str] = {}
    for name, deb in debs.items():
        texts[_source(deb)] = texts.get(_source(deb), "") or changelog(name, deb)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        was = before.get(name, "")
        now = after[name].version if name in after else ""
        if was != now:
            ids = advisories(texts[_source(debs[name])], was) if name in debs else ()
            changes.append(PackageChange(name, was, now, ids))
    return tuple(changes)


def changelog(name: str, deb: Deb) -> str:
    """Return the text of a package's Debian changelog, or nothing if it ships none of its own."""
    files = {entry.path: entry for entry in deb.entries if entry.kind == "file"}
    for file in ("changelog.Debian.gz", "changelog.gz"):  # the second in packages made for Debian only
        entry = files.get(f"usr/share/doc/{name}/{file}")
        if entry is not None:
            return gzip.decompress(entry.read()).decode(errors="replace")
    return ""


def _source(deb: Deb) -> str:
    return deb.fields.get("Source", deb.fields["Package"]).split()[0]


def advisories(text: str, above: str) -> tuple[str, ...]:
    """Return the CVE, DSA and DLA ids that a Debian changelog names before (newer than) version `above`.

    A changelog that does not hold `above` gives nothing: which entries are new would be a guess. A rebuild
    (`+b1`) has the changelog of what was rebuilt.
    """
    version = re.escape(re.sub(r"\+b\d+$", "", above))
    end = re.search(rf"^\S+ \({version}\) ", text, re.MULTILINE)
    if end is None:
        return ()
    return tuple(sorted(set(re.findall(r"CVE-\d{4}-\d{4,}|D[SL]A-\d+-\d+", text[: end.start()]))))


def _apt(argv: Sequence[str], error: type[Exception], what: str) -> str:
    try:
        return process.output(argv, env={"LC_ALL": "C"})
    except PreconditionError as missing:
        raise PreconditionError(
            "apt-get is not installed; choosing Debian packages needs it",
            hint="lock on a Debian or Ubuntu host; building from an existing lock needs no apt",
        ) from missing
    except BuildError as failed:
        raise error(f"{what}\n{failed.message}") from failed


def _read_indexes(lists: Path, suites: Sequence[str]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return pool path -> (suite, index stanza), the first suite that has it."""
    index: dict[str, tuple[str, dict[str, str]]] = {}
    for suite in suites:
        for file in sorted(lists.glob(f"*_dists_{suite}_main_binary-*_Packages")):
            for stanza in parse_stanzas(file.read_text()):
                index.setdefault(stanza["Filename"], (suite, stanza))
    return index


def _artifacts(listing: str, index: dict[str, tuple[str, dict[str, str]]]) -> tuple[Artifact, ...]:
    # A point release moves pool/updates/main/x to pool/main/x: find a chosen file under either name.
    by_hash: dict[str, tuple[str, dict[str, str]]] = {}
    for found in index.values():
        by_hash.setdefault(found[1]["SHA256"], found)
    artifacts = []
    for uri in _uris(listing):
        match = next((found for path, found in index.items() if uri.endswith("/" + path)), None)
        if match is None:
            raise IntegrityError(f"apt chose {PurePosixPath(uri).name}, which no index lists")
        suite, stanza = by_hash[match[1]["SHA256"]]
        artifacts.append(
            Artifact(
                kind="deb",
                name=stanza["Package"],
                version=stanza["Version"],
                file=PurePosixPath(stanza["Filename"]).name,
                sha256=stanza["SHA256"],
                size=int(stanza["Size"]),
                path=stanza["Filename"],
                suite=suite,
            )
        )
    return tuple(sorted(artifacts, key=lambda a: a.name))


def _uris(listing: str) -> Iterator[str]:
    for line in listing.splitlines():
        match = _URI_LINE.match(line)
        if match is not None:
            yield urllib.parse.unquote(match.group("uri"))
