# SPDX-License-Identifier: Apache-2.0
"""Entry point in an image: serve, check, plan, models, drafter, health. Exit codes are those of build.py."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from imagebuild.errors import CheckFailed, ImageBuildError, ManifestError, PreconditionError
from imagebuild.preflight.checks_host import MARK, check_access, check_gpus, check_system
from imagebuild.preflight.findings import Finding, accept, exit_code
from imagebuild.preflight.flags import Flags, read_flags
from imagebuild.preflight.host import Host, read_host
from imagebuild.preflight.image import LOCKS, Image, Wishes, api_key, read_image, read_wishes
from imagebuild.preflight.oneshots import run_drafter, run_models
from imagebuild.preflight.report import Result, show
from imagebuild.preflight.sglang import Resolved, assumed_gpu, check_arguments, check_memory, resolve
from imagebuild.preflight.weights import check_models

HEALTH_TIMEOUT = 25  # seconds; SGLang itself gives up after 20


def examine(words: Sequence[str], image: Image, wishes: Wishes, key: str, *, full: bool) -> Result:
    """Run every check that the action asks for, in the order of their ids."""
    flags = read_flags(words)
    host = Host() if wishes.action == "plan" else read_host(image.cache)
    assumed = None if host.gpus.devices else assumed_gpu(image, wishes.gpu)
    found: list[Finding] = []
    if wishes.action != "plan":
        found += check_gpus(image, flags, host, wishes)
        found += check_system(image, flags, host, read_mark(image), wishes)
    models = check_models(flags, LOCKS, full=full)
    found += models.findings
    if wishes.action != "plan":
        found += check_access(flags, wishes, key, port_trouble(flags))
    resolved = Resolved(refused="there is no model")
    if models.findings[0].state != "missing":
        resolved = resolve(words, flags.gpus, assumed)
        found.append(check_arguments(resolved))
        found += check_memory(flags, models, host, assumed, resolved.effective or {})
    else:
        found += [Finding(name, "skipped", "needs the model") for name in ("arguments", "memory")]
    return Result(tuple(accept(found, wishes.accepted)), resolved)


def read_mark(image: Image) -> str:
    """Return the plan that the cache volume belongs to; empty for a new one."""
    try:
        return (image.cache / MARK).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def port_trouble(flags: Flags) -> str:
    """Return why the server's port cannot be bound; empty if it can."""
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((flags.host, flags.port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def start(words: Sequence[str], image: Image, key: str) -> None:
    """Become SGLang's server, which drains its requests on SIGTERM. A key goes by a file, not by a word."""
    with contextlib.suppress(OSError):  # where that matters, the check `cache` has said so
        (image.cache / MARK).write_text(image.plan + "\n", encoding="ascii")
    extra = []
    if key:
        path = Path(tempfile.gettempdir()) / "imagebuild-key.yaml"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f"api-key: {json.dumps(key)}\n")
        extra = ["--config", str(path)]
    sys.stdout.flush()
    os.execvp("sglang", ["sglang", "serve", *words, *extra])


def serve(action: str, words: list[str]) -> int:
    """`serve`, `check`, `plan`: [--json] [--full] FLAGS; return the exit code, or become the server."""
    own = []
    while words and words[0] in ("--json", "--full"):
        own.append(words.pop(0))
    wishes = read_wishes(action, "--json" in own, os.environ)
    if {"-h", "--help"} & set(words):
        os.execvp("sglang", ["sglang", "serve", *words])
    image, key = read_image(), api_key()
    result = examine(words, image, wishes, key, full="--full" in own)
    show(result, words, wishes)
    status = exit_code(result.findings)
    if status == 0 and wishes.action == "serve":
        start(words, image, key)
    return status


def health(words: Sequence[str]) -> int:
    """`health [PORT]`: ask the server for a token.

    Raises PreconditionError (no answer), CheckFailed (it says no) or ManifestError.
    """
    port = words[0] if words else "30000"
    if not port.isdigit():
        raise ManifestError(f'usage: health [PORT], not "{port}"')
    url = f"http://127.0.0.1:{port}/health_generate"
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_TIMEOUT) as answer:
            return 0 if answer.status == 200 else CheckFailed.exit_code
    except urllib.error.HTTPError as error:
        raise CheckFailed(f"the server answers {error.code}") from None
    except OSError as error:
        raise PreconditionError(f"no answer: {getattr(error, 'reason', error)}") from None


def dispatch(action: str, words: list[str]) -> int:
    """Run one action and return its exit code."""
    if action == "health":
        return health(words)
    if action in ("models", "drafter"):
        wishes = read_wishes(action, False, {**os.environ, "IMAGEBUILD_ACTION": ""})
        run = run_models if action == "models" else run_drafter
        print(run(words, LOCKS, wishes.accepted), flush=True)
        return 0
    return serve(action, words)


def main(argv: Sequence[str]) -> int:
    """Entry point; no exception of ours leaves it."""
    try:
        return dispatch(argv[0], list(argv[1:]))
    except ImageBuildError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
