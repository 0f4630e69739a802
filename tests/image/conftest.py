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

from imagebuild.arch import parse_arch
from imagebuild.catalog import project_root
from imagebuild.models.gpus import read_gpus
from imagebuild.plan import LABEL_PREFIX
from imagebuild.resolve import resolve

HERE = Path(__file__).parent
PROBES = HERE / "probes"
# K2.6-shaped configurations without weights, where the services' flags look for them.
SHAPES = {
    "k26": "/models/Kimi-K2.6",
    "drafter": "/drafter/Kimi-K2.6-DFlash-tmp-long",
}


def pytest_addoption(parser):
    parser.addoption("--image", help="image reference or id (docker)")
    parser.addoption("--arch", help="the arch it was built for")


def pytest_collection_modifyitems(config, items):
    chosen = [item for item in items if HERE in Path(item.fspath).parents]
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
    options += [f"--volume={HERE}/models/{name}:{place}:ro" for name, place in SHAPES.items()]
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
def sglang(host, plan, stubs):
    """Return a function: an arch and command lines → what SGLang makes of each, for 8 GPUs of that arch.

    It runs the code of the image's own preflight, all command lines in one process.
    """
    name, images = host.backend.name, project_root() / "images"

    def run(arch, *lines):
        gpu = next(gpu for gpu in read_gpus(images) if gpu.arch == arch)
        wanted = {"name": gpu.name, "memory": gpu.memory_mib << 20, "count": 8}
        wanted["capability"] = parse_arch(arch).capability
        wanted["operators"] = parse_arch(plan.arch).capability
        request = json.dumps({"gpu": wanted, "runs": [list(line) for line in lines]})
        env = {**resolve(images, arch).config.env, "LD_LIBRARY_PATH": stubs.partition("=")[2]}
        options = [f"--env={key}={value}" for key, value in env.items()]
        script = f"{plan_code(plan)}/imagebuild/preflight/arguments.py"
        done = subprocess.run(
            ["docker", "exec", "--interactive", *options, name, "python", "-P", script],
            input=request, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def plan_code(plan):
    """Return the folder of our own code in the image."""
    end = "/imagebuild/preflight/main.py"
    (main,) = [file.target for file in plan.layers[-1].files if file.target.endswith(end)]
    return main.removesuffix(end)


@pytest.fixture(scope="session")
def stubs(plan):
    """Environment that lets code which needs libcuda.so.1 be imported where there is no driver."""
    return f"LD_LIBRARY_PATH={plan.config.env['CUDA_HOME']}/lib/stubs"
