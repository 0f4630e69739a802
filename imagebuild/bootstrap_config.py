# SPDX-License-Identifier: Apache-2.0
"""Make uv use the index, proxy and CA that this host's pip is set up with. Standard library only.

uv reads no pip.conf and no PIP_* variable, so on a host behind a mirror `pip install` works and uv
does not. The settings go to uv in its environment, never on a command line: an index address can
hold a password, and command lines show up in `ps` and in our error messages.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Where the bundle of trusted CAs lies: Debian and Ubuntu, Fedora and RHEL, SUSE.
CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
# Any of these says where uv shall look: then pip's settings for it do not count.
UV_INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_CONFIG_FILE",
)


def pip_files(env: Mapping[str, str]) -> list[Path]:
    """The files pip reads, in its order: a later one wins. Mirrors pip's own rules (`pip config debug`)."""
    own = env.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    home = Path(env.get("HOME") or Path.home())
    site_wide = [Path(base) / "pip" for base in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if base]
    files = [*(folder / "pip.conf" for folder in site_wide), Path("/etc/pip.conf")]
    if own is None or not Path(own).exists():
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        files += [home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    return files if own is None else [*files, Path(own)]


def pip_settings(env: Mapping[str, str]) -> dict[str, str]:
    """What pip would use for `pip install`: files, then their [install] section, then PIP_* variables.

    A file that cannot be read or parsed counts as absent: pip itself, tried after uv, tells why.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in pip_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for name, found in sections.items():
            if parser.has_section(name):
                found.update({key.replace("_", "-"): value for key, value in parser.items(name)})
    variables = {
        name[4:].lower().replace("_", "-"): value
        for name, value in env.items()
        if name.startswith("PIP_") and value
    }
    return {**sections["global"], **sections["install"], **variables}


def _has_uv_index_config(env: Mapping[str, str]) -> bool:
    home = Path(env.get("HOME") or Path.home())
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml"
    files = user.is_file() or Path("/etc/uv/uv.toml").is_file()
    return files or any(env.get(name) for name in UV_INDEX_VARIABLES)


def uv_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for uv so that it looks where pip looks. What the user set for uv stays."""
    pip = pip_settings(env)
    found: dict[str, str] = {}
    if not _has_uv_index_config(env):
        if pip.get("index-url"):
            found["UV_DEFAULT_INDEX"] = pip["index-url"]
        if pip.get("extra-index-url"):
            found["UV_INDEX"] = " ".join(pip["extra-index-url"].split())
            # pip takes all indexes as equals. It is safe here: only files with a locked hash are taken.
            found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if pip.get("find-links"):
            found["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
        if pip.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
            found["UV_NO_INDEX"] = "1"
    if pip.get("trusted-host"):
        found["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if pip.get("timeout") or pip.get("default-timeout"):
        found["UV_HTTP_TIMEOUT"] = pip.get("timeout") or pip["default-timeout"]
    if pip.get("proxy"):
        found["ALL_PROXY"] = pip["proxy"]
    if pip.get("client-cert"):
        found["SSL_CLIENT_CERT"] = pip["client-cert"]
    bundle = pip.get("cert") or next((path for path in CA_BUNDLES if os.path.isfile(path)), None)
    if bundle:
        found["SSL_CERT_FILE"] = bundle
    return {name: value for name, value in found.items() if not env.get(name)}
