# SPDX-License-Identifier: Apache-2.0
"""Guards for every test: what is not marked for it starts no program and touches no network.

A test in tests/engine, tests/image, tests/gpu or tests/patches gets that marker by its folder. A
guard fails the test with pytest's own exception, which `except Exception` in the code under test
does not swallow.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REAL = (
    "engine",
    "image",
    "gpu",
    "patches",
    "services",
)  # markers of tests that work on the real machine, unguarded
URLLIB3_PROBE = ("::1", 0)  # bound by each copy of urllib3 when it is imported, to see if there is IPv6
FOLDERS = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that nobody has to remember it."""
    for item in items:
        parts = item.path.relative_to(HERE).parts if item.path.is_relative_to(HERE) else ()
        if parts and parts[0] in REAL:
            item.add_marker(parts[0])


def _marked(request: pytest.FixtureRequest, *names: str) -> bool:
    return any(request.node.get_closest_marker(name) for name in names)


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    if address[0] in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a program fails the test, unless it is marked `subprocess`."""
    if _marked(request, "subprocess", *REAL):
        return

    def refuse(*args: Any, **_kwargs: Any) -> None:
        pytest.fail(f"an unmarked test starts a program: {args[-1]!r}; mark it `subprocess`, or use a fake")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    for name in ("system", "posix_spawn", "execv", "execve", "fork"):
        monkeypatch.setattr(os, name, refuse)


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Using a socket fails the test; marked `loopback` it may, but only on this machine."""
    if _marked(request, *REAL):
        return
    loopback = _marked(request, "loopback")

    def guard(owner: Any, name: str, where: int) -> None:
        real = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            address = args[where] if owner is socket.socket else (args[0], None)
            if address != URLLIB3_PROBE and not (loopback and _is_local(address)):
                pytest.fail(f"a test uses the network: {name} {address!r}; mark it `loopback` for 127.0.0.1")
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("connect", "connect_ex", "bind"):
        guard(socket.socket, name, 1)
    guard(socket.socket, "sendto", -1)
    guard(socket, "getaddrinfo", 0)


@pytest.fixture(autouse=True)
def own_home(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test reads or writes the user's files, or hangs on what the user has set for imagebuild."""
    if _marked(request, *REAL):
        return
    home = tmp_path_factory.mktemp("home")
    for name in FOLDERS:
        monkeypatch.setenv(name, str(home if name == "HOME" else home / name.lower()))
    for name in os.environ:
        if name.startswith("IMAGEBUILD_"):
            monkeypatch.delenv(name)
