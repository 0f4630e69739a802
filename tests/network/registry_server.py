# SPDX-License-Identifier: Apache-2.0
"""A small registry (OCI distribution specification) whose faults a test chooses."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Registry:
    """State and faults. `plan` maps "METHOD kind" to a list of faults, one used up per request."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    plan: dict[str, list[str]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    received: int = 0
    login: str = ""
    address: str = ""
    token: bool = False
    referrers: bool = True
    mountable: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, key: str) -> str:
        with self.lock:
            self.seen[key] += 1
            waiting = self.plan.get(key, [])
            return waiting.pop(0) if waiting else ""


def serve(registry: Registry) -> ThreadingHTTPServer:
    """Start on a free loopback port; the caller shuts it down."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def allowed(self) -> bool:
            wanted = {f"Basic {registry.login}"} if not registry.token else {"Bearer let-me-in"}
            if not registry.login or self.headers.get("Authorization") in wanted:
                return True
            self.body()
            host = f"http://{self.headers['Host']}"
            challenge = f'Bearer realm="{host}/token",service="here",scope="x"' if registry.token else "Basic"
            self.reply(401, WWW_Authenticate=challenge)
            return False

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if url.path == "/token":
                good = self.headers.get("Authorization") == f"Basic {registry.login}"
                self.reply(200 if good else 401, b'{"token": "let-me-in"}')
                return
            if not self.allowed():
                return
            kinds = ("uploads", "blobs", "manifests", "referrers")
            kind = next((k for k in kinds if f"/{k}/" in url.path), "other")
            fault = registry.fault(f"{self.command} {kind}")
            if fault == "drop":
                self.rfile.read(min(4096, int(self.headers.get("Content-Length", 0))))
                self.close_connection = True
                self.connection.close()
                return
            if fault.isdigit():
                self.body()
                self.reply(int(fault))
                return
            getattr(self, f"{self.command.lower()}_{kind}")(url.path, query, fault)

        do_HEAD = do_GET = do_POST = do_PATCH = do_PUT = handle_one

        def head_blobs(self, path: str, query: dict[str, str], fault: str) -> None:
            found = path.rpartition("/")[2] in registry.blobs
            self.reply(200 if found and fault != "deny" else 404)

        def post_uploads(self, path: str, query: dict[str, str], fault: str) -> None:
            if query.get("mount") in registry.mountable and query.get("from"):
                registry.blobs[query["mount"]] = b""
                self.reply(201)
                return
            name = uuid.uuid4().hex
            registry.uploads[name] = bytearray()
            where = {} if fault == "no location" else {"Location": f"{path}{name}"}
            self.reply(202, b"", **where)

        def patch_uploads(self, path: str, query: dict[str, str], fault: str) -> None:
            upload = registry.uploads.get(path.rpartition("/")[2])
            data = self.body()
            if fault == "half":
                data = data[: len(data) // 2]
            if upload is None or fault == "lose":
                registry.uploads.pop(path.rpartition("/")[2], None)
                self.reply(404)
                return
            start = int(self.headers["Content-Range"].partition("-")[0])
            if start != len(upload):
                self.reply(416, Location=path, Range=f"0-{max(0, len(upload) - 1)}")
                return
            upload += data
            registry.received += len(data)
            if fault == "half":
                self.close_connection = True
                self.connection.close()
                return
            self.reply(202, Location=path, Range=f"0-{len(upload) - 1}")

        def get_uploads(self, path: str, query: dict[str, str], fault: str) -> None:
            upload = registry.uploads.get(path.rpartition("/")[2])
            if upload is None:
                self.reply(404)
                return
            self.reply(204, Location=path, Range=f"0-{max(0, len(upload) - 1)}")

        def put_uploads(self, path: str, query: dict[str, str], fault: str) -> None:
            upload = registry.uploads.pop(path.rpartition("/")[2], None)
            if fault == "lose":
                self.body()
                self.reply(404)
                return
            content = bytes(upload or b"") + self.body()
            if upload is None or f"sha256:{hashlib.sha256(content).hexdigest()}" != query["digest"]:
                self.reply(400)
                return
            registry.blobs[query["digest"]] = content
            told = "sha256:" + "0" * 64 if fault == "lie" else query["digest"]
            self.reply(201, Docker_Content_Digest=told)

        def get_blobs(self, path: str, query: dict[str, str], fault: str) -> None:
            content = registry.blobs.get(path.rpartition("/")[2])
            self.reply(200 if content is not None else 404, content or b"")

        def put_manifests(self, path: str, query: dict[str, str], fault: str) -> None:
            content = self.body()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            registry.manifests[path.rpartition("/")[2]] = registry.manifests[digest] = content
            subject = json.loads(content).get("subject") if registry.referrers else None
            self.reply(201, **({"OCI_Subject": subject["digest"]} if subject else {}))

        def get_manifests(self, path: str, query: dict[str, str], fault: str) -> None:
            content = registry.manifests.get(path.rpartition("/")[2])
            if content is None:
                self.reply(404)
                return
            kind = json.loads(content).get("mediaType", "")
            self.reply(200, content + b" " if fault == "other" else content, Content_Type=kind)

        def get_referrers(self, path: str, query: dict[str, str], fault: str) -> None:
            if not registry.referrers:
                self.reply(404)
                return
            digest = path.rpartition("/")[2]
            found = {}
            for content in registry.manifests.values():
                manifest = json.loads(content)
                if manifest.get("subject", {}).get("digest") == digest:
                    name = f"sha256:{hashlib.sha256(content).hexdigest()}"
                    found[name] = {
                        "digest": name,
                        "artifactType": manifest["artifactType"],
                        "size": len(content),
                    }
            self.reply(200, json.dumps({"manifests": list(found.values())}).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
