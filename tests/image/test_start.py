# SPDX-License-Identifier: Apache-2.0
"""The image starts as users start it: any uid, read-only root, no network."""

import json

import pytest

from imagebuild.checks.traced import attempts, network_calls

# A check passed, failed, or misses something of the host.
EXIT_CODES = (0, 1, 3)
WHO = "import getpass, os, tempfile; tempfile.mkdtemp(); print(getpass.getuser(), os.getuid(), os.getgid())"


@pytest.mark.check("any-uid")
@pytest.mark.parametrize("user", ["1000:0", "5000:0", "0:0"])
def test_any_uid_with_group_0_works(target, user):
    done = target.start("python", "-c", WHO, user=user)
    assert done.rc == 0, done.err[-2000:]
    assert done.out.split() == ["k26", *user.split(":")]


@pytest.mark.check("read-only")
@pytest.mark.parametrize("user", ["1000:0", "5000:0"])
def test_a_read_only_root_is_enough(target, user):
    done = target.start("python", "-c", WHO, user=user, read_only=True)
    assert done.rc == 0, done.err[-2000:]


@pytest.mark.check("any-uid")
def test_cache_folders_are_writable_by_the_user_and_group_zero(plan, host):
    folders = sorted({v for v in plan.config.env.values() if v.startswith("/cache/")} | {"/cache"})
    done = host.run(f"for folder in {' '.join(folders)}; do test -w $folder || echo $folder; done")
    assert done.stdout.split() == []


@pytest.mark.check("entry-point")
def test_without_a_command_the_image_says_what_it_is(target, plan):
    done = target.start()
    assert done.rc == 0, done.err
    assert plan.arch in done.out
    assert "serve ARGS" in done.out
    assert "check ARGS" in done.out


@pytest.mark.check("entry-point")
def test_a_wrong_command_fails(target):
    done = target.start("no-such-command")
    assert done.rc != 0
    assert "no-such-command" in done.err


@pytest.mark.check("preflight")
def test_the_preflight_answers(preflight):
    """Where there is no GPU it says so, and resolves the server's arguments all the same."""
    done, _ = preflight
    assert done.rc in EXIT_CODES, done.err[-3000:]
    found = {item["id"]: item for item in json.loads(done.out)["checks"]}
    assert found["arguments"]["state"] == "ok", found["arguments"]


@pytest.mark.check("offline")
def test_a_start_without_network_does_not_try_to_reach_one(target, server, preflight):
    """The entry point, its preflight, and SGLang's own resolution of its arguments for a GPU."""
    starts = [[], ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9), 1)"]]
    logs = [server.trace, preflight[1], *(target.traced(*argv)[1] for argv in starts)]
    assert [attempts(log) for log in logs] == [[] for _ in logs]
    assert network_calls(logs[3]) > 0, "the trace has not even seen a connection to loopback"
