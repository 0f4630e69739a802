# SPDX-License-Identifier: Apache-2.0
"""Take secrets out of text: every message and log line about a URL goes through here."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_URL = r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)"
_USERINFO = re.compile(_URL + r"[^/?#\s'\"<>]*@", re.IGNORECASE)
# A slash in a password should be written %2F; where it is not, no part of it may be shown either.
_MALFORMED = re.compile(_URL + r"[^/:?#\s]*:(?!\d+[/?#])[^\s'\"<>]*@", re.IGNORECASE)
_QUERY = re.compile(r"(?<=[\w/.~%+-])\?[^\s'\"<>)]+")


def redact(text: str) -> str:
    """Return `text` with user names, passwords and query strings of URLs replaced by `***`.

    Query strings go too, since object stores and some indexes put signatures and tokens there.
    """
    text = _MALFORMED.sub(r"\g<scheme>***@", _USERINFO.sub(r"\g<scheme>***@", text))
    return _QUERY.sub("?***", text)


def without_credentials(url: str) -> str:
    """Return a URL without its user name, password, query and fragment: what a message shows."""
    parts = urlsplit(redact(url))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
