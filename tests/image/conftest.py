# SPDX-License-Identifier: Apache-2.0
"""`pytest tests/image --image REF --arch A`: checks of one built image, against its Plan.

Probes are small scripts in probes/, run by the image's own Python.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import testinfra

from imagebuild.catalog import project_root
from imagebuild.plan import LABEL_PREFIX
from imagebuild.resolve import resolve

PROBES = Path(__file__).parent / "probes"


def pytest_addoption(parser):
    parser.addoption("--image", help="image reference or id (docker)")
    parser.addoption("--arch", help="the arch it was built for")


def pytest_collection_modifyitems(config, items):
    here = Path(__file__).parent
    chosen = [item for item in items if here in Path(item.fspath).parents]
    for item in chosen:
        item.add_marker(pytest.mark.image)
    if chosen and not (config.getoption("--image") and config.getoption("--arch")):
        raise pytest.UsageError("tests/image needs --image REF and --arch ARCH")


def _docker(*argv):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def docker():
    """Return a function that runs a docker command and returns its output; it must succeed."""
    return _docker


@pytest.fixture(scope="session")
def plan(pytestconfig, config):
    slim = config["Config"]["Labels"].get(f"{LABEL_PREFIX}.slim") != "none"
    return resolve(project_root() / "images", pytestconfig.getoption("--arch"), slim=slim)


@pytest.fixture(scope="session")
def reference(pytestconfig):
    return pytestconfig.getoption("--image")


@pytest.fixture(scope="session")
def config(reference):
    return json.loads(_docker("image", "inspect", reference))[0]


@pytest.fixture(scope="session")
def host(reference):
    """A running container without network; `host` is testinfra's."""
    options = ["--pull=never", "--detach", "--rm", "--network=none", f"--volume={PROBES}:/probes:ro"]
    name = _docker("run", *options, "--entrypoint=sleep", reference, "3600")
    yield testinfra.get_host(f"docker://{name}")
    _docker("rm", "--force", name)


@pytest.fixture(scope="session")
def probe(host):
    """Run probes/NAME.py in the image and return the JSON that it prints last."""

    def run(name, *args, env=""):
        words = " ".join(f"'{word}'" for word in args)
        done = host.run(f"cd /tmp && {env} python -B /probes/{name}.py {words}")
        assert done.rc == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def stubs(plan):
    """Environment that lets code which needs libcuda.so.1 be imported where there is no driver."""
    return f"LD_LIBRARY_PATH={plan.config.env['CUDA_HOME']}/lib/stubs"
