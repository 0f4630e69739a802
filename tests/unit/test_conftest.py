# SPDX-License-Identifier: Apache-2.0
"""The guards of conftest.py work: without them a test could pass on one machine only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuild import process

FAILED = pytest.fail.Exception


def test_a_program_does_not_start():
    with pytest.raises(FAILED, match="starts a program"):
        subprocess.Popen(["true"])
    with pytest.raises(FAILED, match="starts a program"):
        process.output(["true"])
    with pytest.raises(FAILED, match="starts a program"):
        os.system("true")  # noqa: TID251


def test_a_guard_is_not_swallowed_by_except_exception():
    assert not issubclass(FAILED, Exception)


@pytest.mark.subprocess
def test_a_marked_test_starts_programs():
    assert process.output([sys.executable, "-c", "print('hello')"]) == "hello\n"


@pytest.mark.parametrize("call", ["connect", "connect_ex", "bind"])
def test_a_socket_is_refused(call):
    with socket.socket() as sock, pytest.raises(FAILED, match="uses the network"):
        getattr(sock, call)(("127.0.0.1", 9))


def test_a_datagram_and_a_name_lookup_are_refused():
    with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(FAILED, match="uses the network"):
        sock.sendto(b"x", ("127.0.0.1", 9))
    with pytest.raises(FAILED, match="uses the network"):
        socket.create_connection(("localhost", 9), timeout=1)


@pytest.mark.loopback
def test_loopback_is_allowed_when_marked_and_nothing_else():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
    # 0.0.0.0 reaches this machine only, should the guard be broken.
    with socket.socket() as sock, pytest.raises(FAILED, match="uses the network"):
        sock.connect(("0.0.0.0", 9))
    with pytest.raises(FAILED, match="uses the network"):
        socket.getaddrinfo("host.invalid", 80)


def test_home_and_xdg_folders_are_temporary(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    assert Path.home().is_relative_to(base)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        assert Path(os.environ[name]).is_relative_to(base)


def test_no_setting_of_the_user_is_seen():
    assert [name for name in os.environ if name.startswith("IMAGEBUILD_")] == []


def test_folders_mark_their_tests(pytestconfig):
    """A test in tests/engine is marked without a line in it."""
    from tests import conftest

    class Item:
        path = Path(conftest.__file__).parent / "engine" / "test_x.py"

        def __init__(self):
            self.marks: list[str] = []

        def add_marker(self, name):
            self.marks.append(name)

    item = Item()
    conftest.pytest_collection_modifyitems([item])  # type: ignore[list-item]
    assert item.marks == ["engine"]
