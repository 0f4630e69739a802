# SPDX-License-Identifier: Apache-2.0
"""Credentials for a registry, from where the docker command keeps them, and the token dance.

Docker's config.json (`auths`, `credsStore`, `credHelpers`) and the distribution specification's
bearer tokens. Nothing of it is logged or shown.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from requests.auth import AuthBase

from imagebuild import process
from imagebuild.errors import ImageBuildError, PreconditionError

_NO_LOGIN = "credentials not found"  # on standard output, with exit status 1
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Login:
    """A user name and a password or token; not in the repr."""

    user: str = field(repr=False)
    secret: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def _config() -> dict[str, Any]:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PreconditionError(f"{path}: cannot be read: {error}", hint="docker login HOST") from None
    return raw if isinstance(raw, dict) else {}


def find_login(host: str) -> Login | None:
    """Return the login that `docker login` stored for a registry host, or None.

    Raises PreconditionError if docker's configuration or its credential helper is broken.
    """
    config = _config()
    helper = (config.get("credHelpers") or {}).get(host) or config.get("credsStore")
    entry = (config.get("auths") or {}).get(host) or {}
    if entry.get("auth"):
        try:
            user, _, secret = base64.b64decode(entry["auth"]).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise PreconditionError(f"docker's login for {host} is damaged", hint="docker login") from None
        return Login(user, secret)
    if not helper:
        return None
    return _asked(f"docker-credential-{helper}", host)


def _asked(program: str, host: str) -> Login | None:
    """Ask a credential helper (docker-credential-helpers' protocol); None if it has no such login.

    Raises PreconditionError for a helper that is missing, fails or answers something else.
    """
    try:
        text = process.feed([program, "get"], f"{host}\n", ok=(0, 1))
        if text.strip().startswith(_NO_LOGIN):
            return None
        answer = json.loads(text)
        return Login(answer["Username"], answer["Secret"])
    except (ImageBuildError, ValueError, TypeError, KeyError) as error:
        # Its answer may hold a password, so a JSON error, which quotes it, is not shown.
        what = error if isinstance(error, ImageBuildError) else "its answer is no login"
        raise PreconditionError(
            f"{program}, which docker's configuration names for {host}, does not work: {what}",
            hint=f"docker login {host}, or take it out of docker's config.json",
        ) from None


class RegistryAuth(AuthBase):
    """Adds what the registry asked for; also keeps requests from using netrc instead."""

    def __init__(self, login: Login | None) -> None:
        self._login = login
        self._header = ""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the Authorization header."""
        if self._header:
            request.headers["Authorization"] = self._header
        return request

    def answer(self, session: requests.Session, response: requests.Response) -> bool:
        """Prepare for the challenge of a 401; say whether there is something that it has not seen yet.

        Another thread may have answered the challenge since this request was sent.
        """
        used = response.request.headers.get("Authorization", "")
        challenge = response.headers.get("WWW-Authenticate", "")
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._login is not None:
            self._header = self._login.basic
            return self._header != used
        if scheme.lower() != "bearer":
            return False
        values = dict(_CHALLENGE.findall(rest))
        realm = values.pop("realm", "")
        wanted = {key: values[key] for key in ("service", "scope") if key in values}
        headers = {"Authorization": self._login.basic} if self._login else {}
        found = session.get(realm, params=wanted, headers=headers, auth=lambda r: r)
        if found.status_code != requests.codes.ok:
            return False
        body = found.json()
        token = body.get("token") or body.get("access_token")
        self._header = f"Bearer {token}" if token else ""
        return bool(token) and self._header != used
