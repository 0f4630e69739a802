# SPDX-License-Identifier: Apache-2.0
"""Run SGLang's whole argument resolution, also for GPUs that are not there. It imports nothing of ours.

Reads JSON from standard input: {"runs": [[word, ...], ...], "gpu": null or {"capability": [10, 3],
"name": ..., "memory": bytes, "count": 8}}. With a `gpu`, torch.cuda answers for that one; nothing of SGLang
is replaced. Its "operators", a capability, are those that the image has, if it is another arch's: sgl_kernel
is then imported as on that one. Writes one JSON line per run: {"refused": why}, or {"effective": the values
that differ from SGLang's defaults, "said": SGLang's lines about what it changed}.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import re
import sys
import types
from typing import Any

# Drawn anew at every start, or no setting of the server.
_LEFT_OUT = {"random_seed", "nccl_port", "model_config"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOGGERS = ("sglang.srt.server_args", "sglang.srt.arg_groups")


def pretend(gpu: dict[str, Any]) -> None:
    """Make torch.cuda answer for a GPU."""
    import torch

    major, minor = gpu["capability"]
    memory = gpu["memory"]
    properties = types.SimpleNamespace(
        name=gpu["name"], major=major, minor=minor, total_memory=memory, multi_processor_count=148,
        is_integrated=0, gcnArchName="",
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: gpu["count"],
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: gpu["name"],
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (memory, memory),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


class _Keep(logging.Handler):
    """Keeps what SGLang says while it resolves."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(_COLOURS.sub("", record.getMessage()))


def effective(args: Any) -> dict[str, Any]:
    """Return the fields of ServerArgs whose value is not the default, as JSON values; keys never."""
    out = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name in _LEFT_OUT or field.name.startswith("_") or value == default:
            continue
        secret = field.name.endswith("api_key")
        out[field.name] = "***" if secret else json.loads(json.dumps(value, default=_plain))
    return out


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def resolve(words: list[str]) -> dict[str, Any]:
    """Return what SGLang makes of a command line."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    keep = _Keep()
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(keep)
        logging.getLogger(name).setLevel(logging.INFO)
    said = io.StringIO()  # argparse says there why it exits
    try:
        with contextlib.redirect_stderr(said):
            args = prepare_server_args(words)
    except SystemExit:
        lines = said.getvalue().strip().splitlines()
        return {"refused": lines[-1] if lines else "SGLang ended without a word"}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(keep)
    return {"effective": effective(args), "said": keep.lines}


def main() -> None:
    """Answer every run of the request."""
    request = json.load(sys.stdin)
    gpu = request["gpu"]
    if gpu is not None:
        if "operators" in gpu:
            pretend({**gpu, "capability": gpu["operators"]})
            importlib.import_module("sgl_kernel")
        pretend(gpu)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [resolve(words) for words in request["runs"]]
    for answer in answers:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
