# SPDX-License-Identifier: Apache-2.0
"""HTTP sessions with the host's proxies, certificates and netrc; and which hosts do not answer."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from imagebuild.errors import PreconditionError
from imagebuild.hostconf import HostNetwork

CONNECT_TIMEOUT_S = 10


class HostDown(requests.ConnectionError):
    """A host that never answered in this run is not asked again."""


class LoginRefused(PreconditionError):
    """An index, mirror or proxy wants a user name and password, or other ones (HTTP 401 and 407)."""


class Reach:
    """Which hosts answered in this run; shared by all threads, so that being offline is found out once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: dict[str, float] = {}
        self._down: dict[str, str] = {}

    def check(self, url: str) -> None:
        """Raise HostDown if the URL's host was given up."""
        reason = self._down.get(_host(url))
        if reason is not None:
            raise HostDown(reason, request=requests.Request("GET", url).prepare())

    def answered(self, url: str) -> None:
        """Note that the URL's host answered, with whatever status."""
        with self._lock:
            self._answered[_host(url)] = time.monotonic()

    def answered_since(self, url: str, moment: float) -> bool:
        """Tell whether the URL's host has answered since `moment` (of time.monotonic)."""
        return self._answered.get(_host(url), -1) >= moment

    def give_up(self, url: str, reason: str, moment: float) -> None:
        """Do not ask the URL's host again, unless it has answered somebody since `moment`."""
        with self._lock:
            if not self.answered_since(url, moment):
                self._down.setdefault(_host(url), reason)


class Session(requests.Session):
    """A session for one thread: certificates as the host has them, whatever the environment says.

    `requests` would let REQUESTS_CA_BUNDLE override the context and the environment's proxies
    override the given ones; netrc and the environment's proxies stay in force otherwise.
    """

    def __init__(self, host: HostNetwork, reach: Reach, proxies: Mapping[str, str]) -> None:
        super().__init__()
        self.reach = reach
        self.given_proxies = dict(proxies)
        self.timeout_s = (CONNECT_TIMEOUT_S, host.timeout_s)
        self.headers["User-Agent"] = "imagebuild"
        self.headers["Accept-Encoding"] = "identity"
        self.mount("https://", _Adapter(_context(host)))
        if host.trusted_hosts:  # the user has said so; a warning per request adds nothing
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        for name in host.trusted_hosts:
            for end in ("/", ":") if ":" not in name else ("/",):
                self.mount(f"https://{name}{end}", _Adapter(_no_check(host), check=False))

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Put the given proxies before the environment's, and leave certificates to the adapter."""
        merged = super().merge_environment_settings(
            url, {**self.given_proxies, **(proxies or {})}, stream, True, cert
        )
        merged["verify"] = True
        return merged

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Send unless the host was given up; no request is without a time limit."""
        url = request.url or ""
        self.reach.check(url)
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self.timeout_s
        response = super().send(request, **kwargs)
        self.reach.answered(url)
        return response


def open_session(host: HostNetwork, reach: Reach, proxies: Mapping[str, str] | None = None) -> Session:
    """Return a session; `proxies` (as `requests` takes them) go before pip's and the environment's.

    Raises PreconditionError if a CA or client certificate cannot be read.
    """
    if proxies is None:
        proxies = {"http": host.proxy, "https": host.proxy} if host.proxy else {}
    return Session(host, reach, proxies)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


class _Adapter(HTTPAdapter):
    def __init__(self, context: ssl.SSLContext, *, check: bool = True) -> None:
        self._context, self._check = context, check
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, **kwargs, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        conn.cert_reqs = "CERT_REQUIRED" if self._check else "CERT_NONE"
        conn.assert_hostname = None if self._check else False


def _context(host: HostNetwork) -> ssl.SSLContext:
    if host.ca_file is None and host.ca_dir is None:
        import truststore

        context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        try:
            context = ssl.create_default_context(cafile=host.ca_file, capath=host.ca_dir)
        except OSError as error:
            raise PreconditionError(
                f"{host.ca_source}: no certificates in {host.ca_file or host.ca_dir}: {error}",
                hint="it must be a PEM file, or a folder made by `c_rehash`",
            ) from None
    return _with_client_cert(context, host)


def _no_check(host: HostNetwork) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _with_client_cert(context, host)


def _with_client_cert(context: ssl.SSLContext, host: HostNetwork) -> ssl.SSLContext:
    if host.client_cert is not None:
        try:
            context.load_cert_chain(host.client_cert)
        except OSError as error:
            raise PreconditionError(
                f"pip's `client-cert` cannot be read: {host.client_cert}: {error}",
                hint="it must be one PEM file with the private key and the certificate",
            ) from None
    return context
