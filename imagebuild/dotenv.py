# SPDX-License-Identifier: Apache-2.0
"""The one writer of `.env` beside compose.yaml: `update` sets our variables and touches nothing else.

Compose reads the file by rules of its own (compose-go, dotenv; each was tried with Compose 5.6.1):
`KEY=value` or `KEY: value`, `export` before it, the last of two wins, ` #` begins a comment, a value
in quotes may have several lines, and only in single quotes is a `$` no variable.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuild.diagnostics import Refused
from imagebuild.errors import ManifestError
from imagebuild.files import write_text

NAME = ".env"
ARCH = "IMAGEBUILD_ARCH"
MODELS_DIR = "IMAGEBUILD_MODELS_DIR"
GPU_DRIVER = "IMAGEBUILD_GPU_DRIVER"
METRICS_IMAGE = "IMAGEBUILD_METRICS_IMAGE"
_IMAGE, _PLAN = "IMAGEBUILD_IMAGE_", "IMAGEBUILD_PLAN_"
_OURS = re.compile(rf"{ARCH}|{MODELS_DIR}|{GPU_DRIVER}|{METRICS_IMAGE}|({_IMAGE}|{_PLAN})SM_[0-9]{{2,3}}")
_HEAD = re.compile(r"[ \t]*(?P<export>export[ \t]+)?(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*[=:][ \t]*")
_QUOTED = {mark: re.compile(rf"{mark}((?:[^{mark}\\]|\\.)*){mark}", re.DOTALL) for mark in "'\""}
_BARE = re.compile(r"(.*?)(?=[ \t]+#|[ \t\r]*$)", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")


@dataclass(frozen=True)
class _Part:
    """A piece of the file. One without a key is a blank line, a comment or anything else."""

    text: str
    key: str = ""
    value: str = ""
    export: str = ""
    tail: str = ""


def image_key(arch: str) -> str:
    """Return the variable that holds the image of an arch: IMAGEBUILD_IMAGE_SM_103 for sm_103."""
    return _IMAGE + arch.upper()


def plan_key(arch: str) -> str:
    """Return the variable that holds the plan of an arch's image, which names the image's cache volume."""
    return _PLAN + arch.upper()


def read(path: Path) -> dict[str, str]:
    """Return all variables of the file as Compose reads them, but without replacing variables in values.

    A missing file has none. Raises ManifestError with the line if a quote is not closed.
    """
    return {part.key: part.value for part in _parts(path, _text(path)) if part.key}


def update(path: Path, values: Mapping[str, str]) -> bool:
    """Set variables in the file, which is made if it is missing; return whether it changed.

    Other lines, comments, their order, the file's mode and owner stay. A variable that is there is
    changed where it stands last, and its earlier lines go, since Compose would not read them. A link is
    followed. Two writers at the same time do not lose each other's values.
    Raises Refused for a variable that is not ours or a value that no quoting carries, ManifestError as
    `read` does, OSError if the file cannot be written.
    """
    lines = {key: _assignment(key, value) for key, value in values.items()}
    path = path.resolve()
    with _locked(path.parent):
        text = _text(path)
        new = _changed(list(_parts(path, text)), lines, "\r\n" if "\r\n" in text else "\n")
        if new == text:
            return False
        write_text(path, new)
        return True


def note_image(root: Path, arch: str, reference: str, plan: str) -> str:
    """Tell Compose about an image that is ready to run and its plan; the first image also decides the arch.

    Return a line for the user. A file that cannot be changed is left alone: the image is good without it.
    """
    path, values = root / NAME, {image_key(arch): reference, plan_key(arch): plan}
    try:
        if not read(path).get(ARCH):
            values[ARCH] = arch
        changed = update(path, values)
    except (ManifestError, OSError) as error:
        return f"warning: {path} is left alone: {error}; set {image_key(arch)}={reference} yourself"
    what = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{path}: {what}" + ("" if changed else " (as before)")


def _assignment(key: str, value: str) -> str:
    if not _OURS.fullmatch(key):
        allowed = [ARCH, MODELS_DIR, GPU_DRIVER, f"{_IMAGE}SM_<number>", f"{_PLAN}SM_<number>"]
        raise Refused(f'"{key}" is no variable of ours', allowed=allowed)
    if not value or not value.isprintable() or "\\" in value:
        why = "it is empty or has a control character or a backslash"
        raise Refused(f"{key}: {value!r} cannot be kept in {NAME}: {why}")
    return f"{key}={value}" if _PLAIN.fullmatch(value) else "{}='{}'".format(key, value.replace("'", r"\'"))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")  # not read_text: line ends stay as they are
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 text: {error}", hint="correct or remove the file") from None


def _parts(path: Path, text: str) -> Iterator[_Part]:
    """Cut the text into parts; joined they are the text again."""
    at = 0
    if text.startswith("\ufeff"):
        at = 1
        yield _Part(text[:1])
    while at < len(text):
        head = _HEAD.match(text, at)
        end, value = at, ""
        if head:
            end = head.end()
            form = _QUOTED.get(text[end : end + 1], _BARE)
            found = form.match(text, end)
            if found is None:
                line = text.count("\n", 0, at) + 1
                raise ManifestError(
                    f"{path}:{line}: {head['key']}: the quote is not closed", hint="correct the file by hand"
                )
            end, value = found.end(), found[1]
            if form is not _BARE:
                value = value.replace("\\" + text[head.end()], text[head.end()])
        stop = text.find("\n", end) + 1 or len(text)
        if head:
            yield _Part(text[at:stop], head["key"], value, head["export"] or "", text[end:stop])
        else:
            yield _Part(text[at:stop])
        at = stop


def _changed(parts: list[_Part], lines: Mapping[str, str], newline: str) -> str:
    last = {part.key: index for index, part in enumerate(parts)}
    out = []
    for index, part in enumerate(parts):
        if part.key not in lines:
            out.append(part.text)
        elif last[part.key] == index:
            out.append(part.export + lines[part.key] + part.tail)
    missing = [line for key, line in lines.items() if key not in last]
    if missing and out and not out[-1].endswith("\n"):
        out.append(newline)
    return "".join([*out, *(line + newline for line in missing)])


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, which leaves no file behind; where there are no locks (NFS), go without."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
