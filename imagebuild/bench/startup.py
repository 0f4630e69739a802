# SPDX-License-Identifier: Apache-2.0
"""A server's log → when its weights were loaded, its graphs captured and it was ready.

The messages are those of SGLang 0.5.15 to 0.5.17 (srt/model_executor/model_runner.py and
srt/entrypoints/http_server.py). Times are the log's own, `[2026-12-01 15:00:00 TP0]`, or better ones that
`docker compose logs --timestamps` puts in front of each line.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from imagebuild.bench.result import Startup

_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(\.\d+)?")
_LOAD = re.compile(r"Load weight (begin|end)\b")
_GRAPHS = re.compile(r"Capture .*\b(begin|end)\.")
_READY = "The server is fired up and ready to roll!"


def _moment(line: str) -> float | None:
    found = _STAMP.search(line)
    if found is None:
        return None
    day = datetime.datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=datetime.timezone.utc)
    return day.timestamp() + float(found[3] or 0)


def read_startup(lines: Iterable[str], first_token: float | None = None) -> Startup:
    """Return the timeline, counted from the first line with a time."""
    begin: dict[str, float] = {}
    end: dict[str, float] = {}
    first = ready = None
    for line in lines:
        moment = _moment(line)
        if moment is None:
            continue
        first = moment if first is None else first
        for name, pattern in (("load", _LOAD), ("graphs", _GRAPHS)):
            found = pattern.search(line)
            if found and found[1] == "begin":
                begin.setdefault(name, moment)
            elif found:
                end[name] = moment
        if _READY in line and ready is None:
            ready = moment
    if first is None:
        return Startup(first_token=first_token)

    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - first, 3)

    def took(name: str) -> float | None:
        return round(end[name] - begin[name], 3) if name in begin and name in end else None

    return Startup(
        load_begin=since(begin.get("load")),
        load=took("load"),
        graphs_begin=since(begin.get("graphs")),
        graphs=took("graphs"),
        ready=since(ready),
        first_token=first_token,
    )
