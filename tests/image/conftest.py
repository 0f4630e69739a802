# SPDX-License-Identifier: Apache-2.0
"""`pytest tests/image --image REF|ID|OCI-DIR`: checks of one built image, against its Plan.

Every test belongs to one check of imagebuild/checks/names.py by its marker. `--results FILE` writes
what each check came to, for a receipt.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from imagebuild.arch import parse_arch
from imagebuild.catalog import project_root
from imagebuild.checks.config import judge_config
from imagebuild.checks.names import ALL, BY_NAME
from imagebuild.plan import LABEL_PREFIX
from imagebuild.resolve import resolve
from tests.image import facts
from tests.image.targets import open_target, output

HERE = Path(__file__).parent
ROOT = project_root().resolve()


def pytest_addoption(parser):
    group = parser.getgroup("image")
    group.addoption("--image", help="an image's name or id in the container engine, or an OCI layout folder")
    group.addoption("--arch", help="the arch it was built for; default: what its label says")
    group.addoption("--backend", choices=["docker", "podman"], default="docker", help="for a name or id")
    group.addoption("--root", help="an unpacked copy of the layout's image, so that it is not unpacked again")
    group.addoption("--results", help="write what each check came to into this JSON file")


class Checked:
    """The image under test with its Plan, opened when the first test needs it, and the results."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.started = time.monotonic()
        self.results: dict[str, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}
        root = config.getoption("--root")
        image = config.getoption("--image")
        self.target = open_target(image, Path(root) if root else None, config.getoption("--backend"), ROOT)
        labels = self.target.config.labels
        arch = config.getoption("--arch") or labels.get(f"{LABEL_PREFIX}.arch")
        if not arch:
            raise pytest.UsageError(f"{image} has no label {LABEL_PREFIX}.arch; say --arch")
        slim = labels.get(f"{LABEL_PREFIX}.slim") != "none"
        self.image = facts.Image(self.target, resolve(ROOT / "images", arch, slim=slim))

    def note(self, check: str, outcome: str, reason: str) -> None:
        row = self.results.setdefault(check, {"passed": 0, "failed": 0, "skipped": []})
        if outcome == "skipped":
            row["skipped"].append(reason)
        else:
            row[outcome] += 1

    def write(self, path: str) -> None:
        plan = self.image.plan
        value = {
            "digest": self.target.digest,
            "backend": self.target.backend,
            "plan": plan.digest,
            "seconds": round(time.monotonic() - self.started),
            "not_applicable": [check.name for check in ALL if not check.applies(plan)],
            "checks": self.results,
            **self.summary,
        }
        Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


_KEY = pytest.StashKey[Checked]()


def _check_of(item: pytest.Item) -> str:
    marks = {mark.args[0] for mark in item.iter_markers("check")}
    if len(marks) != 1 or not marks <= BY_NAME.keys():
        raise pytest.UsageError(
            f"{item.nodeid}: belongs to {sorted(marks)}; one of checks/names.py is needed"
        )
    return str(next(iter(marks)))


def pytest_collection_modifyitems(config, items):
    chosen = [item for item in items if HERE in Path(item.fspath).parents]
    if not chosen:
        return
    if not config.getoption("--image"):
        raise pytest.UsageError("tests/image needs --image REF, ID or OCI-DIR")
    checks = {item: _check_of(item) for item in chosen}
    if config.getoption("--collect-only"):
        return
    checked = config.stash[_KEY] = Checked(config)
    absent = [item for item in chosen if not BY_NAME[checks[item]].applies(checked.image.plan)]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]
    for item in chosen:
        item.user_properties.append(("check", checks[item]))


def pytest_runtest_logreport(report):
    # Kept by the session's own config in pytest_sessionfinish; a setup that fails counts as a failure.
    check = dict(report.user_properties).get("check")
    if check and (report.when == "call" or report.outcome != "passed"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if report.outcome == "skipped" else ""
        _REPORTS.append((check, report.outcome, reason))


_REPORTS: list[tuple[str, str, str]] = []


def pytest_sessionfinish(session):
    checked = session.config.stash.get(_KEY, None)
    if checked is None:
        return
    for report in _REPORTS:
        checked.note(*report)
    if session.config.getoption("--results"):
        checked.write(session.config.getoption("--results"))
    checked.target.close()


@pytest.fixture(scope="session")
def checked(pytestconfig):
    return pytestconfig.stash[_KEY]


@pytest.fixture(scope="session")
def image(checked):
    """The image and its Plan; `image.probe` runs a script of probes/ in it."""
    return checked.image


@pytest.fixture(scope="session")
def plan(image):
    return image.plan


@pytest.fixture(scope="session")
def target(checked):
    return checked.target


@pytest.fixture(scope="session")
def host(target):
    """testinfra's host: the image's user, no network."""
    return target.host


@pytest.fixture(scope="session", autouse=True)
def background(request, image):
    """All facts that the chosen tests ask for, found out at the same time."""
    wanted = {name for item in request.session.items for name in item.fixturenames}
    found = facts.Background(image, wanted)
    yield found
    found.close()


def _fact(name):
    @pytest.fixture(scope="session", name=name)
    def fixture(background):
        return background[name]

    return fixture


jit, imports, server, preflight = map(_fact, ("jit", "imports", "server", "preflight"))
tree, wanted, toolchain, needed = map(_fact, ("tree", "wanted", "toolchain", "needed"))
bytecode, records, packages, metrics = map(_fact, ("bytecode", "records", "packages", "metrics"))


@pytest.fixture(scope="session")
def answers(server):
    """What SGLang makes of each command line of server_lines.py."""
    return server.answers


@pytest.fixture(scope="session")
def audit(background, checked):
    """The audit of the GPU code in the image."""
    found = background["audit"]
    levels = [row.level for row in found.rows]
    checked.summary["audit"] = {level: levels.count(level) for level in sorted(set(levels))}
    return found


@pytest.fixture(scope="session")
def edits(image):
    """Path → its edits in order, from the image's own receipt."""
    return facts.read_edits(image)


@pytest.fixture(scope="session")
def findings(image, tree, wanted, edits):
    """Everything that is wrong with files and configuration, by check."""
    found = [*facts.judge_image(image, tree, wanted, edits), *judge_config(image.target.config, image.plan)]
    return {name: [str(f) for f in found if f.check == name] for name in BY_NAME}


@pytest.fixture(scope="session")
def gpu_options(plan, target):
    """Options that give a container a GPU; skips where there is none of the arch."""
    if target.backend == "chroot":
        pytest.skip(f"needs GPU {plan.arch}, in a container engine")
    try:
        found = output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    except (OSError, AssertionError):
        pytest.skip(f"needs GPU {plan.arch}; nvidia-smi finds none")
    wanted = ".".join(map(str, parse_arch(plan.arch).capability))
    if wanted not in found.split():
        pytest.skip(f"needs GPU {plan.arch}; this host has {', '.join(found.split())}")
    return ("--gpus=all",)
