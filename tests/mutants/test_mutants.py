# SPDX-License-Identifier: Apache-2.0
"""Broken images: each is caught by exactly the check that should, and by no other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagebuild.digest import digest
from imagebuild.layer.gpucode import Code
from tests.gpufiles import fat, library
from tests.mutants.base import LEFT_OUT, PATCHED, SITE, build_small, check
from tests.mutants.mutant import RECEIPT, Mutant, copy_of

pytestmark = pytest.mark.engine
Break = Callable[[Mutant], object]
BROKEN: dict[str, tuple[str, Break]] = {}
LIBPYTHON = "usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0"
ENTRYPOINT = "usr/local/bin/imagebuild-entrypoint"
KEY = b"-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n"


def broken(check_name: str) -> Callable[[Break], Break]:
    """Add a mutant to the table: its name is the function's, `check_name` the check that must catch it."""

    def add(function: Break) -> Break:
        BROKEN[function.__name__.replace("_", " ")] = (check_name, function)
        return function

    return add


def info(mutant: Mutant, package: str) -> str:
    (folder,) = (mutant.root / SITE).glob(f"{package}-*.dist-info")
    return f"{SITE}/{folder.name}"


@broken("python-packages")
def a_wheel_of_another_version(m: Mutant) -> None:
    m.edit(f"{info(m, 'packaging')}/METADATA", "\nVersion: ", "\nVersion: 0.")


@broken("python-packages")
def a_package_too_many(m: Mutant) -> None:
    m.write(f"{SITE}/extra-1.dist-info/METADATA", b"Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    m.write(f"{SITE}/extra/__init__.py", b"")


@broken("python-packages")
def a_package_that_is_gone(m: Mutant) -> None:
    m.remove(info(m, "packaging"))
    m.remove(f"{SITE}/packaging")


@broken("debian-packages")
def a_debian_package_of_another_version(m: Mutant) -> None:
    head, package, rest = m.read("var/lib/dpkg/status").decode().partition("Package: mawk\n")
    m.write("var/lib/dpkg/status", (head + package + rest.replace("Version: ", "Version: 9", 1)).encode())


@broken("patches")
def a_patch_that_is_missing(m: Mutant) -> None:
    m.edit(f"{SITE}/{PATCHED}", "\nIMAGE = True\n", "")
    m.edit_receipt(lambda edits: edits.remove(next(e for e in edits if e["reason"] == "patch mark")))
    m.remove(f"{SITE}/click/__pycache__/globals.cpython-311.pyc")


@broken("patches")
def a_patched_file_with_another_text(m: Mutant) -> None:
    m.edit(f"{SITE}/{PATCHED}", "IMAGE = True", "IMAGE = True  # and more")
    m.remove(f"{SITE}/click/__pycache__/globals.cpython-311.pyc")


@broken("patches")
def a_ledger_that_is_shortened(m: Mutant) -> None:
    m.write("etc/imagebuild/patches.json", json.dumps({"schema": 1, "patches": []}).encode())


@broken("gpu-code")
def gpu_code_for_another_arch_only(m: Mutant) -> None:
    content = library(fat((Code("elf", 90, "a"), 400)))
    _edit_with_receipt(m, "click/py.typed", content)


def _edit_with_receipt(m: Mutant, path: str, content: bytes, package: str = "click") -> None:
    """Change a file as slimming would: with an edit in the receipt and a RECORD that is true."""

    def state(data: bytes) -> dict[str, object]:
        return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

    states = {"before": state(m.read(f"{SITE}/{path}")), "after": state(content)}
    row = {"path": f"{SITE}/{path}", "wheel": package, "reason": "made smaller", "tool": "none", **states}
    m.edit_receipt(lambda edits: edits.append(row))
    m.write(f"{SITE}/{path}", content)
    m.record(package, path)


@broken("proprietary")
def a_changed_file_that_may_not_be_changed(m: Mutant) -> None:
    m.edit(f"{SITE}/packaging/tags.py", "import", "import ")


@broken("proprietary")
def an_edit_that_the_licence_forbids(m: Mutant) -> None:
    _edit_with_receipt(m, "packaging/py.typed", b"edited", "packaging")


@broken("edit-receipt")
def a_receipt_that_lies(m: Mutant) -> None:
    def lie(edits: list[dict[str, dict[str, object]]]) -> None:
        next(e for e in edits if e["after"] is None)["before"]["sha256"] = "0" * 64

    m.edit_receipt(lie)


@broken("files")
def a_file_that_slimming_had_left_out(m: Mutant) -> None:
    m.write(f"{SITE}/{LEFT_OUT}", b"print('back again')\n")


@broken("files")
def a_program_that_nobody_knows(m: Mutant) -> None:
    m.write("usr/bin/helper", b"#!/bin/sh\n", 0o755)


@broken("files")
def a_changed_program_of_debian(m: Mutant) -> None:
    m.write("usr/bin/which.debianutils", b"#!/bin/sh\nexit 0\n")


@broken("records")
def a_record_that_lies(m: Mutant) -> None:
    m.edit(f"{info(m, 'click')}/RECORD", "click/core.py,sha256=", "click/core.py,sha256=AA")


@broken("licences")
def a_licence_file_that_is_gone(m: Mutant) -> None:
    (path,) = (m.root / info(m, "click")).rglob("LICENSE*")
    m.remove(path.relative_to(m.root).as_posix())


@broken("bytecode")
def byte_code_of_another_source(m: Mutant) -> None:
    path = f"{SITE}/click/__pycache__/core.cpython-311.pyc"
    content = m.read(path)
    m.write(path, content[:8] + bytes(8) + content[16:])


@broken("times")
def a_file_of_another_time(m: Mutant) -> None:
    m.write(f"{SITE}/click/core.py", m.read(f"{SITE}/click/core.py"))
    os.utime(m.root / SITE / "click/core.py", (1, 1))


@broken("setuid")
def a_program_that_runs_as_root(m: Mutant) -> None:
    m.chmod("usr/bin/env", 0o4755)


@broken("world-writable")
def a_folder_that_everyone_can_write(m: Mutant) -> None:
    m.chmod("opt/venv/bin", 0o777)


@broken("permissions")
def a_cache_folder_of_root(m: Mutant) -> None:
    m.chmod("cache/triton", 0o755)


@broken("secrets")
def a_token_in_the_environment(m: Mutant) -> None:
    m.config["config"]["Env"].append("HF_TOKEN=hf_" + "a" * 34)


@broken("secrets")
def a_token_in_a_file(m: Mutant) -> None:
    m.write("etc/pip.conf", b"[global]\nindex-url = https://me:secret@example.org/simple\n")


@broken("secrets")
def a_private_key(m: Mutant) -> None:
    m.write("etc/ssl/server.pem", KEY, 0o600)


@broken("traces")
def a_proxy_in_the_environment(m: Mutant) -> None:
    m.config["config"]["Env"].append("https_proxy=http://proxy.example.org:3128")


@broken("traces")
def a_certificate_of_the_build_host(m: Mutant) -> None:
    m.write("usr/local/share/ca-certificates/corporate.crt", b"-----BEGIN CERTIFICATE-----\n")


@broken("libraries")
def no_libpython(m: Mutant) -> None:
    m.drop(LIBPYTHON)


@broken("labels")
def a_label_that_is_missing(m: Mutant) -> None:
    del m.config["config"]["Labels"]["org.opencontainers.image.licenses"]


@broken("configuration")
def a_server_that_runs_as_root(m: Mutant) -> None:
    m.config["config"]["User"] = "0:0"


@broken("plan")
def a_plan_that_was_edited(m: Mutant) -> None:
    plan = json.loads(m.read("etc/imagebuild/plan.json"))
    plan["tag_stem"] = "other"
    m.write("etc/imagebuild/plan.json", json.dumps(plan).encode())
    m.config["config"]["Labels"]["io.imagebuild.plan"] = digest(plan)


@broken("layers")
def a_large_file_in_two_layers(m: Mutant) -> None:
    m.add_layer(copy_of(m, LIBPYTHON))


@broken("offline")
def a_start_that_calls_home(m: Mutant) -> None:
    call = "(exec 3<>/dev/tcp/192.0.2.1/80) 2>/dev/null || true"
    m.replan("launch/entrypoint", "set -eu\n", f"set -eu\nbash -c '{call}'\n")


@broken("read-only")
def a_start_that_writes_into_the_root(m: Mutant) -> None:
    m.replan("launch/entrypoint", "set -eu\n", 'set -eu\n: >"/var/tmp/started-$$"\n')


@broken("any-uid")
def a_start_that_knows_one_user_only(m: Mutant) -> None:
    m.replan("launch/entrypoint", "set -eu\n", 'set -eu\n[ "$(id -u)" != 0 ] || exit 1\n')


@broken("entry-point")
def an_entry_point_that_says_nothing(m: Mutant) -> None:
    m.replan("launch/entrypoint", 'echo "  serve ARGS', 'true "  serve ARGS')


@broken("imports")
def a_package_that_cannot_be_imported(m: Mutant) -> None:
    _edit_with_receipt(m, "click/core.py", b"raise ImportError('broken')\n")
    m.remove(f"{SITE}/click/__pycache__/core.cpython-311.pyc")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return build_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def outcomes(request, small, tmp_path_factory):
    """Name of a mutant → what each check came to; the chosen ones are checked two at a time."""
    names = [item.callspec.params["name"] for item in request.session.items if hasattr(item, "callspec")]
    folder = tmp_path_factory.mktemp("mutants")

    def judge(number_and_name):
        number, name = number_and_name
        mutant = Mutant(small, folder / str(number))
        BROKEN[name][1](mutant)
        mutant.write_out()
        return check(mutant.project, mutant.layout, mutant.root, mutant.folder / "results.json")

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(judge, enumerate(names)), strict=True))


def test_the_small_image_passes_every_check(small, tmp_path):
    checks, output = check(small.project, small.layout, small.root, tmp_path / "results.json")
    assert {name for name, row in checks.items() if row["failed"]} == set(), output[-6000:]
    assert {name for name, row in checks.items() if row["skipped"]} == set()
    assert (small.root / RECEIPT).is_file()
    assert {wanted for wanted, _ in BROKEN.values()} == checks.keys(), "every check needs a mutant"


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_image_is_caught_by_its_check_alone(name, outcomes):
    checks, output = outcomes[name]
    assert {found for found, row in checks.items() if row["failed"]} == {BROKEN[name][0]}, output[-6000:]
