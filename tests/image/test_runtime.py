# SPDX-License-Identifier: Apache-2.0
"""The image runs as the users run it: any uid, read-only root, no network."""

import pytest


def test_runs_as_the_plans_user(plan, host):
    assert host.run("id -u").stdout.strip() == plan.config.user.split(":")[0]
    assert host.run("id -g").stdout.strip() == plan.config.user.split(":")[1]


def test_cache_folders_are_writable_by_the_user_and_group_zero(plan, host):
    folders = {v for v in plan.config.env.values() if v.startswith("/cache/")} | {"/cache"}
    for folder in folders:
        found = host.file(folder)
        assert found.is_directory, folder
        assert (found.uid, found.gid, found.mode) == (1000, 0, 0o775), folder


def test_nothing_else_is_writable_by_the_user(host):
    command = "find / -xdev -writable ! -type l ! -path '/proc/*' ! -path '/dev/*' ! -path '/cache*'"
    assert sorted(host.run(command).stdout.split()) == [
        "/drafter",
        "/home/k26",
        "/run/lock",
        "/tmp",
        "/var/tmp",
    ]


@pytest.mark.parametrize("user", ["1000:0", "5000:0", "0:0"])
def test_any_uid_works_on_a_read_only_root(docker, reference, user):
    script = "import getpass, torch, tempfile; print(getpass.getuser(), torch.__version__)"
    out = docker(
        "run", "--rm", "--pull=never", "--network=none", "--read-only", "--tmpfs=/tmp", f"--user={user}",
        reference, "python", "-c", script,
    )  # fmt: skip
    assert out.split() == ["k26", "2.11.0+cu130"]


def test_without_a_command_the_image_says_what_it_is(docker, reference, plan):
    out = docker("run", "--rm", "--pull=never", "--network=none", reference)
    assert plan.arch in out
    assert "serve ARGS" in out
    assert "check ARGS" in out


def test_serve_reaches_sglang(docker, reference):
    out = docker("run", "--rm", "--pull=never", "--network=none", reference, "serve", "--help")
    assert "--model-path" in out or "sglang serve" in out


def test_a_wrong_command_fails(docker, reference):
    with pytest.raises(AssertionError, match="no-such-command"):
        docker("run", "--rm", "--pull=never", "--network=none", reference, "no-such-command")
