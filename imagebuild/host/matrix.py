# SPDX-License-Identifier: Apache-2.0
"""Read the tables of `nvidia-smi topo -m` and `topo -p2p`, in all the shapes that drivers print.

Columns are parted by tabs (with padding) or by runs of spaces, some versions underline the header with
ANSI codes, NICs stand among the GPUs as NIC0 or mlx5_0, and what follows the matrix may be blank or N/A.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from imagebuild.host.facts import Matrix

LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")  # SOC: what NODE and SYS were until driver 384
P2P = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d+)")
_AFTER = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True)
class Table:
    """The known cells by GPU index, and each GPU's NUMA node; empty if the text has no table."""

    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)

    def square(self, indices: Sequence[int]) -> Matrix:
        """Return the cells of these GPUs, "" where one is unknown; nothing if all are."""
        rows = tuple(tuple(self.cells.get((i, j), "") for j in indices) for i in indices)
        return rows if any(cell for row in rows for cell in row) else ()


def read_table(text: str, word: re.Pattern[str]) -> Table:
    """Return the GPUs' part of a table with cells that match `word`.

    Cells are placed by the names of rows and columns: a GPU may be missing, and NICs are passed over.
    """
    table = Table()
    columns: list[str] = []
    after: list[str] = []
    for line in (_ANSI.sub("", line).rstrip() for line in text.splitlines()):
        name, cells = _cells(line)
        if not columns:
            if _GPU.match(line.strip()) and not any(word.fullmatch(cell) for cell in cells):
                columns, after = _header(line)
        elif row := _GPU.fullmatch(name):
            for column, cell in zip(columns, cells, strict=False):
                other = _GPU.fullmatch(column)
                if other and word.fullmatch(cell):
                    table.cells[int(row[1]), int(other[1])] = cell
            node = _numa(cells[len(columns) :], after)
            if node is not None:
                table.numa[int(row[1])] = node
        elif not line:
            break  # the legend follows
    return table


def _header(line: str) -> tuple[list[str], list[str]]:
    """Return the names of the matrix's columns, and those after it."""
    cut = min((at for name in _AFTER if (at := line.find(name)) >= 0), default=len(line))
    return line[:cut].split(), [name for name in _AFTER if name in line]


def _cells(line: str) -> tuple[str, list[str]]:
    """Return a row's name and what follows; only with tabs a blank cell is seen."""
    parts = [part.strip() for part in line.strip().split("\t")] if "\t" in line.strip() else line.split()
    return (parts[0], parts[1:]) if parts else ("", [])


def _numa(rest: list[str], after: list[str]) -> int | None:
    """Return the node of `CPU Affinity, NUMA Affinity, …`; N/A and a range of nodes are none."""
    if "NUMA Affinity" not in after:
        return None
    at = after.index("NUMA Affinity")
    return int(rest[at]) if at < len(rest) and rest[at].isdigit() else None
