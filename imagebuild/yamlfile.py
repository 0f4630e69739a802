# SPDX-License-Identifier: Apache-2.0
"""Read a YAML file into a strict pydantic model; every error has a line, a column and a way out.

The YAML is the plain part of the language: one document of mappings with text keys, lists and
scalars. Anchors, aliases, merge keys and tags are refused, so nothing expands and nothing is
hidden. So are the YAML 1.1 readings that surprise (`no` as false, `0755` as 493, `1:30` as 90).
Values are validated in pydantic's JSON mode, in which strict models take lists for tuples and
text for dates, paths and enums.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from imagebuild.diagnostics import Diagnostic, Diagnostics, closest, raise_all
from imagebuild.yamlerrors import KIND_NAME, Positions, explain, found, kind_of, top_keys

__all__ = ["Positions", "load", "load_with_positions"]

M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_DIGITS = 400  # of a number; far below where Python refuses to convert
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what PyYAML counts as a line
_PLAIN = {  # YAML 1.1 scalars whose reading nobody disputes, by kind
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
}


def load(path: Path, model: type[M]) -> M:
    """Read `path` as `model`. Raises Diagnostics (a ManifestError, exit code 2) with all errors."""
    return load_with_positions(path, model)[0]


def load_with_positions(path: Path, model: type[M]) -> tuple[M, Positions]:
    """Like `load`, and also return where each value stands, for errors found later."""
    positions, problems = _read(path, model)
    try:
        text = json.dumps(positions.values[id(positions.root)])
        value = model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        places = {(d.line, d.column) for d in problems}  # one error a place: the first cause
        later = explain(error.errors(), positions, model)
        raise Diagnostics([*problems, *(d for d in later if (d.line, d.column) not in places)]) from None
    raise_all(problems)
    return value, positions


class _Refuse(yaml.MarkedYAMLError):
    """The file uses a part of YAML that we do not take."""


class _Loader(yaml.SafeLoader):
    """Compose nodes; refuse aliases, anchors, tags and deep nesting before they cost anything."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not supported: write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = "tags are not supported: quote the value instead"
        elif self.depth >= MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        if problem is not None:
            raise _Refuse(None, None, problem, event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _read(path: Path, model: type[BaseModel]) -> tuple[Positions, list[Diagnostic]]:
    """Return the file's positions and values, and the errors that do not stop reading."""
    text = _read_text(path)
    lines = tuple(_LINE_BREAK.split(text))
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise Diagnostics([_syntax_error(path, lines, error)]) from None
    except yaml.reader.ReaderError as error:
        message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise Diagnostics([_at_end_of(path, text[: error.position], message)]) from None
    if root is None:
        message = "the file is empty: expected a mapping"
        raise Diagnostics([Diagnostic(str(path), 0, 0, message, top_keys(model))])
    positions = Positions(str(path), lines, root, {})
    problems: list[Diagnostic] = []
    _value(root, positions, problems)
    if not isinstance(root, yaml.MappingNode):
        message = f"expected a mapping at the top, found {found(root)}"
        raise Diagnostics([*problems, positions.at(root.start_mark, message, top_keys(model))])
    return positions, problems


def _read_text(path: Path) -> str:
    """Return the file's text without a byte order mark; raises Diagnostics."""

    def refuse(message: str, suggestion: str | None = None) -> Diagnostics:
        return Diagnostics([Diagnostic(str(path), 0, 0, message, (), suggestion)])

    if path.is_dir():
        raise refuse("is a directory: expected a YAML file")
    if not path.exists():
        near = closest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise refuse("no such file", None if near is None else str(path.with_name(near)))
    if not path.is_file():
        raise refuse("is not a regular file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise refuse(f"is larger than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.object lacks the byte order mark, and error.start counts without it
        before = error.object[: error.start].decode()
        message = f"not UTF-8: byte 0x{error.object[error.start]:02x}; save the file as UTF-8"
        raise Diagnostics([_at_end_of(path, before, message)]) from None


def _at_end_of(path: Path, before: str, message: str) -> Diagnostic:
    """Return an error at the character that follows the text `before`."""
    lines = _LINE_BREAK.split(before)
    last = lines[-1] + "\N{REPLACEMENT CHARACTER}"
    return Diagnostic(str(path), len(lines), len(last), message, (), None, last)


def _syntax_error(path: Path, lines: tuple[str, ...], error: yaml.MarkedYAMLError) -> Diagnostic:
    mark, problem = error.problem_mark or error.context_mark, str(error.problem)
    assert mark is not None
    if error.context_mark is not None and not "".join(lines[mark.line :]).strip():
        mark = error.context_mark  # the file ends too early: where the quote or bracket was opened
    line = lines[mark.line] if mark.line < len(lines) else ""
    if isinstance(error, _Refuse):
        message = problem
    elif line[mark.column : mark.column + 1] == "\t":
        message = "tab character: YAML is indented with spaces"
    elif isinstance(error, yaml.composer.ComposerError):
        message = "a second document starts here: a file holds one"
    else:
        message = "not valid YAML: " + ", ".join(p for p in (error.context, error.problem) if p)
    if problem == "mapping values are not allowed here":
        message += ': quote text that has ": " in it, and check the indentation'
    return Diagnostic(str(path), mark.line + 1, mark.column + 1, message, (), None, line)


def _value(node: yaml.Node, positions: Positions, problems: list[Diagnostic]) -> Any:
    """Return what a node holds, in JSON's types, and note it and all below it in `positions`."""
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = {}
        for key, child in node.value:
            item = _value(child, positions, problems)
            if not isinstance(key, yaml.ScalarNode) or kind_of(key) == "merge":
                problems.append(positions.at(key.start_mark, "a key must be plain text"))
            elif key.value in value:
                first = next(k for k, _ in node.value if k.value == key.value).start_mark.line + 1
                message = f'duplicate key "{key.value}": first given on line {first}'
                problems.append(positions.at(key.start_mark, message))
            else:
                value[key.value] = item
    elif isinstance(node, yaml.ScalarNode):
        try:
            value = _scalar(node)
        except ValueError as error:
            problems.append(positions.at(node.start_mark, str(error)))
            value = node.value.encode(errors="replace").decode()
    else:
        value = [_value(child, positions, problems) for child in node.value]
    positions.values[id(node)] = value
    return value


def _scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """Return a scalar as text, number, bool or None; raises ValueError where readers disagree."""
    kind, text = kind_of(node), str(node.value)
    if kind == "null":
        return None
    if kind in _PLAIN and (len(text) > MAX_DIGITS or not _PLAIN[kind].fullmatch(text)):
        plain = "true or false" if kind == "bool" else "a plain decimal number"
        shown = text[:40]
        raise ValueError(f'YAML reads {shown} as {KIND_NAME[kind]}: write {plain}, or quote it: "{shown}"')
    if kind == "bool":
        return text.lower() == "true"
    if kind in ("int", "float"):
        return int(text) if kind == "int" else float(text)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise ValueError("half of a surrogate pair is not text")
    return text
