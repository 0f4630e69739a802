# SPDX-License-Identifier: Apache-2.0
"""Sum up what the stages of scripts/test left: a table, what was left out, and pytest's closing line.

usage: report_tests.py [--strict] FOLDER SECONDS. Exit status 1 if a stage or a test failed; with
--strict also if a test was skipped for another reason than a missing GPU: skipped is not passed.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ALLOWED_SKIP = "needs GPU"


def counts(report: Path) -> tuple[Counter[str], list[str]]:
    """Tests by outcome, and the reason of each skip. A report that cannot be read is one error."""
    found: Counter[str] = Counter()
    skips: list[str] = []
    try:
        cases = list(ET.parse(report).iter("testcase"))
    except (ET.ParseError, OSError):
        return Counter(error=1), []
    for case in cases:
        if case.find("failure") is not None:
            found["failed"] += 1
        elif case.find("error") is not None:
            found["error"] += 1
        elif (skipped := case.find("skipped")) is not None:
            found["skipped"] += 1
            skips.append(f"{case.get('classname')}::{case.get('name')}: {skipped.get('message', '')}")
        else:
            found["passed"] += 1
    return found, skips


def closing_line(total: Counter[str], seconds: int) -> str:
    """As pytest closes a run, so that whoever reads pytest's output reads this."""
    parts = [f"{total[key]} {key}" for key in ("failed", "passed", "skipped", "error") if total[key]]
    clock = f" ({seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02})" if seconds >= 60 else ""
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s{clock} ".center(80, "=")


def main(arguments: list[str]) -> int:
    strict = "--strict" in arguments
    folder, seconds = [argument for argument in arguments if argument != "--strict"]
    total: Counter[str] = Counter()
    skips: list[str] = []
    reasons: list[str] = []
    bad = False
    print(f"\n{'stage':9}{'result':10}{'passed':>7}{'failed':>7}{'skipped':>8}{'seconds':>9}{'budget':>8}")
    for line in (Path(folder) / "stages.tsv").read_text(encoding="utf-8").splitlines():
        stage, result, took, budget, reason = line.split("\t")
        here: Counter[str] = Counter()
        for report in sorted(Path(folder).glob(f"{stage}*.xml")):
            found, why = counts(report)
            here += found
            skips += why
        failed = here["failed"] + here["error"]
        if result == "failed" and not failed:
            here["error"] = 1  # so that the closing line alone never looks like a pass
        bad = bad or here["failed"] + here["error"] > 0
        total += here
        if reason:
            reasons.append(f"{result}: {stage}: {reason}")
        print(f"{stage:9}{result:10}{here['passed']:7}{failed:7}{here['skipped']:8}{took:>9}{budget:>8}")
    for reason in reasons:
        print(reason)
    forbidden = [skip for skip in skips if not skip.partition(": ")[2].startswith(ALLOWED_SKIP)]
    for skip in forbidden if strict else skips:
        print(f"skipped: {skip}")
    if strict and forbidden:
        print(f'{len(forbidden)} skipped for another reason than "{ALLOWED_SKIP} ...": not a pass')
        bad = True
    print(closing_line(total, int(seconds)))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
