# SPDX-License-Identifier: Apache-2.0
"""Join pydantic's errors with the YAML nodes they are about.

pydantic names a place by a location such as `("layers", 2, "packages", 0)`, in which the branches
of unions are steps too; PyYAML's nodes know lines and columns. What would be allowed is read from
the model's JSON schema, so it is never written down twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from imagebuild.diagnostics import Diagnostic, Refused, closest

Loc = Sequence[str | int]

KIND_NAME = {"int": "a number", "float": "a number", "bool": "a true/false value", "timestamp": "a date"}
_DATE = "a date (YYYY-MM-DD)"
_EXPECTED = {  # pydantic error type -> what the file should hold
    **dict.fromkeys(("string_type", "path_type"), "text"),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), _DATE),
    "date_from_datetime_inexact": _DATE,
    "none_required": "nothing",
}


@dataclass(frozen=True)
class Positions:
    """Where the values of one loaded file stand. `values` maps id(node) to what the node holds."""

    file: str
    lines: tuple[str, ...]
    root: yaml.Node
    values: dict[int, Any]

    def diagnostic(
        self,
        path: Loc,
        message: str,
        *,
        allowed: Iterable[str] = (),
        suggestion: str | None = None,
        key: bool = False,
    ) -> Diagnostic:
        """Return an error at a value, for example at `("layers", 2, "packages", 0)`.

        The nearest enclosing value serves if the file lacks that path (a default). With `key`
        the error points at the last key of the path instead of at its value. Without a
        `suggestion`, the member of `allowed` nearest to the text found there becomes it.
        """
        place = self.place(path, key=key)
        choices = tuple(allowed)
        if suggestion is None and isinstance(place, yaml.ScalarNode):
            suggestion = closest(place.value, choices)
        return self.at(place.start_mark, message, choices, suggestion)

    def place(self, path: Loc, *, key: bool = False) -> yaml.Node:
        """Return the node at a path, or the nearest enclosing one; with `key` the last key's."""
        place = node = self.root
        for part in path:
            step = _child(node, part)
            if step is None:
                return node
            key_node, node = step
            place = key_node if key and key_node is not None else node
        return place

    def at(
        self, mark: yaml.Mark, message: str, allowed: Iterable[str] = (), suggestion: str | None = None
    ) -> Diagnostic:
        """Return an error at a PyYAML mark (which counts from 0)."""
        line = self.lines[mark.line] if mark.line < len(self.lines) else ""
        place = (mark.line + 1, mark.column + 1)
        return Diagnostic(self.file, *place, message, tuple(allowed), suggestion, line)


def explain(errors: Sequence[ErrorDetails], positions: Positions, model: type[BaseModel]) -> list[Diagnostic]:
    """Return one diagnostic per mistake in the file.

    Each branch of a union reports its own wrong type: those of one value are merged, and dropped
    where another branch fits well enough to have more precise errors.
    """
    expected: dict[int, tuple[yaml.Node, list[str]]] = {}
    precise: list[tuple[yaml.Node, Diagnostic]] = []
    for error in errors:
        node = _node_of(error, positions)
        if error["type"] in _EXPECTED:
            expected.setdefault(id(node), (node, []))[1].append(_EXPECTED[error["type"]])
        else:
            precise.append((node, _diagnose(error, node, positions, model)))
    out = [diagnostic for _, diagnostic in precise]
    for node, names in expected.values():
        below = {id(child) for _, child in _paths(node)}
        if not any(id(other) in below for other, _ in precise):
            out.append(positions.at(node.start_mark, _wrong_type(node, list(dict.fromkeys(names)))))
    return out


def _wrong_type(node: yaml.Node, names: list[str]) -> str:
    message = f"expected {' or '.join(names)}, found {found(node)}"
    if "text" in names and kind_of(node) in KIND_NAME:
        return f'{message}: quote it: "{node.value}"'
    if names == ["a list"] and isinstance(node, yaml.ScalarNode) and kind_of(node) != "null":
        return f"{message}: write it as a list: [{node.value}]"
    return message


def _diagnose(
    error: ErrorDetails, node: yaml.Node, positions: Positions, model: type[BaseModel]
) -> Diagnostic:
    """Return the diagnostic of any error that is not a plain wrong type."""
    kind, loc = error["type"], error["loc"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        name, keys = str(loc[-1]), _keys(_schemas_at(model, loc[:-1]))
        place = _key_of(positions.root, node)
        return positions.at(place.start_mark, f'unknown key "{name}"', keys, closest(name, keys))
    if kind == "missing":
        return positions.at(node.start_mark, f'missing key "{loc[-1]}"')
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = str(error["ctx"]["discriminator"]).strip("'")
        tags = sorted({tag for schema in _schemas_at(model, loc) for tag in _tags(schema)})
        step = _child(node, name)
        if step is not None:
            return _not_allowed(step[1], tags, positions)
        return positions.at(node.start_mark, f'missing key "{name}"', tags)
    if kind in ("literal_error", "enum"):
        values = [str(value) for schema in _schemas_at(model, loc) for value in _values(schema)]
        return _not_allowed(node, values, positions)
    return _refused(error, node, positions)


def _refused(error: ErrorDetails, node: yaml.Node, positions: Positions) -> Diagnostic:
    """Return what a validator or a constraint says of a value, or of a key of a mapping."""
    is_key = error["loc"][-1:] == ("[key]",)
    place = _key_of(positions.root, node) if is_key else node
    reason = error.get("ctx", {}).get("error")
    if isinstance(reason, Refused):
        path = next(path for path, other in _paths(positions.root) if other is node) + reason.at
        mark = positions.place(path, key=is_key).start_mark
        return positions.at(mark, reason.reason, reason.allowed, reason.suggestion)
    if reason is not None:
        return positions.at(place.start_mark, str(reason))
    message = (
        error["msg"].replace("Input should", "the value should").replace("Tuple should", "the list should")
    )
    if isinstance(node, yaml.ScalarNode):
        message += f", found {found(node)}"
    return positions.at(place.start_mark, message[:1].lower() + message[1:])


def _not_allowed(node: yaml.Node, values: list[str], positions: Positions) -> Diagnostic:
    near = closest(str(node.value), values) if isinstance(node, yaml.ScalarNode) else None
    message = f"expected one of the allowed values, found {found(node)}"
    return positions.at(node.start_mark, message, values, near)


def kind_of(node: yaml.Node) -> str:
    """Return the last part of a node's tag: str, int, float, bool, null, timestamp, map, seq …"""
    return str(node.tag).rpartition(":")[2]


def found(node: yaml.Node) -> str:
    """Say in YAML's terms what stands in the file."""
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
    kind = kind_of(node)
    if kind == "null":
        return "nothing (an empty value)"
    text = node.value if len(node.value) <= 60 else node.value[:57] + "..."
    return f"{KIND_NAME[kind].replace('a ', 'the ', 1)} {text}" if kind in KIND_NAME else f'text "{text}"'


# --- a pydantic location -> a node ------------------------------------------------------------


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    """Return (key node, value node) of one step down, or None if the node has no such part."""
    if isinstance(node, yaml.MappingNode):
        return next(((k, v) for k, v in node.value if k.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        return None, node.value[part]
    return None


def _walks(node: yaml.Node, loc: Loc, steps: int = 0) -> Iterator[tuple[int, yaml.Node]]:
    """Yield (steps taken, node) of each way down a location, in which union tags are no step."""
    if not loc:
        yield steps, node
        return
    step = _child(node, loc[0])
    if step is not None:
        yield from _walks(step[1], loc[1:], steps + 1)
    yield from _walks(node, loc[1:], steps)


def _node_of(error: ErrorDetails, positions: Positions) -> yaml.Node:
    """Return the node an error is about; for a missing key, the mapping that lacks it.

    A location also names the branches of unions, and a branch may be called like a key: of all
    ways down, the one that ends at the error's input and takes most steps is right.
    """

    def rank(walk: tuple[int, yaml.Node]) -> tuple[bool, int]:
        return positions.values[id(walk[1])] == error["input"], walk[0]

    return max(_walks(positions.root, error["loc"]), key=rank)[1]


def _paths(
    node: yaml.Node, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], yaml.Node]]:
    """Yield (path, node) for a node and all below it."""
    yield path, node
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            yield from _paths(child, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield from _paths(child, (*path, index))


def _key_of(root: yaml.Node, value: yaml.Node) -> yaml.Node:
    """Return the key node that a value node belongs to; the value itself in a list."""
    mappings = (node for _, node in _paths(root) if isinstance(node, yaml.MappingNode))
    return next((k for m in mappings for k, v in m.value if v is value), value)


# --- what a model allows at a location --------------------------------------------------------


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def top_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that a file of this model may have at its top, sorted."""
    return tuple(_keys(_schemas_at(model, ())))


def _branches(schema: dict[str, Any], model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Yield a JSON schema and all that it refers to or joins as a union."""
    yield schema
    if "$ref" in schema:
        yield from _branches(_schema(model)["$defs"][schema["$ref"].rpartition("/")[2]], model)
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _branches(branch, model)


def _schemas_at(model: type[BaseModel], loc: Loc) -> list[dict[str, Any]]:
    """Return the JSON schemas that may hold at a pydantic location."""
    schemas = list(_branches(_schema(model), model))
    for part in loc:
        below = [found for schema in schemas for found in _below(schema, part)]
        if below:  # else the part names a branch of a plain union: all stay possible
            schemas = [branch for schema in below for branch in _branches(schema, model)]
    return schemas


def _below(schema: dict[str, Any], part: str | int) -> Iterator[dict[str, Any]]:
    """Yield what one schema says of one step down."""
    mapping = schema.get("discriminator", {}).get("mapping", {})
    if part in mapping:
        yield {"$ref": mapping[part]}
    elif part in schema.get("properties", {}):
        yield schema["properties"][part]
    elif isinstance(part, int) and part < len(schema.get("prefixItems", [])):
        yield schema["prefixItems"][part]
    else:
        rest = schema.get("items" if isinstance(part, int) else "additionalProperties")
        if isinstance(rest, dict):
            yield rest


def _keys(schemas: list[dict[str, Any]]) -> list[str]:
    return sorted({key for schema in schemas for key in schema.get("properties", {})})


def _tags(schema: dict[str, Any]) -> list[str]:
    return list(schema.get("discriminator", {}).get("mapping", {}))


def _values(schema: dict[str, Any]) -> list[Any]:
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))
