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
    try:
        answer = json.loads(process.feed([f"docker-credential-{helper}", "get"], host))
    except (ImageBuildError, ValueError):
        return None
    return Login(str(answer.get("Username", "")), str(answer.get("Secret", "")))


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
