# SPDX-License-Identifier: Apache-2.0
"""The installed tree is the wheels' files and the edit receipt, and the patches do what they say."""

import base64
import csv
import io
import json
import posixpath
import subprocess
from itertools import pairwise

import pytest

from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.layer.edits import FOLDER
from imagebuild.layer.patchset import LEDGER_TARGET
from imagebuild.layer.wheel import Scheme, wheel_entries
from imagebuild.ledger import read_patch
from imagebuild.settings import load_settings

IMAGES = project_root() / "images"
JIT_ARCH = {"sm_90": "9.0a", "sm_103": "10.3a", "sm_120": "12.0f"}


@pytest.fixture(scope="module")
def ledger(plan):
    return [
        i for layer in plan.layers for t in layer.transforms if t.kind == "patch" for i in t.args["ledger"]
    ]


@pytest.fixture(scope="module")
def edits(plan, host):
    """Return path → its edits, in the order in which they were made."""
    found = {}
    for layer in plan.layers:
        file = host.file(f"/{FOLDER}/{layer.name}.json")
        if file.exists:
            for edit in json.loads(file.content_string)["edits"]:
                found.setdefault(edit["path"], []).append(edit)
    return found


def records(content):
    return [row for row in csv.reader(io.StringIO(content)) if len(row) == 3]


def as_record(hex_digest):
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(hex_digest)).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def shipped(plan):
    """Return path → RECORD's hash of what the wheels install, their RECORDs, what two of them ship."""
    store = Store(load_settings({}).cache_dir)
    scheme = Scheme(plan.prefix.lstrip("/"), plan.python)
    found: dict[str, str] = {}
    own: set[str] = set()
    shared: set[str] = set()
    for layer in plan.layers:
        for artifact in layer.artifacts:
            if artifact.kind != "wheel":
                continue
            assert store.has(artifact), f"{artifact.file} is not in the cache: run build.py fetch"
            entries = wheel_entries(store.path(artifact.sha256), scheme)
            record = next(e for e in entries if e.path.endswith(".dist-info/RECORD"))
            own.add(record.path)
            rows = records(record.read().decode())
            hashes = {_path(scheme.site, row[0]): row[1] for row in rows}
            files = {e.path: hashes[e.path] for e in entries if e.kind == "file"}
            shared |= files.keys() & found.keys()
            found |= files
    return found, own, shared


def _path(site, relative):
    return posixpath.normpath(posixpath.join(site, relative))


def test_the_ledger_is_in_the_image(ledger, host, config):
    assert json.loads(host.file(f"/{LEDGER_TARGET}").content_string)["patches"] == ledger
    assert config["Config"]["Labels"]["io.imagebuild.patches"].split() == [item["id"] for item in ledger]


def test_each_patch_has_its_rows_in_the_receipt(plan, ledger, edits):
    site = f"{plan.prefix}/lib/python{plan.python}/site-packages".lstrip("/")
    wanted = {(f"{site}/{p}", f"patch {i['id']}", s["after"]) for i in ledger for p, s in i["files"].items()}
    found = {(p, e["reason"], e["after"]["sha256"]) for p, rows in edits.items() for e in rows if e["after"]}
    assert wanted <= found


def test_edits_are_chains_from_the_wheels_file(edits, shipped):
    for path, rows in edits.items():
        assert as_record(rows[0]["before"]["sha256"]) == shipped[0][path], path
        assert all(a["after"] == b["before"] for a, b in pairwise(rows)), path


@pytest.mark.slow
def test_the_tree_is_the_wheels_files_and_the_receipt(plan, host, probe, edits, shipped):
    hashes = {p.lstrip("/"): as_record(value) for p, value in probe("hashes", plan.prefix).items()}
    expected, own, shared = dict(shipped[0]), shipped[1], shipped[2]
    for path, rows in edits.items():
        after = rows[-1]["after"]
        if after is None:
            del expected[path]
        else:
            expected[path] = as_record(after["sha256"])
    made = {path for path in hashes if path.endswith(".pyc") and path not in expected}
    home = plan.config.env["CUDA_HOME"].lstrip("/")
    made |= {f"{plan.prefix}/pyvenv.cfg".lstrip("/"), f"{home}/lib/stubs/libcuda.so"}
    assert hashes.keys() - made == expected.keys()
    wrong = [p for p, value in expected.items() if p not in own and value != hashes[p]]
    assert wrong == []
    # RECORD is written anew for every wheel; it must tell the truth, but for what a later wheel replaced.
    site = f"{plan.prefix}/lib/python{plan.python}/site-packages".lstrip("/")
    text = host.run(f"cat {' '.join('/' + path for path in sorted(own))}").stdout
    told = [(_path(site, row[0]), row[1]) for row in records(text)]
    assert [p for p, value in told if value not in ("", hashes.get(p)) and p not in shared] == []


@pytest.fixture(scope="module")
def patches(host):
    """Put images/patches into the container."""
    name = host.backend.name
    subprocess.run(
        ["docker", "cp", str(IMAGES / "patches"), f"{name}:/tmp/patches"], check=True, capture_output=True
    )


def test_every_probe_passes_on_the_installed_tree(plan, ledger, host, patches):
    site = f"{plan.prefix}/lib/python{plan.python}/site-packages"
    for item in ledger:
        assert read_patch(IMAGES, item["id"]).probe.is_file()
        done = host.run(f"PYTHONPATH=/tmp/patches python -B /tmp/patches/{item['id']}/probe.py {site}")
        assert done.rc == 0, f"{item['id']}: {done.stdout}{done.stderr}"


def test_byte_code_is_that_of_the_patched_files(plan, ledger, probe):
    site = f"{plan.prefix}/lib/python{plan.python}/site-packages"
    paths = sorted({f"{site}/{path}" for item in ledger for path in item["files"] if path.endswith(".py")})
    answers = probe("pyc", *paths)
    assert False not in answers.values(), answers
    assert True in answers.values()


def test_patched_modules_run(plan, probe, stubs):
    capability = [str(part) for part in (9, 0)] if plan.arch == "sm_90" else ["10", "3"]
    capability = ["12", "0"] if plan.arch == "sm_120" else capability
    found = probe("patched", *capability, env=stubs)
    assert found["jit_arch"] == JIT_ARCH[plan.arch]
    assert "cutlass" in found["kernel"]
