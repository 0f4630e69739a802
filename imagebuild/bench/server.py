# SPDX-License-Identifier: Apache-2.0
"""What a running server says of itself: ready, flags, memory, greedy answers. SGLang's HTTP interface."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests

from imagebuild import process
from imagebuild.bench.suite import Known
from imagebuild.errors import CheckFailed, ImageBuildError, PreconditionError

_SECRET = re.compile(r"(_key|password|secret)$")
_CONNECT_S = 10.0


@dataclass(frozen=True)
class Facts:
    """`flags` are the effective ones, without secrets; `memory_gib` is the server's view of one GPU."""

    version: str
    flags: dict[str, Any]
    memory_gib: dict[str, float]


class Server:
    """A server at `url` (no slash at its end). Proxies of the environment are not used."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False

    def is_ready(self) -> bool:
        """Whether the server answers a request with a token now."""
        try:
            answer = self._session.get(f"{self.url}/health_generate", timeout=(_CONNECT_S, 60))
        except requests.RequestException:
            return False
        return answer.status_code == 200

    def wait(self, timeout_s: float, alive: Callable[[], bool] = lambda: True, every_s: float = 1.0) -> float:
        """Wait until it is ready and return the seconds that took.

        Raises PreconditionError if it is not ready in time, or `alive` says that it is gone.
        """
        begun = time.monotonic()
        while not self.is_ready():
            waited = time.monotonic() - begun
            if waited > timeout_s:
                raise PreconditionError(
                    f"{self.url}: not ready after {waited:.0f} s", hint="look at the server's log"
                )
            if not alive():
                raise PreconditionError(f"{self.url}: the server ended", hint="look at the server's log")
            time.sleep(every_s)
        return time.monotonic() - begun

    def facts(self) -> Facts:
        """Ask for version, flags and memory. Raises PreconditionError if it does not answer."""
        value = self._get("/server_info")
        states = value.get("internal_states") or [{}]
        memory = states[0].get("memory_usage") or {}
        flags = {
            name: item
            for name, item in sorted(value.items())
            if isinstance(item, str | int | float | bool) and not _SECRET.search(name)
        }
        numbers = {name: float(item) for name, item in memory.items() if isinstance(item, int | float)}
        return Facts(str(value.get("version", "")), flags, numbers)

    def tokenizer(self) -> str:
        """Return where the server says its tokenizer is, as the server sees it."""
        value = self._get("/model_info")
        return str(value.get("tokenizer_path") or value.get("model_path") or "")

    def answer(self, prompt: Known, tokens: int) -> tuple[tuple[int, ...], str]:
        """Return the greedy answer as token ids and text. Raises CheckFailed if the server refuses."""
        body: dict[str, Any] = {"text": prompt.text} if prompt.text else {"input_ids": list(prompt.ids)}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        try:
            answer = self._session.post(f"{self.url}/generate", json=body, timeout=(_CONNECT_S, 900))
        except requests.RequestException as error:
            raise CheckFailed(f"{self.url}/generate: {error}") from error
        if answer.status_code != 200:
            raise CheckFailed(f"{self.url}/generate: HTTP {answer.status_code}: {answer.text[:500]}")
        value = answer.json()
        return tuple(value.get("output_ids") or ()), str(value.get("text") or "")

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._session.get(f"{self.url}{path}", timeout=(_CONNECT_S, 60))
            answer.raise_for_status()
            value: dict[str, Any] = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise PreconditionError(f"{self.url}{path}: {error}", hint="is it an SGLang server?") from error
        return value


def gpu_memory_mib() -> tuple[int, ...]:
    """Return the memory in use on each of this host's GPUs; empty without nvidia-smi or a driver."""
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        lines = process.output(argv, timeout=30).splitlines()
    except ImageBuildError:
        return ()
    return tuple(int(line) for line in lines if line.strip().isdigit())
