# SPDX-License-Identifier: Apache-2.0
import zipfile

import pytest

from imagebuild.errors import IntegrityError
from imagebuild.layer.spec import Artifact
from imagebuild.overlaps import find_overlaps, recorded


def make(folder, name, rows):
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.dist-info/RECORD", "\n".join(f"{p},{h},1" for p, h in rows.items()))
    return Artifact("wheel", name, "1", path.name, "0" * 64, 1)


def test_only_differing_content_overlaps(tmp_path):
    wheels = [
        make(tmp_path, "one", {"same": "sha256=a", "other": "sha256=a", "alone": "sha256=x"}),
        make(tmp_path, "two", {"same": "sha256=a", "other": "sha256=b"}),
        make(tmp_path, "three", {"other": "sha256=c"}),
    ]
    found = find_overlaps(wheels, lambda a: tmp_path / a.file)
    assert found == {("one", "two"): ["other"], ("two", "three"): ["other"]}


def test_a_wheel_without_record_is_an_integrity_error(tmp_path):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.py", "")
    with pytest.raises(IntegrityError, match=r"x\.whl: not a readable wheel"):
        recorded(path, "x.whl")
    path.write_bytes(b"PK")
    with pytest.raises(IntegrityError, match=r"x\.whl: not a readable wheel"):
        recorded(path, "x.whl")
