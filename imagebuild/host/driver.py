# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver answers when it cannot: NVML's error codes, which nvidia-smi also exits with.

Source: nvml.h (nvmlReturn_t) and `man nvidia-smi`, RETURN VALUE. nvidia-smi does not always exit with
the code (255 for an unknown error, 1 behind a wrapper), so its words count first.
"""

from __future__ import annotations

from imagebuild.host.facts import Problem

_CODES: dict[int, Problem] = {
    4: "blocked",  # insufficient permissions
    6: "no-gpu",
    9: "no-driver",
    12: "no-driver",  # no libnvidia-ml.so
    15: "lost",
    16: "lost",  # until it is reset
    17: "blocked",  # by the operating system
    18: "mismatch",
}
_WORDS: tuple[tuple[str, Problem], ...] = (
    ("version mismatch", "mismatch"),
    ("no devices were found", "no-gpu"),
    ("couldn't communicate with the nvidia driver", "no-driver"),
    ("driver not loaded", "no-driver"),
    ("couldn't find libnvidia-ml", "no-driver"),
    ("blocked by the operating system", "blocked"),
    ("insufficient permissions", "blocked"),
    ("gpu is lost", "lost"),
)


def problem_of(code: int, words: str = "") -> Problem:
    """Return the kind of a failure from its code and words; "failed" if neither is known."""
    folded = words.casefold()
    said = next((problem for text, problem in _WORDS if text in folded), None)
    return said or _CODES.get(code, "failed")


def bus_id(text: str) -> str:
    """Return a PCI address as /sys spells it: 0000:1b:00.0 for NVML's 00000000:1B:00.0."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if rest else text.strip().lower()
