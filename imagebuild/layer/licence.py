# SPDX-License-Identifier: Apache-2.0
"""Which licence a wheel names in its own METADATA, as an SPDX expression, and whether a list allows it.

Only exact statements count. Where METADATA says nothing exact (no field, "BSD", a bare classifier
of several licences), the stack's manifest must declare the id with the licence file's sha256.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from email.parser import HeaderParser

# Ids whose text lets anyone change object code and pass it on, keeping notices. A licence outside
# this set may still be allowed by a user who has that right; the image is then not for others.
REDISTRIBUTABLE = frozenset({"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0"})
_NAMES = {
    "apache 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "mit": "MIT",
    "mit license": "MIT",
}
_CLASSIFIERS = {"Apache Software License": "Apache-2.0", "MIT License": "MIT"}
_PROPRIETARY = "Other/Proprietary License"
_TOKEN = re.compile(r"\(|\)|[A-Za-z0-9.+-]+")


def licence_of(metadata: str) -> str:
    """Return the SPDX expression that a METADATA file states; empty if it states none exactly.

    License-Expression (PEP 639) wins; else a License field that is an id or the first line of a
    known text; else a single classifier. A field that a classifier contradicts says nothing.
    """
    message = HeaderParser().parsestr(metadata)
    expression = str(message.get("License-Expression", "")).strip()
    if expression:
        return expression
    classifiers = [
        str(text).rpartition("::")[2].strip()
        for text in message.get_all("Classifier", [])
        if str(text).startswith("License ::")
    ]
    by_classifier = _CLASSIFIERS.get(classifiers[0], "") if len(classifiers) == 1 else ""
    field = str(message.get("License", "")).strip()
    first = field.splitlines()[0].strip().casefold() if field else ""
    if first.startswith("licenseref-"):
        return field.splitlines()[0].strip()
    by_field = _NAMES.get(first, "")
    if first == "apache license" and re.search(r"Version\s+2\.0", field[:200]):
        by_field = "Apache-2.0"
    if _PROPRIETARY in classifiers or (by_field and by_classifier and by_field != by_classifier):
        return ""
    return by_field or (by_classifier if not field else "")


def allowed(expression: str, ids: Collection[str]) -> bool:
    """Tell whether an SPDX expression is met by `ids`: all terms of an AND, one of an OR.

    Anything that cannot be read is not allowed.
    """
    tokens = _TOKEN.findall(expression)
    try:
        value, rest = _either(tokens, ids)
    except IndexError:
        return False
    return value and not rest


def _either(tokens: list[str], ids: Collection[str]) -> tuple[bool, list[str]]:
    value, tokens = _all(tokens, ids)
    while tokens[:1] == ["OR"]:
        other, tokens = _all(tokens[1:], ids)
        value = value or other
    return value, tokens


def _all(tokens: list[str], ids: Collection[str]) -> tuple[bool, list[str]]:
    value, tokens = _term(tokens, ids)
    while tokens[:1] == ["AND"]:
        other, tokens = _term(tokens[1:], ids)
        value = value and other
    return value, tokens


def _term(tokens: list[str], ids: Collection[str]) -> tuple[bool, list[str]]:
    if tokens[0] == "(":
        value, rest = _either(tokens[1:], ids)
        return value and rest[0] == ")", rest[1:]
    if tokens[1:2] == ["WITH"]:
        return False, tokens[3:]
    return tokens[0] in ids, tokens[1:]
