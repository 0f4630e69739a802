# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import ManifestError
from imagebuild.settings import Settings, UserConfig, load_settings


def write_config(folder: Path, text: str) -> dict[str, str]:
    path = folder / "imagebuild" / "config.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}


def test_defaults(tmp_path: Path) -> None:
    settings = load_settings({}, {"HOME": str(tmp_path)})
    assert settings == Settings(cache_dir=tmp_path / ".cache" / "imagebuild")
    assert settings.jobs == 8 and settings.index_url is None


def test_the_cache_follows_the_xdg_specification(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "/var/tmp/cache"}
    assert load_settings({}, env).cache_dir == Path("/var/tmp/cache/imagebuild")
    env["XDG_CACHE_HOME"] = "relative/is/ignored"
    assert load_settings({}, env).cache_dir == tmp_path / ".cache" / "imagebuild"


def test_option_before_environment_before_file(tmp_path: Path) -> None:
    env = write_config(tmp_path, "jobs: 3\ncache_dir: ~/c\nindex_url: https://file.example.org/simple\n")
    env |= {"IMAGEBUILD_JOBS": "4", "IMAGEBUILD_INDEX_URL": "https://env.example.org/simple"}
    settings = load_settings({"jobs": 5, "index_url": None}, env)
    assert settings.jobs == 5
    assert settings.index_url == "https://env.example.org/simple"
    assert settings.cache_dir == Path("~/c").expanduser()


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    env = {
        "HOME": str(tmp_path),
        "IMAGEBUILD_EXTRA_INDEX_URLS": "https://a.example.org https://b.example.org",
    }
    values = {"jobs": "2", "cache_dir": "/c", "ca_file": "/ca.pem"}
    for name in UserConfig.model_fields:
        env.setdefault(f"IMAGEBUILD_{name.upper()}", values.get(name, f"https://{name}.example.org"))
    settings = load_settings({}, env)
    assert settings.extra_index_urls == ("https://a.example.org", "https://b.example.org")
    assert settings.jobs == 2 and settings.ca_file == Path("/ca.pem")
    assert settings.debian_snapshot == "https://debian_snapshot.example.org"
    assert set(UserConfig.model_fields) == set(Settings.model_fields)


def test_an_empty_variable_is_an_unset_one(tmp_path: Path) -> None:
    assert load_settings({}, {"HOME": str(tmp_path), "IMAGEBUILD_JOBS": " "}).jobs == 8


@pytest.mark.parametrize("value", ["many", "0", "65", "1.5"])
def test_a_wrong_variable_is_named(value: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="IMAGEBUILD_JOBS: ") as caught:
        load_settings({}, {"HOME": str(tmp_path), "IMAGEBUILD_JOBS": value})
    assert repr(value) in str(caught.value) and caught.value.exit_code == 2


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="--jobs: "):
        load_settings({"jobs": 1000}, {"HOME": str(tmp_path)})


def test_a_wrong_file_is_shown_with_its_line(tmp_path: Path) -> None:
    env = write_config(tmp_path, "jobs: 3\nindex-url: https://example.org\n")
    with pytest.raises(ManifestError, match=r"config\.yaml:2:1: .*index-url") as caught:
        load_settings({}, env)
    assert "index_url" in str(caught.value)


def test_urls_are_not_in_the_repr() -> None:
    settings = Settings(cache_dir=Path("/c"), index_url="https://anna:secret@example.org/simple")
    assert "secret" not in repr(settings) and "secret" not in str(settings)
