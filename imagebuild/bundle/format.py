# SPDX-License-Identifier: Apache-2.0
"""The bundle file: written once, read from front to back, every byte of it checked.

    bundle.json     what is in it (canonical JSON); its sha256 is the bundle's digest
    …               the members in bundle.json's order
    bundle.sha256   the line that `sha256sum -c` takes for bundle.json

Headers and padding are not left to chance: a reader makes them anew and compares, so a flipped bit in
any of them is found as well as one in a file.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from imagebuild.cache import hash_file
from imagebuild.digest import canonical_json
from imagebuild.errors import IntegrityError, ManifestError

MANIFEST, SEAL = "bundle.json", "bundle.sha256"
SCHEMA = 1
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_END = bytes(2 * _BLOCK)
_SEAL_BYTES = 2 * _BLOCK + len(_END)


@dataclass(frozen=True)
class Member:
    """One file of a bundle. `source` is where its bytes are, or the bytes."""

    path: str
    size: int
    sha256: str
    source: Path | bytes
    executable: bool = False


@dataclass(frozen=True)
class Listed:
    """One line of bundle.json's `files`."""

    path: str
    size: int
    sha256: str
    executable: bool = False


@dataclass(frozen=True)
class Manifest:
    """bundle.json. `about` says what the bundle is: image, plan, arch, tool; `raw` are its exact bytes."""

    about: dict[str, Any]
    mtime: int
    files: tuple[Listed, ...]
    raw: bytes

    @property
    def digest(self) -> str:
        """The bundle's digest."""
        return f"sha256:{hashlib.sha256(self.raw).hexdigest()}"


def member_of(path: str, source: Path | bytes, *, executable: bool = False) -> Member:
    """Return a member; a file is read to hash it."""
    if isinstance(source, bytes):
        return Member(path, len(source), hashlib.sha256(source).hexdigest(), source, executable)
    with source.open("rb") as file:
        sha256, size = hash_file(file)
    return Member(path, size, sha256, source, executable)


def _header(path: str, size: int, mtime: int, executable: bool = False) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mtime, info.mode = size, mtime, 0o755 if executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _seal_line(raw: bytes) -> bytes:
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def make_manifest(about: dict[str, Any], mtime: int, members: Iterable[Member]) -> Manifest:
    """Return the manifest of these members, sorted by path. Raises ManifestError if two have one path."""
    listed = sorted((Listed(m.path, m.size, m.sha256, m.executable) for m in members), key=lambda m: m.path)
    for one, two in itertools.pairwise(listed):
        if one.path == two.path:
            raise ManifestError(f"{one.path}: two files of the bundle would have this name")
    files = [[m.path, m.size, m.sha256, m.executable] for m in listed]
    value = {"schema": SCHEMA, "about": about, "mtime": mtime, "files": files}
    return Manifest(about, mtime, tuple(listed), canonical_json(value))


def write_bundle(
    manifest: Manifest, members: Iterable[Member], out: IO[bytes], advance: Callable[[int], None]
) -> None:
    """Write the file. Raises IntegrityError if a source no longer has the bytes that were hashed."""
    sources = {member.path: member for member in members}

    def put(path: str, data: bytes) -> None:
        out.write(_header(path, len(data), manifest.mtime) + data + _padding(len(data)))

    put(MANIFEST, manifest.raw)
    for listed in manifest.files:
        source = sources[listed.path].source
        out.write(_header(listed.path, listed.size, manifest.mtime, listed.executable))
        digest, size = hashlib.sha256(), 0
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
                out.write(data)
                size += len(data)
                advance(len(data))
        if (size, digest.hexdigest()) != (listed.size, listed.sha256):
            raise IntegrityError(
                f"{source if isinstance(source, Path) else listed.path}: changed while it was read"
            )
        out.write(_padding(size))
    put(SEAL, _seal_line(manifest.raw))
    out.write(_END)


def read_manifest(path: Path) -> Manifest:
    """Read bundle.json and check it against its seal at the end of the file.

    Raises ManifestError if the file is no bundle, IntegrityError naming bundle.json if it is damaged.
    """
    with path.open("rb") as file:
        return _manifest(file, path)


def _read_header(head: bytes) -> tarfile.TarInfo | None:
    try:
        return tarfile.TarInfo.frombuf(head, "utf-8", "strict")
    except (tarfile.TarError, UnicodeError):
        return None


def _manifest(file: IO[bytes], path: Path) -> Manifest:
    head = file.read(_BLOCK)
    info = _read_header(head)
    if info is None or info.name != MANIFEST:
        if MANIFEST.encode() not in head and b"ustar" not in head:
            raise ManifestError(f"{path}: not a bundle", hint="build.py bundle make writes one")
        raise IntegrityError(f"{path}: {MANIFEST}: its header is damaged")
    raw = file.read(info.size)
    rest = file.read(len(_padding(len(raw))))
    here = file.tell()
    file.seek(max(0, file.seek(0, io.SEEK_END) - _SEAL_BYTES))
    seal = file.read(_SEAL_BYTES)
    file.seek(here)
    try:
        value = json.loads(raw)
        files = tuple(Listed(*line) for line in value["files"])
        manifest = Manifest(value["about"], value["mtime"], files, raw)
        schema = value["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: {MANIFEST}: cannot be read: {error}") from error
    line = _seal_line(raw)
    if seal != _header(SEAL, len(line), manifest.mtime) + line + _padding(len(line)) + _END:
        raise IntegrityError(
            f"{path}: {MANIFEST} does not fit its seal, {SEAL}: one of them is damaged or the end is missing",
            hint="copy the file again",
        )
    if schema != SCHEMA:
        raise ManifestError(
            f"{path}: bundle format {schema}, this tool reads {SCHEMA}", hint="use its own tool"
        )
    if head != _header(MANIFEST, len(raw), manifest.mtime) or any(rest):
        raise IntegrityError(f"{path}: {MANIFEST}: its header or padding is damaged")
    return manifest


def read_bundle(
    path: Path, target: Path | None, advance: Callable[[int], None] = lambda _: None
) -> tuple[Manifest, list[str]]:
    """Check every byte, and write the members below `target` if one is given (an empty folder).

    Returns the manifest and what is wrong, a line for each member. Raises as `read_manifest` does, and
    IntegrityError for a member path that would leave `target`.
    """
    wrong: list[str] = []
    with path.open("rb") as file:
        manifest = _manifest(file, path)
        for listed in manifest.files:
            place = None if target is None else _place(target, listed.path)
            wrong += _read_member(file, manifest, listed, place, advance)
        if file.read(_SEAL_BYTES + 1) and file.read(1):
            wrong.append("there are bytes after the end")
        elif file.tell() != file.seek(0, io.SEEK_END):
            wrong.append("the end is not where it must be")
    return manifest, wrong


def _place(target: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise IntegrityError(f"{name}: this path would leave the folder; nothing was opened")
    return target.joinpath(*parts)


def _read_member(
    file: IO[bytes], manifest: Manifest, listed: Listed, place: Path | None, advance: Callable[[int], None]
) -> list[str]:
    wrong = []
    header = _header(listed.path, listed.size, manifest.mtime, listed.executable)
    if file.read(len(header)) != header:
        wrong.append(f"{listed.path}: its header is damaged")
    digest, left = hashlib.sha256(), listed.size
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") if place is not None else io.BytesIO() as out:
        while left and (data := file.read(min(left, _CHUNK))):
            digest.update(data)
            if place is not None:
                out.write(data)
            left -= len(data)
            advance(len(data))
    if place is not None and listed.executable:
        place.chmod(0o755)
    if left:
        wrong.append(f"{listed.path}: {left} bytes are missing")
    elif digest.hexdigest() != listed.sha256:
        wrong.append(f"{listed.path}: sha256 {digest.hexdigest()}, must be {listed.sha256}")
    padding = _padding(listed.size)
    if not left and file.read(len(padding)) != padding:
        wrong.append(f"{listed.path}: its padding is damaged")
    return wrong
