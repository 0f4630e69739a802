# SPDX-License-Identifier: Apache-2.0
"""Read BuildKit's `--progress=rawjson` stream: steps started, finished, failed, and their output."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from imagebuild.engine import Report

_KEPT_LINES = 40
_LARGEST_EVENT = 1 << 20  # characters
_MOUNTS = re.compile(r"--mount=\S+ ")
_SOURCE = re.compile(r"from=(\S+?),")


def step_title(name: str) -> str:
    """Return a step's short title: a RUN of ours by its layer, everything else without its mounts."""
    if "RUN --mount" in name:
        layers = [found for found in _SOURCE.findall(name) if found != "tools"]
        place = re.match(r"\[[^\]]*\]", name)
        prefix = f"{place[0]} " if place else ""
        return f"{prefix}layer {layers[0] if layers else 'base'}"
    return _MOUNTS.sub("", name)[:100]


@dataclass
class StepLog:
    """Turns the stream into report lines and keeps what a failure message needs."""

    report: Report
    names: dict[str, str] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    errors: list[str] = field(default_factory=list)
    pending: str = ""

    def line(self, text: str) -> None:
        """Take one line of the stream; an event may be one line (new buildx) or many (0.13).

        What is not JSON is buildx's own message.
        """
        if not self.pending and not text.startswith("{"):
            if text.strip():
                self.tail.append(text)
            return
        self.pending += text + "\n"
        if not text.endswith("}"):
            return
        try:
            event = json.loads(self.pending)
        except ValueError:
            if len(self.pending) > _LARGEST_EVENT:
                self.pending = ""
            return
        self.pending = ""
        for vertex in event.get("vertexes") or []:
            self._vertex(vertex)
        for log in event.get("logs") or []:
            self._log(log)

    def _vertex(self, vertex: dict[str, Any]) -> None:
        key, name = str(vertex.get("digest")), str(vertex.get("name", ""))
        internal = name.startswith("[internal]")
        if key not in self.names:
            self.names[key] = step_title(name)
        if vertex.get("error"):
            self.errors.append(f"{self.names[key]}: {vertex['error']}")
        elif vertex.get("completed") and key not in self.finished:
            self.finished.add(key)
            if not internal:
                self.report(f"{self.names[key]}: {'cached' if vertex.get('cached') else 'done'}")

    def _log(self, log: dict[str, Any]) -> None:
        try:
            data = base64.b64decode(log.get("data") or "").decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return
        title = self.names.get(str(log.get("vertex")), "")
        for line in data.splitlines():
            self.tail.append(line)
            self.report(f"{title}: {line}")

    def failure(self) -> str:
        """Return the failed steps and the end of the output."""
        return "\n".join([*self.errors, *self.tail])
