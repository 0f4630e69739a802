# SPDX-License-Identifier: Apache-2.0
import base64
import csv
import hashlib
import io
import zipfile

import pytest

from imagebuild.layer.entries import LayerError
from imagebuild.layer.wheel import Scheme, wheel_entries

SCHEME = Scheme("opt/venv", "3.11")
SITE = "opt/venv/lib/python3.11/site-packages"
BASIC = {"demo/__init__.py": b"x = 1\n", "demo-1.0.dist-info/METADATA": b"Name: demo\n"}


def make_wheel(folder, members, record=True, modes=None):
    path = folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        rows = []
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(info, content)
            raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={raw},{len(content)}")
        if record:
            archive.writestr("demo-1.0.dist-info/RECORD", "\n".join([*rows, "demo-1.0.dist-info/RECORD,,"]))
    return path


def by_path(entries):
    return {entry.path: entry for entry in entries}


def test_files_go_to_site_packages_with_modes(tmp_path):
    members = {**BASIC, "demo/run.sh": b"#!/bin/sh\n"}
    found = by_path(wheel_entries(make_wheel(tmp_path, members, modes={"demo/run.sh": 0o100700}), SCHEME))
    assert found[f"{SITE}/demo/__init__.py"].read() == b"x = 1\n"
    assert found[f"{SITE}/demo/__init__.py"].mode == 0o644
    assert found[f"{SITE}/demo/run.sh"].mode == 0o755
    assert found[f"{SITE}/demo-1.0.dist-info/INSTALLER"].read() == b"imagebuild\n"


def test_data_folder_parts(tmp_path):
    members = {
        **BASIC,
        "demo-1.0.data/purelib/pure.py": b"",
        "demo-1.0.data/data/share/demo/a.txt": b"a",
        "demo-1.0.data/headers/demo.h": b"h",
        "demo-1.0.data/scripts/tool": b"#!python\nprint()\n",
        "demo-1.0.data/scripts/native": b"\x7fELF",
    }
    found = by_path(wheel_entries(make_wheel(tmp_path, members), SCHEME))
    assert f"{SITE}/pure.py" in found
    assert "opt/venv/share/demo/a.txt" in found
    assert "opt/venv/include/site/python3.11/demo/demo.h" in found
    assert found["opt/venv/bin/tool"].read() == b"#!/opt/venv/bin/python\nprint()\n"
    assert found["opt/venv/bin/native"].read() == b"\x7fELF"
    assert found["opt/venv/bin/native"].mode == 0o755


def test_entry_points_become_scripts(tmp_path):
    members = {**BASIC, "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo.cli:main\n"}
    script = by_path(wheel_entries(make_wheel(tmp_path, members), SCHEME))["opt/venv/bin/demo"]
    assert script.mode == 0o755
    assert script.read().startswith(b"#!/opt/venv/bin/python\n")
    assert b"from demo.cli import main" in script.read()


def test_record_names_every_installed_file_with_its_true_hash(tmp_path):
    members = {
        **BASIC,
        "demo-1.0.data/scripts/tool": b"#!python\n",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
    }
    found = by_path(wheel_entries(make_wheel(tmp_path, members), SCHEME))
    record = f"{SITE}/demo-1.0.dist-info/RECORD"
    rows = {row[0]: row for row in csv.reader(io.StringIO(found[record].read().decode()))}
    assert "../../../bin/demo" in rows
    assert len(rows) == len(found)
    for name, digest, size in rows.values():
        path = f"opt/venv/bin{name[12:]}" if name.startswith("../../../bin/") else f"{SITE}/{name}"
        if path == record:
            assert (digest, size) == ("", "")
            continue
        content = found[path].read()
        raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={raw}", str(len(content)))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({**BASIC, "../../etc/cron.d/x": b""}, "leaves the image root"),
        ({**BASIC, "/etc/passwd": b""}, "refused path"),
        ({**BASIC, "demo-1.0.data/root/etc/x": b""}, "unknown part"),
        ({**BASIC, "other-2.0.dist-info/METADATA": b""}, "has 2 .dist-info folders"),
        ({"demo/__init__.py": b""}, "has no demo-1.0.dist-info/RECORD"),
    ],
)
def test_hostile_or_broken_wheels_are_refused(tmp_path, members, message):
    path = make_wheel(tmp_path, members, record="demo-1.0.dist-info/METADATA" in members)
    if message.startswith("has no demo"):
        members = {**members, "demo-1.0.dist-info/METADATA": b""}
        path = make_wheel(tmp_path, members, record=False)
    with pytest.raises(LayerError, match=message):
        wheel_entries(path, SCHEME)


def test_a_link_in_a_wheel_is_refused(tmp_path):
    path = make_wheel(tmp_path, {**BASIC, "demo/x": b"/etc/passwd"}, modes={"demo/x": 0o120777})
    with pytest.raises(LayerError, match="not a regular file"):
        wheel_entries(path, SCHEME)


def test_a_member_twice_is_refused(tmp_path):
    path = make_wheel(tmp_path, BASIC)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("demo/__init__.py", b"evil")
    with pytest.raises(LayerError, match="same member twice"):
        wheel_entries(path, SCHEME)


def test_something_else_than_a_zip_is_refused(tmp_path):
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(LayerError, match=r"x\.whl: not a wheel"):
        wheel_entries(path, SCHEME)
