# SPDX-License-Identifier: Apache-2.0
"""Print what a preflight found: lines for people, or one JSON object. No key is ever printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.preflight.findings import Finding, as_json, exit_code, line, summary
from imagebuild.preflight.image import Wishes
from imagebuild.preflight.sglang import Resolved


@dataclass(frozen=True)
class Result:
    """What the preflight found."""

    findings: tuple[Finding, ...]
    resolved: Resolved


def effective_lines(resolved: Resolved) -> list[str]:
    """Return the effective values as flags, one a line, and what SGLang said about them."""
    out = []
    for name, value in (resolved.effective or {}).items():
        text = value if isinstance(value, str) else json.dumps(_short(value))
        out.append(f"  --{name.replace('_', '-')}" + ("" if value is True else f" {text}"))
    return out + [f"  ({text})" for text in resolved.said]


def _short(value: Any) -> Any:
    """Shorten long lists, those of CUDA graph sizes; JSON has all of them."""
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, list) and len(value) > 8:
        return [*value[:3], "...", value[-1]]
    return value


def show(result: Result, words: Sequence[str], wishes: Wishes) -> None:
    """Print everything: one line a check, the effective flags, the command; or one JSON object."""
    command = ["sglang", "serve", *hidden(words)]
    if wishes.as_json:
        value: dict[str, Any] = {
            "action": wishes.action,
            "exit": exit_code(result.findings),
            "checks": as_json(result.findings),
            "effective": result.resolved.effective,
            "said": result.resolved.said,
            "command": command,
        }
        print(json.dumps(value, ensure_ascii=False), flush=True)
        return
    for finding in result.findings:
        print(line(finding))
    if result.resolved.effective is not None:
        print("effective flags, where they differ from SGLang's defaults:")
        print("\n".join(effective_lines(result.resolved)))
    print(f"command: {shlex.join(command)}")
    print(f"{wishes.action}: {summary(result.findings)}", flush=True)


def hidden(words: Sequence[str]) -> list[str]:
    """Return a command line without the values of keys."""
    out, secret = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        out.append("***" if secret else f"{name}=***" if equals and name.endswith("api-key") else word)
        secret = word.endswith("api-key") and word.startswith("--")
    return out
