# SPDX-License-Identifier: Apache-2.0
"""`HostNetwork`: where this host fetches Python packages from, and through which proxies and CAs.

pip's own parser merges pip's files and variables, so that what works with `pip download` works
here. pip's internal modules are no public interface: this is the only module that imports them,
and pip is a locked dependency.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from imagebuild import process
from imagebuild.errors import BuildError, ManifestError, PreconditionError
from imagebuild.redact import redact
from imagebuild.settings import Settings

MIN_TIMEOUT_S = 30.0
_TRUE = {"1", "true", "yes", "on", "y", "t"}


@dataclass(frozen=True)
class HostNetwork:
    """Network settings of the host. URLs may hold credentials and are left out of the repr.

    `index_url` None means that the host forbids indexes (`no-index`). `find_links` are folders,
    pages or URLs. `ca_file` and `ca_dir` both None means the system's own store; `ca_source`
    names the setting they come from. `proxy` None means the environment's proxies.
    `trusted_hosts` (`host` or `host:port`) are spoken to without a certificate check. `timeout_s`
    is the longest silence of a server in seconds.
    """

    index_url: str | None = field(repr=False)
    extra_index_urls: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    ca_file: Path | None = None
    ca_dir: Path | None = None
    ca_source: str = "the system's certificate store"
    client_cert: Path | None = None
    proxy: str | None = field(default=None, repr=False)
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = 30


def host_network(settings: Settings) -> HostNetwork:
    """Read the settings of the host's pip and uv, below those of `settings`.

    The main index is the first of: `settings`, UV_DEFAULT_INDEX or UV_INDEX_URL, pip's variables
    and files, uv.toml, pip's built-in default. Further indexes and folders of all of them are
    used together: the hash in the lock decides, so none of them can slip in other bytes.

    Raises ManifestError if a configuration file is malformed, PreconditionError if a CA file is missing.
    """
    pip = _pip_options()
    uv_main, uv_more, uv_links = _uv_variables()
    toml_main, toml_more, toml_links = _uv_toml()
    pip_main = None if pip["index_url"] == _pip_default() else pip["index_url"]
    main = settings.index_url or uv_main or pip_main or toml_main
    no_index = bool(pip["no_index"]) or os.environ.get("UV_NO_INDEX", "").lower() in _TRUE
    if no_index:
        main, extra = settings.index_url, settings.extra_index_urls
    else:
        main = main or str(pip["index_url"])
        extra = (*settings.extra_index_urls, *uv_more, *pip["extra_index_urls"], *toml_more)
    ca_file, ca_dir, ca_source = _certificates(settings, pip["cert"])
    return HostNetwork(
        index_url=main,
        extra_index_urls=tuple(dict.fromkeys(url for url in extra if url != main)),
        find_links=tuple(dict.fromkeys((*uv_links, *pip["find_links"], *toml_links))),
        ca_file=ca_file,
        ca_dir=ca_dir,
        ca_source=ca_source,
        client_cert=Path(pip["client_cert"]).expanduser() if pip["client_cert"] else None,
        proxy=pip["proxy"] or None,
        trusted_hosts=(*pip["trusted_hosts"], *os.environ.get("UV_INSECURE_HOST", "").split()),
        timeout_s=max(MIN_TIMEOUT_S, float(pip["timeout"])),
    )


def apt_proxies() -> dict[str, str]:
    """Return apt's proxies in the form that `requests` takes; empty without apt or without a proxy.

    `Acquire::http::Proxy` holds for all hosts, `Acquire::http::Proxy::HOST` for one, and the value
    DIRECT means none (see apt-transport-http(1)).
    """
    try:
        text = process.output(["apt-config", "dump"], timeout=30)
    except (PreconditionError, BuildError):
        return {}
    return parse_apt_proxies(text)


def parse_apt_proxies(dump: str) -> dict[str, str]:
    """Read the proxies out of what `apt-config dump` prints."""
    found: dict[str, str] = {}
    pattern = re.compile(
        r'^Acquire::(https?)::Proxy(?:::([^ :"]+))? "([^"]*)";$', re.IGNORECASE | re.MULTILINE
    )
    for scheme, host, value in pattern.findall(dump):
        if value:
            key = f"{scheme.lower()}://{host}" if host else scheme.lower()
            found[key] = "" if value.upper() == "DIRECT" else value
    if "http" in found:
        found.setdefault("https", found["http"])  # apt does so too
    return found


def _pip_options() -> dict[str, Any]:
    from pip._internal.commands import create_command

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options, _ = create_command("download").parse_args([])
    except SystemExit:
        raise ManifestError(
            f"pip's configuration is wrong: {redact(said.getvalue().strip())}",
            hint="`pip config debug` lists the files and variables that pip reads",
        ) from None
    return vars(options)


def _pip_default() -> str:
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url)


def _uv_variables() -> tuple[str | None, list[str], list[str]]:
    """Return (main index, further indexes, find-links) of uv's variables (uv's environment reference)."""
    env = os.environ
    main = env.get("UV_DEFAULT_INDEX", "").strip() or env.get("UV_INDEX_URL", "").strip()
    more = [*env.get("UV_INDEX", "").split(), *env.get("UV_EXTRA_INDEX_URL", "").split()]
    links = re.split(r"[,\s]+", env.get("UV_FIND_LINKS", "").strip())
    return (_named(main) if main else None), [_named(item) for item in more], [x for x in links if x]


def _named(item: str) -> str:
    """Return the URL of `URL` or `NAME=URL`; a name brings its credentials from the environment."""
    match = re.match(r"([A-Za-z0-9._-]+)=(.+)", item)
    return _index_url(match.group(2), match.group(1)) if match else _index_url(item, "")


def _index_url(url: str, name: str) -> str:
    if "://" not in url:
        return Path(url).expanduser().absolute().as_uri()
    prefix = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', name.upper())}"
    user, password = os.environ.get(f"{prefix}_USERNAME"), os.environ.get(f"{prefix}_PASSWORD")
    parts = urlsplit(url)
    if not name or not (user or password) or "@" in parts.netloc:
        return url
    login = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))


def _uv_toml() -> tuple[str | None, list[str], list[str]]:
    """Return (main index, further indexes, find-links) of uv's user and system files."""
    main: str | None = None
    more: list[str] = []
    links: list[str] = []
    for path, table in _uv_tables():
        if isinstance(table.get("index-url"), str):
            main = main or _index_url(table["index-url"], "")
        more += [_index_url(url, "") for url in _texts(table, "extra-index-url")]
        links += [str(path.parent / x) if "://" not in x else x for x in _texts(table, "find-links")]
        for entry in table.get("index", []):
            if not isinstance(entry, dict) or entry.get("explicit") or not isinstance(entry.get("url"), str):
                continue
            url = _index_url(entry["url"], str(entry.get("name", "")))
            if entry.get("format") == "flat":
                links.append(url)
            elif entry.get("default"):
                main = main or url
            else:
                more.append(url)
    return main, more, links


def _uv_tables() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from pip._vendor import tomli as tomllib

    if os.environ.get("UV_NO_CONFIG", "").lower() in _TRUE:
        return
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    files = [Path(config) / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]
    if os.environ.get("UV_CONFIG_FILE"):
        files = [Path(os.environ["UV_CONFIG_FILE"])]
    for path in files:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:
            continue
        except ValueError as error:
            raise ManifestError(
                f"{path}: not valid TOML: {error}", hint="correct or remove the file"
            ) from None
        yield path, table
        if isinstance(table.get("pip"), dict):
            yield path, table["pip"]


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    return [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, str)]


def _certificates(settings: Settings, pip_cert: str | None) -> tuple[Path | None, Path | None, str]:
    """Return (file, folder, source) of the CAs to trust instead of the system's."""
    env = os.environ
    for source, value in (
        ("ca_file (IMAGEBUILD_CA_FILE or config.yaml)", settings.ca_file),
        ("pip's `cert` (PIP_CERT or pip.conf)", pip_cert),
        ("REQUESTS_CA_BUNDLE", env.get("REQUESTS_CA_BUNDLE")),
        ("CURL_CA_BUNDLE", env.get("CURL_CA_BUNDLE")),
        ("SSL_CERT_FILE", env.get("SSL_CERT_FILE")),
    ):
        if not value:
            continue
        path = Path(value).expanduser()
        if path.is_dir():
            return None, path, source
        if not path.is_file():
            raise PreconditionError(
                f"{source} names a CA file that does not exist: {path}",
                hint="correct or unset it; unset, the system's certificate store is used",
            )
        return path, None, source
    if env.get("SSL_CERT_DIR") and Path(env["SSL_CERT_DIR"].split(":")[0]).is_dir():
        return None, Path(env["SSL_CERT_DIR"].split(":")[0]), "SSL_CERT_DIR"
    return None, None, "the system's certificate store"
