# SPDX-License-Identifier: Apache-2.0
"""What is in the image is what the Plan says."""

import json

import pytest

from imagebuild.digest import digest
from imagebuild.plan import LABEL_PREFIX, to_text


def test_python_packages_are_exactly_the_locked_ones(plan, probe):
    locked = {a.name: a.version for layer in plan.layers for a in layer.artifacts if a.kind == "wheel"}
    found = probe("packages")
    differing = {n: (v, locked[n]) for n, v in found.items() if n in locked and v != locked[n]}
    assert differing.keys() <= MISLABELLED.keys(), differing
    assert all(differing[name] == MISLABELLED[name] for name in differing)
    assert found.keys() == locked.keys()


# A wheel's file name and its METADATA can disagree about the version: (METADATA, file name).
MISLABELLED = {}


def test_debian_packages_are_exactly_the_locked_ones(plan, host):
    locked = {a.name: a.version for a in plan.layers[0].artifacts}
    done = host.run("dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {row[0]: row[1] for row in rows} == locked
    assert {row[2] for row in rows} == {"ii"}


def test_the_image_carries_its_plan(plan, host, config):
    text = host.file("/etc/imagebuild/plan.json").content_string
    assert text == to_text(plan)
    assert digest(json.loads(text)) == plan.digest == config["Config"]["Labels"][f"{LABEL_PREFIX}.plan"]


def test_configuration_is_the_plans(plan, config):
    found = config["Config"]
    assert found["Labels"] == plan.labels
    assert dict(line.split("=", 1) for line in found["Env"]) == plan.config.env
    assert found["User"] == plan.config.user
    assert tuple(found["Entrypoint"]) == plan.config.entrypoint
    assert found["WorkingDir"] == plan.config.workdir
    assert set(found["Volumes"]) == set(plan.config.volumes)
    assert set(found["ExposedPorts"]) == {f"{port}/tcp" for port in plan.config.ports}
    assert config["Created"].startswith(plan.created[:19])


def test_our_files_are_in_the_image(plan, host):
    for item in plan.layers[-1].files:
        found = host.file(item.target)
        assert found.sha256sum == item.sha256
        assert (found.mode, found.uid, found.gid) == (item.mode, 0, 0)


@pytest.mark.parametrize("trace", ["/run/imagebuild", "/.dockerenv.d", "/root/.cache", "/base.tar", "/tools"])
def test_the_build_left_no_trace(host, trace):
    assert not host.file(trace).exists


def test_no_proxy_or_certificate_of_the_build_host(host):
    names = host.run("env").stdout.lower()
    assert "proxy" not in names
    assert host.run("find /usr/local/share/ca-certificates -type f").stdout == ""
    assert host.run("find /tmp /var/tmp -mindepth 1").stdout == ""


def test_files_have_the_plans_time(plan, host):
    command = f"find /opt /etc/imagebuild -newermt @{plan.mtime} -printf '%p\\n' | head -5"
    assert host.run(command).stdout == ""
    assert host.run(f"find /opt ! -newermt @{plan.mtime - 1} | head -5").stdout == ""
