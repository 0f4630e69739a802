# SPDX-License-Identifier: Apache-2.0
"""A small hub for the real client: the model info, tree, resolve and Xet token calls, and a CDN.

Built from what huggingface_hub 2.4 asks and reads: `HfApi.model_info`, `list_repo_tree` (pages by a Link
header), HEAD and GET on resolve URLs (X-Repo-Commit, X-Linked-Etag, X-Linked-Size, redirect of LFS files
to signed URLs on another host), X-Error-Code and X-Error-Message, and the xet-read-token call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from imagebuild.models.pin import git_blob
from tests.network.server import Fault, Request

LFS_FROM = 10_000  # bytes; the hub's limit is 10 MB
Body = bytes | Path


@dataclass
class Repo:
    """A repo: commits (files by path) and branches."""

    commits: dict[str, dict[str, Body]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def push(self, files: Mapping[str, Body], branch: str = "main") -> str:
        """Add a commit to a branch; return its id."""
        names = json.dumps([sorted(files), len(self.commits), *sorted(self.refs)])
        commit = hashlib.sha1(names.encode() + os.urandom(4)).hexdigest()
        self.commits[commit] = dict(files)
        self.refs[branch] = commit
        return commit


@dataclass
class Hub:
    """What the hub has and what it has seen. `faults` are used up one per request of a path.

    `commit_header` is put in place of the right X-Repo-Commit; `xet` maps sha256 to a Xet hash.
    """

    url: str = ""
    cdn: str = ""
    token: str = "hf_test_token_of_this_hub"
    page: int = 4
    repos: dict[str, Repo] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    commit_header: str = ""
    xet: dict[str, str] = field(default_factory=dict)
    xet_endpoint: str = ""
    stored: dict[str, Body] = field(default_factory=dict)  # the CDN's files by sha256

    def repo(self, name: str, files: Mapping[str, Body]) -> str:
        """Make or extend a repo; return the new commit."""
        return self.repos.setdefault(name, Repo()).push(files)

    def sent(self, text: str) -> int:
        """Return the body bytes sent for paths that contain a text."""
        return sum(request.sent for request in self.requests if text in request.path)

    def seen(self, text: str, method: str = "GET") -> list[Request]:
        """Return the requests of a method whose path contains a text."""
        return [
            r for r, m in zip(self.requests, self.methods, strict=False) if text in r.path and m == method
        ]


@contextlib.contextmanager
def serve_hub() -> Iterator[Hub]:
    """Run a hub and its CDN on free ports of 127.0.0.1; the CDN is called localhost, another host."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            _answer(self, hub)

        do_HEAD = do_GET

    class Httpd(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *args: object) -> None:
            """A client that was killed is no news."""

    servers = [Httpd(("127.0.0.1", 0), Handler) for _ in range(2)]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.cdn = f"http://localhost:{servers[1].server_port}"
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def size_of(body: Body) -> int:
    """Return a body's size in bytes."""
    return body.stat().st_size if isinstance(body, Path) else len(body)


_hashes: dict[str, str] = {}


def sha256_of(body: Body) -> str:
    """Return a body's sha256, computed once for files."""
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    if str(body) not in _hashes:
        digest = hashlib.sha256()
        with body.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        _hashes[str(body)] = digest.hexdigest()
    return _hashes[str(body)]


def _is_lfs(path: str, body: Body) -> bool:
    return path.endswith(".safetensors") or size_of(body) > LFS_FROM


def _answer(handler: BaseHTTPRequestHandler, hub: Hub) -> None:
    parts = urlsplit(handler.path)
    path = unquote(parts.path)
    request = Request(path, {k.lower(): v for k, v in handler.headers.items()})
    hub.requests.append(request)
    hub.methods.append(handler.command)
    key = f"{handler.command} {path}"
    script = hub.faults.get(key) or hub.faults.get(path, [])
    fault = script.pop(0) if script else hub.always.get(path, Fault())
    time.sleep(fault.stall_s)
    if fault.status:
        _plain(handler, fault.status, fault.headers)
    elif path.startswith("/cdn/"):
        _cdn(handler, hub, request, path.removeprefix("/cdn/"), parse_qs(parts.query), fault)
    else:
        _hub(handler, hub, request, path, parts.query, fault)


def _plain(
    handler: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def _error(handler: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    _plain(handler, status, {"X-Error-Code": code, "X-Error-Message": message})


_API = re.compile(r"/api/models/([^/]+/[^/]+)/(revision|tree|xet-read-token)/([^/]+)(?:/(.*))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def _hub(
    handler: BaseHTTPRequestHandler, hub: Hub, request: Request, path: str, query: str, fault: Fault
) -> None:
    api, resolve = _API.fullmatch(path), _RESOLVE.fullmatch(path)
    found = api or resolve
    if found is None:
        _plain(handler, 404)
        return
    name, revision = (found[1], found[3]) if api else (found[1], found[2])
    repo = hub.repos.get(name)
    given = request.headers.get("authorization", "")
    if given and given != f"Bearer {hub.token}":
        _error(handler, 401, "", "Invalid credentials in Authorization header")
        return
    if repo is None or (repo.private and not given):
        _error(handler, 404 if given else 401, "RepoNotFound", "Repository not found")
        return
    commit = repo.refs.get(revision, revision if revision in repo.commits else "")
    if not commit:
        _error(handler, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return
    files = repo.commits[commit]
    if api and api[2] == "revision":
        listed = [{"rfilename": file} for file in files]
        info = {"_id": "1", "id": name, "modelId": name, "sha": commit, "siblings": listed,
                "gated": "manual" if repo.gated else False, "private": repo.private, "tags": []}  # fmt: skip
        _plain(handler, 200, {"Content-Type": "application/json"}, json.dumps(info).encode())
    elif repo.gated and not given:
        _error(handler, 401 if api else 403, "GatedRepo", "Access to model is restricted")
    elif api and api[2] == "tree":
        _tree(handler, hub, name, commit, files, query)
    elif api:
        headers = {"X-Xet-Cas-Url": hub.xet_endpoint, "X-Xet-Access-Token": "t",
                   "X-Xet-Token-Expiration": str(int(time.time()) + 3600)}  # fmt: skip
        _plain(handler, 200, headers, b"{}")
    else:
        assert resolve is not None
        _resolve(handler, hub, request, name, commit, files, resolve[3], fault)


def _tree(
    handler: BaseHTTPRequestHandler, hub: Hub, name: str, commit: str, files: Mapping[str, Body], query: str
) -> None:
    """Answer one page of a recursive listing; folders are listed too, as the hub does."""
    begin = int(parse_qs(query).get("cursor", ["0"])[0])
    folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
    entries: list[dict[str, object]] = [
        {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders
    ]
    for path, body in sorted(files.items()):
        size = size_of(body)
        entry: dict[str, object] = {"type": "file", "size": size, "path": path}
        if _is_lfs(path, body):
            digest = sha256_of(body)
            entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 135}
            entry["oid"] = hashlib.sha1(digest.encode()).hexdigest()
            if digest in hub.xet:
                entry["xetHash"] = hub.xet[digest]
        else:
            entry["oid"] = git_blob(body if isinstance(body, bytes) else body.read_bytes())
        entries.append(entry)
    headers = {"Content-Type": "application/json"}
    if begin + hub.page < len(entries):
        more = f"{hub.url}/api/models/{name}/tree/{commit}?recursive=true&cursor={begin + hub.page}"
        headers["Link"] = f'<{more}>; rel="next"'
    _plain(handler, 200, headers, json.dumps(entries[begin : begin + hub.page]).encode())


def _resolve(
    handler: BaseHTTPRequestHandler,
    hub: Hub,
    request: Request,
    name: str,
    commit: str,
    files: Mapping[str, Body],
    path: str,
    fault: Fault,
) -> None:
    headers = {"X-Repo-Commit": hub.commit_header or commit, "Accept-Ranges": "bytes"}
    if path not in files:
        _error(handler, 404, "EntryNotFound", "Entry not found")
        return
    body = files[path]
    if not _is_lfs(path, body):
        data = body if isinstance(body, bytes) else body.read_bytes()
        headers["ETag"] = f'"{git_blob(data)}"'
        _send(handler, request, data, fault, headers)
        return
    digest = sha256_of(body)
    hub.stored.setdefault(digest, body)
    headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(size_of(body)), **fault.headers}
    if digest in hub.xet:
        route = f"{hub.url}/api/models/{name}/xet-read-token/{commit}"
        headers |= {"X-Xet-Hash": hub.xet[digest], "Link": f'<{route}>; rel="xet-auth"'}
    headers["Location"] = f"{hub.cdn}/cdn/{digest}?Expires={int(time.time()) + 3600}&Signature=s3cr3t"
    _plain(handler, 302, headers)


def _cdn(
    handler: BaseHTTPRequestHandler,
    hub: Hub,
    request: Request,
    digest: str,
    query: Mapping[str, list[str]],
    fault: Fault,
) -> None:
    """Send a stored file; the signature is all that it asks for, and a token would be a leak."""
    if query.get("Signature") != ["s3cr3t"] or int(query["Expires"][0]) < time.time():
        _plain(handler, 403)
    elif digest not in hub.stored:
        _plain(handler, 404)
    else:
        _send(handler, request, hub.stored[digest], fault, {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"})


def _send(
    handler: BaseHTTPRequestHandler, request: Request, body: Body, fault: Fault, headers: Mapping[str, str]
) -> None:
    body = body if fault.body is None else fault.body
    if fault.flip >= 0 and isinstance(body, bytes):
        body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
    size = size_of(body)
    found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    begin = int(found[1]) if found and not fault.no_range else 0
    if begin and begin >= size:
        _plain(handler, 416)
        return
    begin += 1 if begin and fault.wrong_range else 0
    handler.send_response(206 if begin else 200)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", "application/octet-stream")
    handler.send_header("Content-Length", str(size - begin))
    if begin:
        handler.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
    handler.end_headers()
    if handler.command == "HEAD":
        return
    limit = size - begin if fault.drop_after < 0 else min(size - begin, fault.drop_after)
    with contextlib.suppress(OSError):
        if isinstance(body, Path):
            with body.open("rb") as file:
                handler.wfile.flush()
                request.sent += handler.connection.sendfile(file, begin, limit) or 0
        else:
            _drip(handler, request, body[begin : begin + limit], fault.rate)
    if limit < size - begin:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)


def _drip(handler: BaseHTTPRequestHandler, request: Request, body: bytes, rate: int) -> None:
    step = max(1024, rate // 50) if rate else 1 << 20
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        request.sent += len(piece)  # before, or a test could look at it too early
        handler.wfile.write(piece)
        if rate:
            time.sleep(len(piece) / rate)
