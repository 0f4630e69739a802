# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (a case reads best on one line)
"""Reading YAML into strict models: what is taken, what is refused, and where each error points."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from imagebuild.diagnostics import Diagnostic, Diagnostics, Refused
from imagebuild.yamlfile import MAX_BYTES, MAX_DEPTH, load, load_with_positions


class Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Wheels(Model):
    kind: Literal["wheels"]
    name: str
    wheels: tuple[str, ...] = ()  # a key that is named like the branch of the union


class Files(Model):
    kind: Literal["files"]
    name: str


class Pin(Model):
    version: str


class Top(Model):
    schema_version: Literal[1] = Field(alias="schema", default=1)
    name: str = "x"
    arch: str = "sm_103"
    level: Literal["low", "high"] = "low"
    count: Annotated[int, Field(ge=0)] = 0
    ratio: float = 0.0
    flag: bool = False
    day: datetime.date | None = None
    folder: Path = Path()
    layers: tuple[Annotated[Wheels | Files, Field(discriminator="kind")], ...] = ()
    pins: dict[Annotated[str, Field(pattern="^[a-z]+$")], str | Pin] = {}
    pair: tuple[int, str] = (0, "")
    few: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    tree: Any = None

    @field_validator("arch")
    @classmethod
    def _arch(cls, value: str) -> str:
        if value != "sm_103":
            raise Refused(f"no {value}", allowed=["sm_103"], suggestion="sm_103")
        return value

    @model_validator(mode="after")
    def _few_distinct(self) -> Top:
        if len(set(self.few)) < len(self.few):
            raise Refused("given twice", at=("few", 1))
        return self


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("f.yaml")


def errors(path: Path, text: str | bytes, model: type[BaseModel] = Top) -> tuple[Diagnostic, ...]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Diagnostics) as caught:
        load(path, model)
    return caught.value.diagnostics


def error(path: Path, text: str | bytes) -> Diagnostic:
    found = errors(path, text)
    assert len(found) == 1, [d.render() for d in found]
    return found[0]


GOOD = """\
# a comment
schema: 1
name: "3.10"
level: high
count: 3
ratio: 1.5
flag: true
day: 2026-12-01
folder: a/b
layers:
  - {kind: wheels, name: torch, wheels: [a, b]}
  - kind: files
    name: launch
pins:
  torch: 2.11.0
  triton: {version: 3.6.0}
pair: [1, x]
"""


def test_a_good_file(file: Path):
    file.write_text(GOOD)
    top = load(file, Top)
    assert (top.name, top.level, top.count, top.ratio, top.flag) == ("3.10", "high", 3, 1.5, True)
    assert (top.day, top.folder, top.pair) == (datetime.date(2026, 12, 1), Path("a/b"), (1, "x"))
    assert top.layers == (
        Wheels(kind="wheels", name="torch", wheels=("a", "b")),
        Files(kind="files", name="launch"),
    )
    assert top.pins == {"torch": "2.11.0", "triton": Pin(version="3.6.0")}


def test_byte_order_mark_crlf_and_a_date_as_text(file: Path):
    file.write_bytes("\ufeffname: 2026-12-01\r\nday: '2026-12-01'\r\n".encode())
    assert load(file, Top) == Top(name="2026-12-01", day=datetime.date(2026, 12, 1))


def test_an_empty_optional_is_none(file: Path):
    file.write_text("day:\n")
    assert load(file, Top).day is None


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("name: 3.10\n", 1, 7, 'expected text, found the number 3.10: quote it: "3.10"'),
        ("name: true\n", 1, 7, 'expected text, found the true/false value true: quote it: "true"'),
        ("name:\n", 1, 6, "expected text, found nothing (an empty value)"),
        ("name: ~\n", 1, 7, "expected text, found nothing (an empty value)"),
        ("name: [a]\n", 1, 7, "expected text, found a list"),
        ("name: {a: b}\n", 1, 7, "expected text, found a mapping"),
        ("count: three\n", 1, 8, 'expected a whole number, found text "three"'),
        ('count: "3"\n', 1, 8, 'expected a whole number, found text "3"'),
        ("count: 1.5\n", 1, 8, "expected a whole number, found the number 1.5"),
        ("count: -1\n", 1, 8, "the value should be greater than or equal to 0, found the number -1"),
        ("ratio: x\n", 1, 8, 'expected a number, found text "x"'),
        ('flag: "yes"\n', 1, 7, 'expected true or false, found text "yes"'),
        ("day: 2026-13-01\n", 1, 6, "expected a date (YYYY-MM-DD), found the date 2026-13-01"),
        ("day: tomorrow\n", 1, 6, 'expected a date (YYYY-MM-DD), found text "tomorrow"'),
        ("day: 20261201\n", 1, 6, "expected a date (YYYY-MM-DD), found the number 20261201"),
        ("few: a\n", 1, 6, 'expected a list, found text "a": write it as a list: [a]'),
        ("few: {a: b}\n", 1, 6, "expected a list, found a mapping"),
        ("few: [a, b, c]\n", 1, 6, "the list should have at most 2 items after validation, not 3"),
        ("few: [a, a]\n", 1, 10, "given twice"),
        ("pair: [x, y]\n", 1, 8, 'expected a whole number, found text "x"'),
        ("layers:\n  - torch\n", 2, 5, 'expected a mapping, found text "torch"'),
        ("layers:\n  - kind: files\n", 2, 5, 'missing key "name"'),
        ("pins:\n  torch: 2.11\n", 2, 10, 'expected text or a mapping, found the number 2.11: quote it: "2.11"'),
        ("pins:\n  torch: {versoin: a}\n", 2, 10, 'missing key "version"'),
        ("pins:\n  To: x\n", 2, 3, "string should match pattern '^[a-z]+$', found text \"x\""),
        ("- a\n", 1, 1, "expected a mapping at the top, found a list"),
        ("text\n", 1, 1, 'expected a mapping at the top, found text "text"'),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document starts here: a file holds one"),
        ("name:\n\tx: 1\n", 2, 1, "tab character: YAML is indented with spaces"),
        ("[a]: x\n", 1, 1, "a key must be plain text"),
        ("<<: {name: x}\n", 1, 1, "a key must be plain text"),
        ("name: &a x\n", 1, 7, "anchors and aliases are not supported: write the value out"),
        ("name: *a\n", 1, 7, "anchors and aliases are not supported: write the value out"),
        ("name: !!str 3\n", 1, 7, "tags are not supported: quote the value instead"),
        ("name: !!python/object/apply:os.abort []\n", 1, 7, "tags are not supported: quote the value instead"),
        ("name: no\n", 1, 7, 'YAML reads no as a true/false value: write true or false, or quote it: "no"'),
        ("count: 0755\n", 1, 8, 'YAML reads 0755 as a number: write a plain decimal number, or quote it: "0755"'),
        ("count: 1:30\n", 1, 8, 'YAML reads 1:30 as a number: write a plain decimal number, or quote it: "1:30"'),
        ("count: 1_000\n", 1, 8, 'YAML reads 1_000 as a number: write a plain decimal number, or quote it: "1_000"'),
        ("ratio: .inf\n", 1, 8, 'YAML reads .inf as a number: write a plain decimal number, or quote it: ".inf"'),
        ('name: "\\uD800"\n', 1, 7, "half of a surrogate pair is not text"),
        ("name: 'a\n", 1, 7, "not valid YAML: while scanning a quoted scalar, found unexpected end of stream"),
        ("name: a\x07b\n", 1, 8, "character U+0007 is not allowed in YAML"),
    ],
)  # fmt: skip
def test_one_error(file: Path, text: str, line: int, column: int, message: str):
    found = errors(file, text)
    assert (found[0].line, found[0].column) == (line, column)
    assert found[0].message.startswith(message)


@pytest.mark.parametrize(
    ("text", "message", "allowed", "suggestion"),
    [
        ("levl: low\n", 'unknown key "levl"', sorted([*Top.model_fields.keys() - {"schema_version"}, "schema"]), "level"),
        ("level: hgh\n", 'expected one of the allowed values, found text "hgh"', ["low", "high"], "high"),
        ("schema: 2\n", "expected one of the allowed values, found the number 2", ["1"], None),
        ("layers: [{kind: fles, name: a}]\n", 'expected one of the allowed values, found text "fles"', ["files", "wheels"], "files"),
        ("layers: [{name: a}]\n", 'missing key "kind"', ["files", "wheels"], None),
        ("layers: [{kind: wheels, name: a, whels: []}]\n", 'unknown key "whels"', ["kind", "name", "wheels"], "wheels"),
        ("arch: sm_130\n", "no sm_130", ["sm_103"], "sm_103"),
    ],
)  # fmt: skip
def test_allowed_values_and_suggestions(
    file: Path, text: str, message: str, allowed: list[str], suggestion: str | None
):
    found = error(file, text)
    assert (found.message, list(found.allowed), found.suggestion) == (message, allowed, suggestion)


def test_branches_of_a_union_that_are_named_like_keys(file: Path):
    """The location says ("layers", 0, "wheels", …), and the mapping has a key `wheels` too."""
    text = "layers:\n  - kind: wheels\n    wheels: [a, 3]\n"
    assert [(d.line, d.column, d.message[:12]) for d in errors(file, text)] == [
        (2, 5, "missing key "),
        (3, 17, "expected tex"),
    ]


def test_an_error_inside_the_fitting_branch_silences_the_other_branch(file: Path):
    found = errors(file, "pins:\n  torch: {version: 3, extra: 1}\n")
    assert [d.message for d in found] == [
        'expected text, found the number 3: quote it: "3"',
        'unknown key "extra"',
    ]


def test_all_errors_at_once_in_order(file: Path):
    text = "level: x\nname: 1\nname: b\nwat: 1\ncount: no\n"
    assert [(d.line, d.column) for d in errors(file, text)] == [(1, 8), (2, 7), (3, 1), (4, 1), (5, 8)]
    assert 'duplicate key "name": first given on line 2' in str(errors(file, text)[2].message)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n# x\n"])
def test_empty(file: Path, text: str):
    found = error(file, text) if text != "---\n# x\n" else errors(file, text)[0]
    assert "empty" in found.message or "found nothing" in found.message
    assert "level" in found.allowed


def test_not_utf8(file: Path):
    found = error(file, b"name: a\nlevel: l\xe9w\n")
    assert (found.line, found.column, found.source_line) == (2, 9, "level: l\ufffd")
    assert found.message == "not UTF-8: byte 0xe9; save the file as UTF-8"
    assert error(file, "name: a\n".encode("utf-16")).message.startswith("not UTF-8: byte 0xff")
    assert error(file, b"\xef\xbb\xbfa\xff").column == 2


def test_alias_bomb_stops_at_once(file: Path):
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert error(file, bomb).line == 1


@pytest.mark.parametrize("text", ["tree: " + "[" * 100_000, "a: {" * 50_000, "- " * 50_000, "[\n" * 100_000])
def test_huge_nesting_stops_at_once(file: Path, text: str):
    assert error(file, text).message == f"nested deeper than {MAX_DEPTH} levels"


def test_huge_numbers_and_files(file: Path):
    assert "a plain decimal number" in error(file, "count: " + "9" * 10_000).message
    assert error(file, "#" * (MAX_BYTES + 1)).message == f"is larger than {MAX_BYTES} bytes"


def test_missing_directory_and_special_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("image.yaml").write_text("name: x\n")
    os.mkfifo("pipe")
    for name, message in [
        ("imag.yaml", "no such file"),
        (".", "is a directory"),
        ("pipe", "is not a regular"),
    ]:
        with pytest.raises(Diagnostics, match=message) as caught:
            load(Path(name), Top)
        if name == "imag.yaml":
            assert 'did you mean "image.yaml"?' in str(caught.value)
    with pytest.raises(Diagnostics, match="no such file"):
        load(Path("no/such/folder.yaml"), Top)


def test_positions_for_errors_found_later(file: Path):
    file.write_text(GOOD)
    _, at = load_with_positions(file, Top)
    found = at.diagnostic(("layers", 0, "wheels", 1), "unknown", allowed=["ab", "zz"])
    assert (found.line, found.column, found.suggestion) == (11, 45, "ab")
    assert at.diagnostic(("layers", 1), "m").line == 12
    assert at.diagnostic(("pins", "torch"), "m").column == 10
    assert at.diagnostic(("pins", "torch"), "m", key=True).column == 3
    # a default stands nowhere: its mapping serves
    assert at.diagnostic(("layers", 1, "mode"), "m").line == 12
    assert at.diagnostic(("tree", "x"), "m", key=True).line == 2
    assert at.diagnostic((), "m").render().startswith("f.yaml:2:1: error: m\n    schema: 1\n    ^")


_scalars = st.text("abAB01.:-_ #'\"\\\t{}[]é", max_size=8) | st.integers() | st.booleans() | st.none()
_trees = st.recursive(
    _scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text("ab1 -", max_size=3), t, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(tree=_trees, flow=st.booleans())
def test_reads_what_yaml_writes(tmp_path_factory: pytest.TempPathFactory, tree: Any, flow: bool):
    path = tmp_path_factory.getbasetemp() / "roundtrip.yaml"
    path.write_text(yaml.safe_dump({"tree": tree}, default_flow_style=flow, allow_unicode=True))
    assert load(path, Top).tree == tree


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode(errors="replace")))
def test_any_bytes_give_a_model_or_diagnostics(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    try:
        load(path, Top)
    except Diagnostics as error:
        assert error.diagnostics
        assert all(c.isprintable() or c in "\n\t" for c in str(error))
