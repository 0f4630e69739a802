# SPDX-License-Identifier: Apache-2.0
"""Does a text name a repo? `Kimi K2.6`, `kimi-k2.6` and `Kimi_K2.6` do; `Kimi-K2.6-DFlash` is another."""

from __future__ import annotations

import re


def _pattern(repo: str) -> re.Pattern[str]:
    name = repo.rpartition("/")[2]
    words = re.findall(r"[A-Za-z]+|[0-9.]+", name)
    return re.compile(
        r"(?<![\w.])" + r"[-_ ]?".join(map(re.escape, words)) + r"(?![\w]|\.\d|-\w)", re.IGNORECASE
    )


def says(text: str, repo: str) -> bool:
    """Tell whether a text names a repo, by the part after its owner."""
    return bool(_pattern(repo).search(text))


def count(text: str, repo: str) -> int:
    """Return how often a text names a repo."""
    return len(_pattern(repo).findall(text))
