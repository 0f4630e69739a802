# SPDX-License-Identifier: Apache-2.0
"""What a single value in a manifest may be: names, paths, reasons, pins; shared by every file kind."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator

from imagebuild.arch import parse_arch
from imagebuild.diagnostics import Refused


def matching(pattern: str, what: str) -> AfterValidator:
    """Return a validator for text that `pattern` matches as a whole; `what` says what that is."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f'expected {what}, found "{value}"')
        return value

    return AfterValidator(check)


def _reason(value: str) -> str:
    if len(value.split()) < 3:
        raise ValueError("say why in three words or more")
    return value


def _canonical(value: str) -> str:
    if canonicalize_name(value) != value:
        raise Refused(f'"{value}" is not a normalised package name', suggestion=canonicalize_name(value))
    return value


def _arch(value: str) -> str:
    if parse_arch(value).name != value:
        raise Refused(f'"{value}" is not the normal spelling', suggestion=parse_arch(value).name)
    return value


def _one_line(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("write one line of text")
    return value


def _pin(value: str) -> str:
    try:
        requirement = Requirement(value)
    except InvalidRequirement:
        raise ValueError("not a requirement: write name==version") from None
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        raise ValueError("pin one version exactly, like torch==2.11.0")
    if requirement.url is not None or requirement.marker is not None:
        raise ValueError("a pin has no URL and no marker, only name, extras and ==version")
    _canonical(requirement.name)
    return value


def _relative(value: str) -> str:
    if value.startswith("/") or not _normal(value) or value.startswith(".."):
        raise ValueError("write a normalised path relative to images/, without .. and spaces")
    return value


def _below_site(value: str) -> str:
    if value.startswith("/") or not _normal(value) or value.startswith(".."):
        raise ValueError("write a normalised path below site-packages, without .. and spaces")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or value.startswith("//") or not _normal(value):
        raise ValueError("write a normalised absolute image path, without .. and spaces")
    return value


def _normal(path: str) -> bool:
    return posixpath.normpath(path) == path and path.isprintable() and " " not in path


Name = Annotated[str, matching(r"[a-z0-9]+([._-][a-z0-9]+)*", "lower-case words joined by . _ or -")]
Package = Annotated[str, AfterValidator(_canonical)]
PackagePattern = Annotated[
    str, matching(r"[a-z0-9*]+(-[a-z0-9*]+)*", "a normalised package name, * for any characters")
]
Pin = Annotated[str, AfterValidator(_pin)]
Reason = Annotated[str, AfterValidator(_reason)]
DebianPackage = Annotated[
    str, matching(r"[a-z0-9][a-z0-9+.-]+", "a Debian package name (Debian policy 5.6.1)")
]
RelativePath = Annotated[str, AfterValidator(_relative)]
SitePath = Annotated[str, AfterValidator(_below_site)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
EnvName = Annotated[str, matching(r"[A-Z_][A-Z0-9_]*", "an environment variable's name in capitals")]
Env = dict[EnvName, str]
ArchName = Annotated[str, AfterValidator(_arch)]
Sha256 = Annotated[str, matching(r"[0-9a-f]{64}", "a sha256: 64 lower-case hex digits")]
Line = Annotated[str, AfterValidator(_one_line)]
