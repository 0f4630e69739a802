# SPDX-License-Identifier: Apache-2.0
"""An `Audit` as a table for people, as JSON, and as the difference of two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter

from imagebuild.audit import Audit, Row

_AUDIT = TypeAdapter(Audit)
_HEAD = (
    "wheel",
    "file",
    "native",
    "compat",
    "JIT",
    "missing",
    "other",
    "MB",
    "usable MB",
    "codes",
    "verdict",
)
_NUMBERS = range(2, 9)
_MAX_FILE, _MAX_CODES = 44, 48


def to_json(audit: Audit) -> dict[str, object]:
    """Return the JSON form; `ok` and each row's `level` are in it too."""
    value: dict[str, object] = _AUDIT.dump_python(audit, mode="json")
    rows = [{**_ROW.dump_python(row, mode="json"), "level": row.level} for row in audit.rows]
    return {**value, "rows": rows, "ok": audit.ok}


_ROW = TypeAdapter(Row)


def from_json(text: str) -> Audit:
    """Read the JSON form back. Raises pydantic.ValidationError if it is none."""
    return _AUDIT.validate_json(text)


def _cut(text: str, width: int, *, tail: bool) -> str:
    if len(text) <= width:
        return text
    return "…" + text[1 - width :] if tail else text[: width - 1] + "…"


def _cells(row: Row) -> tuple[str, ...]:
    counts = [row.counts.get(level, 0) for level in ("native", "compatible", "ptx", "missing", "other")]
    verdict = "VIOLATION" if row.problem else f"ok ({row.wanted})"
    if row.read_by == "segments":
        verdict += ", compacted"
    return (
        row.wheel,
        _cut(row.path, _MAX_FILE, tail=True),
        *(str(count or "-") for count in counts),
        f"{sum(row.codes.values()) / 1e6:.1f}",
        f"{row.loadable / 1e6:.1f}",
        _cut(" ".join(row.codes), _MAX_CODES, tail=False),
        verdict,
    )


def _lines(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            c.rjust(w) if i in _NUMBERS else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def table(audit: Audit) -> str:
    """Return the audit as a table, the violations with their ways out below it."""
    lines = list(_lines([_HEAD, *(_cells(row) for row in audit.rows)]))
    total = sum(sum(row.codes.values()) for row in audit.rows)
    usable = sum(row.loadable for row in audit.rows)
    lines += [
        "",
        f"{audit.arch}: {len(audit.rows)} files, {total / 1e6:,.0f} MB of GPU code, "
        f"of which the GPU could load {usable / 1e6:,.0f} MB",
    ]
    problems = violations(audit)
    return "\n".join([*lines, problems or "no violation of the policy"])


def violations(audit: Audit) -> str:
    """Return what breaks the policy, each with where, what and the next step; empty if nothing does."""
    lines = [f"{row.wheel}: {row.path}: {row.problem}\n    fix: {row.fix}" for row in audit.violations]
    policy = f"images/{audit.arch}/policy.yaml"
    lines += [
        f"{policy}: no file matches the rule for {rule}\n    fix: correct or remove it"
        for rule in audit.stale
    ]
    lines += [f"{text}\n    fix: correct `slim.ballast` of the stack" for text in audit.broken]
    return "\n".join(lines)


def difference(before: Audit, after: Audit) -> str:
    """Return what changed from one audit to another, one line per file."""
    old = {(row.wheel, row.path): row for row in before.rows}
    new = {(row.wheel, row.path): row for row in after.rows}
    lines = []
    for key in sorted({*old, *new}):
        name = f"{key[0]} {key[1]}"
        if key not in new:
            lines.append(f"- {name}: {old[key].level}")
        elif key not in old:
            lines.append(f"+ {name}: {new[key].level}")
        elif changes := _changes(old[key], new[key]):
            lines.append(f"  {name}: {'; '.join(changes)}")
    return "\n".join(lines) or "no difference"


def _changes(a: Row, b: Row) -> list[str]:
    found = []
    if a.level != b.level:
        found.append(f"level {a.level} -> {b.level}")
    if a.counts != b.counts:
        keys = sorted({*a.counts, *b.counts})
        found += [
            f"{k} {a.counts.get(k, 0)} -> {b.counts.get(k, 0)}"
            for k in keys
            if a.counts.get(k) != b.counts.get(k)
        ]
    gone, came = sorted(set(a.codes) - set(b.codes)), sorted(set(b.codes) - set(a.codes))
    found += [f"lost {' '.join(gone)}"] if gone else []
    found += [f"gained {' '.join(came)}"] if came else []
    size_a, size_b = sum(a.codes.values()), sum(b.codes.values())
    if size_a != size_b:
        found.append(f"code {size_a / 1e6:.1f} -> {size_b / 1e6:.1f} MB")
    return found
