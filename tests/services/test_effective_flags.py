# SPDX-License-Identifier: Apache-2.0
"""The golden effective flags of every arch, in one image: also of those whose image is not at hand.

tests/image compares them in each arch's own image. UPDATE_SNAPSHOTS=1 writes them; read the diff then.
"""

import json
import os
import subprocess

import pytest

from imagebuild.arch import parse_arch
from imagebuild.catalog import arch_names, project_root
from imagebuild.models.gpus import read_gpus
from imagebuild.resolve import resolve
from imagebuild.serving.service import read_model_recipes, services_of

ROOT = project_root().resolve()
IMAGES, TESTS = ROOT / "images", ROOT / "tests" / "image"
SHAPES = {"k26": "/models/Kimi-K2.6", "drafter": "/drafter/Kimi-K2.6-DFlash-tmp-long"}
SCRIPT = "/usr/local/lib/imagebuild/imagebuild/preflight/arguments.py"


@pytest.mark.parametrize("arch", arch_names(IMAGES))
def test_every_service_of_every_arch(reference, plan, arch):
    servings = services_of(read_model_recipes(ROOT / "compose", IMAGES, "k26"), arch)
    gpu = next(gpu for gpu in read_gpus(IMAGES) if gpu.arch == arch)
    # `operators`: slimming has left out those of the other archs.
    wanted = {
        "name": gpu.name, "memory": gpu.memory_mib << 20, "count": 8,
        "capability": parse_arch(arch).capability, "operators": parse_arch(plan.arch).capability,
    }  # fmt: skip
    env = resolve(IMAGES, arch).config.env | {"LD_LIBRARY_PATH": f"{plan.config.env['CUDA_HOME']}/lib/stubs"}
    words = [f"--env={key}={value}" for key, value in env.items()]
    words += [f"--volume={TESTS / 'models' / name}:{place}:ro" for name, place in SHAPES.items()]
    done = subprocess.run(
        ["docker", "run", "--rm", "--interactive", "--network=none", *words, "--entrypoint=python", reference,
         "-P", SCRIPT],
        input=json.dumps({"gpu": wanted, "runs": [list(serving.flags) for serving in servings]}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["refused"] for answer in answers if "refused" in answer] == []
    found = {serving.service: answer["effective"] for serving, answer in zip(servings, answers, strict=True)}
    path = TESTS / "golden" / f"{arch}.json"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))
