# SPDX-License-Identifier: Apache-2.0
"""The committed Dockerfiles are what the plans render to, on any machine."""

import pytest

from imagebuild.catalog import arch_names, project_root
from imagebuild.errors import IntegrityError
from imagebuild.render import render, write_dockerfile
from imagebuild.resolve import resolve

ROOT = project_root().resolve()
IMAGES = ROOT / "images"
TEMPLATE = ROOT / "Dockerfile.template"


@pytest.mark.parametrize("arch", arch_names(IMAGES))
def test_committed_dockerfile_is_current(arch):
    committed = (IMAGES / arch / "Dockerfile").read_text(encoding="utf-8")
    assert committed == render(resolve(IMAGES, arch), TEMPLATE), "python build.py render"


def test_rendering_twice_anywhere_is_byte_identical(tmp_path, monkeypatch):
    first = render(resolve(IMAGES, "sm_103"), TEMPLATE)
    for name, value in {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(tmp_path), "LANG": "de_DE"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert render(resolve(IMAGES, "sm_103"), TEMPLATE) == first


def test_no_host_path_or_network_in_a_dockerfile():
    for path in IMAGES.glob("*/Dockerfile"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert str(ROOT) not in text
        assert "apt-get" not in text
        assert "pip install" not in text


def test_values_are_quoted_against_expansion():
    plan = resolve(IMAGES, "sm_103")
    config = plan.config.model_copy(update={"env": {"X": 'a $HOME "b" \\c'}})
    text = render(plan.model_copy(update={"config": config}), TEMPLATE)
    assert 'ENV X="a \\$HOME \\"b\\" \\\\c"' in text


def test_check_writes_nothing_and_says_what_to_do(tmp_path):
    plan = resolve(IMAGES, "sm_103")
    target = tmp_path / "Dockerfile"
    with pytest.raises(IntegrityError, match="missing"):
        write_dockerfile(plan, TEMPLATE, target, check=True)
    assert write_dockerfile(plan, TEMPLATE, target, check=False)
    assert not write_dockerfile(plan, TEMPLATE, target, check=True)
    target.write_text("FROM scratch\n")
    with pytest.raises(IntegrityError, match=r"build\.py render"):
        write_dockerfile(plan, TEMPLATE, target, check=True)
    assert target.read_text() == "FROM scratch\n"
