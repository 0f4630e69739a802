# SPDX-License-Identifier: Apache-2.0
"""Print the GPU code of every file below the folder that argv[1] names, as `FileFacts` in JSON.

Our own reader runs with the image's Python on all cores; it needs the standard library only.
"""

import dataclasses
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from imagebuild.gpufacts import folder_facts, joined

BATCHES = 24  # jobs: enough for the cores to end at about the same time


def read(paths):
    return [fact for path in paths for fact in rename(path)]


def rename(path):
    return [dataclasses.replace(fact, path=path.lstrip("/")) for fact in folder_facts(Path(path))]


def chosen(top):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                yield os.path.getsize(path), path


if __name__ == "__main__":
    jobs: list[list[str]] = [[] for _ in range(BATCHES)]
    for number, (_, path) in enumerate(sorted(chosen(sys.argv[1]), reverse=True)):
        jobs[number % BATCHES].append(path)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = [fact for facts in pool.map(read, jobs) for fact in facts]
    print(json.dumps([dataclasses.asdict(fact) for fact in joined(found)]))
