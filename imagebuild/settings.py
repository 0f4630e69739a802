# SPDX-License-Identifier: Apache-2.0
"""`Settings`: what a user sets about the host (cache, index, mirrors, CA), never about an image.

Sources in order: command line > environment (`IMAGEBUILD_` + the name in capitals) > the file
`$XDG_CONFIG_HOME/imagebuild/config.yaml`. Nothing here reaches a Plan or an image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagebuild.errors import ManifestError
from imagebuild.yamlfile import load

PREFIX = "IMAGEBUILD_"
MAX_JOBS = 64


class UserConfig(BaseModel):
    """The user's configuration file: any of the settings, all optional."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    cache_dir: Path | None = None
    jobs: int | None = Field(default=None, ge=1, le=MAX_JOBS)
    index_url: str | None = Field(default=None, repr=False, min_length=1)
    extra_index_urls: tuple[str, ...] | None = Field(default=None, repr=False)
    debian_mirror: str | None = Field(default=None, repr=False, min_length=1)
    debian_security_mirror: str | None = Field(default=None, repr=False, min_length=1)
    debian_snapshot: str | None = Field(default=None, repr=False, min_length=1)
    ca_file: Path | None = None


class Settings(BaseModel):
    """Settings after all sources are merged. None means: take the host's own (pip, uv, apt, system).

    `jobs` is the number of parallel connections. URLs may hold credentials, so they are not in
    the repr; use `imagebuild.redact` before showing one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cache_dir: Path
    jobs: int = Field(default=8, ge=1, le=MAX_JOBS)
    index_url: str | None = Field(default=None, repr=False)
    extra_index_urls: tuple[str, ...] = Field(default=(), repr=False)
    debian_mirror: str | None = Field(default=None, repr=False)
    debian_security_mirror: str | None = Field(default=None, repr=False)
    debian_snapshot: str | None = Field(default=None, repr=False)
    ca_file: Path | None = None


def load_settings(options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Merge the three sources. `options` are command-line values by setting name; None is "not given".

    Raises ManifestError naming the option, the variable or the file and line that is wrong.
    """
    env = os.environ if env is None else env
    path = config_path(env)
    from_file = load(path, UserConfig) if path.is_file() else UserConfig()
    layers = [
        _options({k: v for k, v in (options or {}).items() if v is not None}),
        _environment(env),
        from_file,
    ]
    merged: dict[str, Any] = {}
    for name in UserConfig.model_fields:
        value = next((v for layer in layers if (v := getattr(layer, name)) is not None), None)
        if value is not None:
            merged[name] = value.expanduser() if isinstance(value, Path) else value
    return Settings(**{"cache_dir": default_cache_dir(env), **merged})


def config_path(env: Mapping[str, str]) -> Path:
    """Return where the user's configuration file is, whether or not it exists."""
    return _xdg(env, "XDG_CONFIG_HOME", ".config") / "imagebuild" / "config.yaml"


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """Return the cache folder when no source names one."""
    return _xdg(env, "XDG_CACHE_HOME", ".cache") / "imagebuild"


def _xdg(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    value = env.get(variable, "")
    if value.startswith("/"):  # the XDG base directory specification: a relative path is ignored
        return Path(value)
    return Path(env.get("HOME") or "~").expanduser() / fallback


def _options(given: Mapping[str, Any]) -> UserConfig:
    return _validate(dict(given), lambda name: "--" + name.replace("_", "-"))


def _environment(env: Mapping[str, str]) -> UserConfig:
    raw: dict[str, Any] = {}
    for name in UserConfig.model_fields:
        value = env.get(PREFIX + name.upper(), "").strip()
        if value:  # an empty variable is an unset one
            raw[name] = value.split() if name.endswith("_urls") else value
    return _validate(raw, lambda name: PREFIX + name.upper())


def _validate(raw: dict[str, Any], spell: Callable[[str], str]) -> UserConfig:
    try:
        return UserConfig.model_validate(raw, strict=False)
    except ValidationError as error:
        lines = [f"{spell(str(e['loc'][0]))}: {e['msg']}, found {e['input']!r}" for e in error.errors()]
        raise ManifestError("\n".join(lines), hint="see docs/cli.md for what is allowed") from None
