# SPDX-License-Identifier: Apache-2.0
"""Run a program and say what it and the daemons that work for it cost: wall, processor, memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.1
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, of processor time (user and system) of the program and of the daemons'
    process trees, and the largest sum of resident memory of both, MB of 10^6 bytes, every 0.1 s.

    `machine_cpu_s` is what all processors did in that time, whoever asked for it.
    """

    wall_s: float
    cpu_s: float
    daemon_cpu_s: float
    peak_mb: float
    machine_cpu_s: float
    load_before: float


def _processes() -> dict[int, tuple[int, int, float, int]]:
    """Return pid → (parent, start, processor seconds, resident bytes) of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            found[int(name)] = (int(fields[1]), int(fields[19]), cpu, int(fields[21]) * _PAGE)
    return found


class Trees(threading.Thread):
    """Follows the processes below some roots, also those that lost their parent since."""

    def __init__(self, roots: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self._roots, self._ended = set(roots), threading.Event()
        self._members: dict[tuple[int, int], float] = {}
        self.peak = 0
        self._look()
        self._before = dict(self._members)

    def _look(self) -> None:
        now = _processes()
        inside = {pid for pid, p in now.items() if pid in self._roots or (pid, p[1]) in self._members}
        grown = True
        while grown:
            new = {pid for pid, p in now.items() if p[0] in inside and pid not in inside}
            inside |= new
            grown = bool(new)
        for pid in inside:
            self._members[pid, now[pid][1]] = now[pid][2]
        self.peak = max(self.peak, sum(now[pid][3] for pid in inside))

    def run(self) -> None:
        """Look until `finish`."""
        while not self._ended.wait(_EVERY_S):
            self._look()

    def finish(self) -> float:
        """Return the processor seconds since the begin."""
        self._ended.set()
        self.join()
        return sum(cpu - self._before.get(key, 0.0) for key, cpu in self._members.items())


def machine_cpu() -> float:
    """Return the seconds that all processors were busy since the start of the machine."""
    user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / _TICKS


def measured(
    argvs: Sequence[Sequence[str]], env: Mapping[str, str], daemons: Iterable[int] = ()
) -> tuple[Cost, str]:
    """Run programs one after the other; return what they cost and their standard output.

    Raises RuntimeError with the end of what one wrote if it fails.
    """
    load, busy, start = os.getloadavg()[0], machine_cpu(), time.monotonic()
    behind, cpu, out, daemons = 0.0, 0.0, "", set(daemons)
    peak = 0
    for argv in argvs:
        process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        everything, daemon = Trees({process.pid, *daemons}), Trees(daemons)
        everything.start()
        daemon.start()
        errors: list[str] = []
        reader = threading.Thread(target=lambda p=process, e=errors: e.append(p.stderr.read()))
        reader.start()
        assert process.stdout is not None
        out += process.stdout.read()
        reader.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        everything.finish()
        behind += daemon.finish()
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, everything.peak)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} exited {process.returncode}:\n{errors[0][-4000:]}")
    wall = time.monotonic() - start
    cost = Cost(
        round(wall, 1), round(cpu, 1), round(behind, 1), round(peak / 1e6), round(machine_cpu() - busy, 1),
        round(load, 2),
    )  # fmt: skip
    return cost, out
