# SPDX-License-Identifier: Apache-2.0
"""Errors with a place in a file, rendered like a compiler's, all of a file at once.

images/sm_103/image.yaml:7:3: error: unknown key "stak"
    stak: k26
    ^
  allowed: arch, layers, stack
  did you mean "stack"?
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuild.errors import ManifestError

_MAX_WIDTH = 140  # characters of a source line that are shown
_MAX_ALLOWED = 24  # allowed values that are listed before "and N more"


@dataclass(frozen=True)
class Diagnostic:
    """One error. `line` and `column` count from 1; `line` 0 means the file as a whole.

    `allowed` lists what would be right, `suggestion` the one of it that was likely meant, and
    `source_line` is the line of the file without its line break.
    """

    file: str
    line: int
    column: int
    message: str
    allowed: tuple[str, ...] = ()
    suggestion: str | None = None
    source_line: str = ""

    def render(self) -> str:
        """Return the error as text of one or more lines, without a final newline."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        lines = [f"{place}: error: {printable(self.message)}"]
        if self.line:
            lines += _excerpt(self.source_line, self.column)
        if self.allowed:
            more = len(self.allowed) - _MAX_ALLOWED
            shown = ", ".join(self.allowed[:_MAX_ALLOWED])
            lines.append(f"  allowed: {printable(shown)}" + (f" and {more} more" if more > 0 else ""))
        if self.suggestion is not None:
            lines.append(f'  did you mean "{printable(self.suggestion)}"?')
        return "\n".join(lines)


class Diagnostics(ManifestError):
    """All errors found in one go, sorted by file and place. Exit code 2."""

    def __init__(self, diagnostics: Iterable[Diagnostic], *, hint: str | None = None) -> None:
        ordered = sorted(set(diagnostics), key=lambda d: (d.file, d.line, d.column, d.message))
        self.diagnostics = tuple(ordered)
        super().__init__("\n".join(d.render() for d in ordered), hint=hint)


class Refused(ManifestError, ValueError):
    """A value is not one of `allowed`, or breaks a rule; for pydantic validators and for callers.

    As a ValueError it is caught by pydantic, and `yamlfile` then shows `allowed` and `suggestion`
    at the value. A validator of a whole model names the guilty part by `at`, a path below the
    model, for example `("packages", 0)`.
    """

    def __init__(
        self,
        message: str,
        *,
        allowed: Iterable[str] = (),
        suggestion: str | None = None,
        at: Sequence[str | int] = (),
    ) -> None:
        self.allowed = tuple(allowed)
        self.suggestion = suggestion
        self.at = tuple(at)
        self.reason = message
        text = message + (f"; allowed: {', '.join(self.allowed)}" if self.allowed else "")
        super().__init__(text, hint=None if suggestion is None else f'did you mean "{suggestion}"?')


def raise_all(diagnostics: Iterable[Diagnostic], *, hint: str | None = None) -> None:
    """Raise Diagnostics (a ManifestError) with all of them; do nothing if there are none."""
    found = tuple(diagnostics)
    if found:
        raise Diagnostics(found, hint=hint)


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `word` most likely meant, or None if none is near."""
    by_folded: dict[str, str] = {}
    for choice in choices:
        by_folded.setdefault(_fold(choice), choice)
    near = difflib.get_close_matches(_fold(word), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near and by_folded[near[0]] != word else None


def printable(text: str) -> str:
    """Replace what could move the cursor or colour a terminal; keep tabs and all letters."""
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _fold(word: str) -> str:
    return word.casefold().replace("-", "_")


def _excerpt(source: str, column: int) -> list[str]:
    """Return the source line and the caret line, cut to a window around the column."""
    start = max(0, column - _MAX_WIDTH // 2) if len(source) > _MAX_WIDTH else 0
    window = printable(source[start : start + _MAX_WIDTH])
    if not window.strip():
        return []
    pad = "".join("\t" if c == "\t" else " " for c in window[: column - 1 - start])
    return [f"    {window}".rstrip(), f"    {pad.ljust(column - 1 - start)}^"]
