# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server in a thread, on loopback, with a script of faults for each path."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from imagebuild.layer.spec import Artifact

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Fault:
    """What goes wrong with one request. Only what is set happens."""

    status: int = 0  # answer this status instead
    headers: dict[str, str] = field(default_factory=dict)
    drop_after: int = -1  # close the connection after this many bytes of the body
    flip: int = -1  # change the byte at this place of the body
    body: bytes | None = None  # send these bytes instead
    no_range: bool = False  # ignore Range
    wrong_range: bool = False  # answer a Range with another one
    no_length: bool = False  # say no Content-Length; the end of the connection ends the body
    rate: int = 0  # bytes per second
    stall_s: float = 0  # wait before answering


@dataclass
class Request:
    """One request as it came: path, headers, and body bytes sent for it so far."""

    path: str
    headers: dict[str, str]
    sent: int = 0


@dataclass
class Server:
    """What the server has and what it has seen."""

    url: str = ""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # path -> (content type, body)
    faults: dict[str, list[Fault]] = field(default_factory=dict)  # used up one per request
    always: dict[str, Fault] = field(default_factory=dict)  # for every further request
    login: str = ""  # "user:password" that every request must bring
    requests: list[Request] = field(default_factory=list)

    def add_wheel(
        self, artifact: Artifact, data: bytes, *, style: str = "json", sha256: str | None = None
    ) -> str:
        """Offer a file on its project's page; return the file's path. `sha256` "" states none."""
        path = f"/files/{artifact.file}"
        self.files[path] = ("application/octet-stream", data)
        stated = artifact.sha256 if sha256 is None else sha256
        page = f"/simple/{artifact.name}/"
        href = f"../../files/{artifact.file.replace('+', '%2B')}"
        if style == "json":
            hashes = {"sha256": stated} if stated else {}
            project = {
                "meta": {"api-version": "1.0"},
                "name": artifact.name,
                "files": [{"filename": artifact.file, "url": href, "hashes": hashes}],
            }
            self.files[page] = (JSON, json.dumps(project).encode())
        else:
            mark = f"#sha256={stated}" if stated else ""
            html = f'<!DOCTYPE html><html><body><a href="{href}{mark}">{artifact.file}</a></body></html>'
            self.files[page] = ("text/html", html.encode())
        return path

    def seen(self, path: str) -> list[Request]:
        """Return the requests for one path."""
        return [request for request in self.requests if request.path == path]

    def sent(self, path: str) -> int:
        """Return the body bytes put on the wire for one path."""
        return sum(request.sent for request in self.seen(path))


def wheel(name: str, size: int, seed: int = 0) -> tuple[Artifact, bytes]:
    """Return an artifact and its bytes, which repeat nowhere, so that a misplaced range shows."""
    block = b"".join(hashlib.sha256(f"{name}{seed}{i}".encode()).digest() for i in range(size // 32 + 1))
    data = block[:size]
    file = f"{name}-1.0-py3-none-any.whl"
    return Artifact("wheel", name, "1.0", file, hashlib.sha256(data).hexdigest(), size), data


@contextlib.contextmanager
def serve(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a server on a free port of 127.0.0.1."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            _answer(self, state)

    class Httpd(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            """A client that was killed is no news."""

    httpd = Httpd(("127.0.0.1", 0), Handler)
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True)
    state.url = f"{'https' if tls else 'http'}://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()


def _answer(handler: BaseHTTPRequestHandler, state: Server) -> None:
    path = unquote(urlsplit(handler.path).path)  # as a proxy we get whole URLs
    request = Request(path, {k.lower(): v for k, v in handler.headers.items()})
    request.headers[":target"] = handler.path
    state.requests.append(request)
    script = state.faults.get(path, [])
    fault = script.pop(0) if script else state.always.get(path, Fault())
    time.sleep(fault.stall_s)
    given = request.headers.get("authorization", "").removeprefix("Basic ")
    if state.login and base64.b64decode(given).decode() != state.login:
        _plain(handler, 401)
    elif fault.status:
        _plain(handler, fault.status, fault.headers)
    elif path not in state.files:
        _plain(handler, 404)
    else:
        _send(handler, request, *state.files[path], fault)


def _plain(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _send(handler: BaseHTTPRequestHandler, request: Request, kind: str, whole: bytes, fault: Fault) -> None:
    whole = whole if fault.body is None else fault.body
    if fault.flip >= 0:
        whole = whole[: fault.flip] + bytes([whole[fault.flip] ^ 1]) + whole[fault.flip + 1 :]
    match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    start = int(match.group(1)) if match and not fault.no_range else 0
    if start and start >= len(whole):
        _plain(handler, 416)
        return
    if start and fault.wrong_range:
        start += 1
    body = whole[start:]
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Type", kind)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
    if fault.no_length:
        handler.close_connection = True
    else:
        handler.send_header("Content-Length", str(len(body)))
    for name, value in fault.headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    limit = len(body) if fault.drop_after < 0 else fault.drop_after
    step = max(1024, fault.rate // 50) if fault.rate else 1 << 20
    with contextlib.suppress(OSError):
        for at in range(0, min(len(body), limit), step):
            piece = body[at : min(at + step, limit)]
            request.sent += len(piece)  # before the client can have it, so that a test never sees less
            handler.wfile.write(piece)
            if fault.rate:
                time.sleep(len(piece) / fault.rate)
    if limit < len(body):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)
