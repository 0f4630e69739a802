# SPDX-License-Identifier: Apache-2.0
"""Kubernetes manifests: valid by the published schemas, and the recipes' services and nothing else."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from imagebuild.catalog import arch_names, project_root
from imagebuild.cli import run
from imagebuild.command_compose import compose_dir
from imagebuild.command_kubernetes import deploy_dir
from imagebuild.diagnostics import Refused
from imagebuild.options import images_dir
from imagebuild.serving.compose import write_all
from imagebuild.serving.deploy import models_gib, render_examples
from imagebuild.serving.kubernetes import Site, flags_over, manifests
from imagebuild.serving.service import read_all, read_model_recipes, resolve_service, services_of

VERSIONS = (
    "1.30.0",
    "1.37.0",
)  # of Kubernetes: an old one that is still about, and the newest that is published
LWS = json.loads((Path(__file__).parent.parent / "data/kubernetes/leaderworkerset.schema.json").read_text())
RECIPES = read_model_recipes(compose_dir(), images_dir(), "k26")
SERVINGS = [item for arch in arch_names(images_dir()) for item in services_of(RECIPES, arch)]
IMAGE = "registry.example.org/k26-sglang@sha256:" + "ab" * 32
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def site(**other):
    return Site(**{"image": IMAGE, "gpus_per_node": 8, "models_gib": 600, **other})


def validate(manifest):
    """Raise unless a manifest is what Kubernetes, or LeaderWorkerSet, takes."""
    if manifest["kind"] != "LeaderWorkerSet":
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)
        return
    jsonschema.validate(manifest, LWS)
    template = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", **template["metadata"]},
        "spec": template["spec"],
    }
    validate(pod)


def pod_of(made):
    (owner,) = [m for m in made if m["kind"] in ("Deployment", "LeaderWorkerSet")]
    spec = owner["spec"]
    return (
        spec["leaderWorkerTemplate"]["workerTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]
    )["spec"]


@pytest.mark.parametrize("nodes", [1, 2, 8])
@pytest.mark.parametrize("serving", SERVINGS, ids=lambda s: f"{s.service}-{s.arch}")
def test_every_service_is_valid_by_the_published_schemas(serving, nodes):
    more = (
        {"rdma": "rdma/hca_shared_devices_a", "runtime_class": "nvidia", "storage_class": "fast"}
        if nodes == 2
        else {}
    )
    made = manifests(serving, site(gpus_per_node=8 // nodes, **more))
    kinds = [manifest["kind"] for manifest in made]
    assert kinds == (
        ["PersistentVolumeClaim", "PersistentVolumeClaim", "Deployment", "Service"] if nodes == 1
        else ["PersistentVolumeClaim", "LeaderWorkerSet", "Service"]
    )  # fmt: skip
    for manifest in made:
        validate(manifest)


def test_the_committed_files_are_what_the_recipes_render_to():
    files = render_examples(deploy_dir(), read_all(compose_dir(), images_dir()), arch_names(images_dir()))
    assert write_all(files, check=True) == []
    assert sorted(files) == sorted(deploy_dir().glob("*.yaml")) and len(files) == 6
    for text in files.values():
        for manifest in yaml.safe_load_all(text):
            validate(manifest)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replica"), 1),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "livenessProbes"), {}),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "ports"), "30000"),
        ("Service", ("spec", "ports", 0, "port"), "http"),
        ("LeaderWorkerSet", ("spec", "size"), 2),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "restartPolicy"), "Always"),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "volume"), []),
    ],
)
def test_the_schemas_refuse_what_is_wrong(kind, path, value):
    nodes = 2 if kind == "LeaderWorkerSet" else 1
    made = copy.deepcopy(manifests(SERVINGS[0], site(gpus_per_node=8 // nodes)))
    (manifest,) = [m for m in made if m["kind"] == kind]
    validate(manifest)
    at = manifest
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(manifest)


@pytest.mark.parametrize("serving", SERVINGS, ids=lambda s: f"{s.service}-{s.arch}")
def test_the_server_is_the_recipes(serving):
    pod = pod_of(manifests(serving, site()))
    (server,) = pod["containers"]
    assert server["args"] == ["serve", *serving.flags]
    env = {item["name"]: item["value"] for item in server["env"]}
    assert serving.env.items() <= env.items() and env["IMAGEBUILD_BIND"] == "0.0.0.0"
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in server["volumeMounts"]}
    assert mounts["/models"] and mounts["/run/secrets"] and not mounts["/cache"] and not mounts["/dev/shm"]
    assert ("/drafter" in mounts) is (serving.drafter is not None)
    assert [one["args"][0] for one in pod["initContainers"]] == ["models", "drafter"][
        : 1 + bool(serving.drafter)
    ]
    assert all(one["image"] == IMAGE for one in [server, *pod["initContainers"]])
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in server["volumeMounts"]
    }
    assert LABEL.fullmatch(pod["nodeSelector"]["nvidia.com/gpu.product"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_nothing_is_privileged(nodes):
    pod = pod_of(manifests(SERVINGS[0], site(gpus_per_node=8 // nodes)))
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
    for container in [*pod["containers"], *pod["initContainers"]]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_over_nodes():
    serving = resolve_service(RECIPES, "k26-tp8", "sm_90")
    made = manifests(serving, site(gpus_per_node=4))
    group = made[1]["spec"]["leaderWorkerTemplate"]
    server = pod_of(made)["containers"][0]
    assert group["size"] == 2 and server["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert server["args"][-6:] == [
        "--nnodes", "2", "--node-rank", "$(NODE_RANK)", "--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000",
    ]  # fmt: skip
    (rank,) = [item for item in server["env"] if item["name"] == "NODE_RANK"]
    assert rank["valueFrom"]["fieldRef"]["fieldPath"].endswith("/worker-index']")
    assert made[-1]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_the_fusion_of_one_node_is_off_over_several():
    serving = resolve_service(RECIPES, "k26-tp8", "sm_90")
    one = ("--tp-size", "8", "--flashinfer-allreduce-fusion-backend", "trtllm", "--x")
    made = flags_over(type(serving)(**{**vars(serving), "flags": one}), 2)
    assert "--flashinfer-allreduce-fusion-backend" not in made and "trtllm" not in made
    assert "--enforce-disable-flashinfer-allreduce-fusion" in made and "--x" in made
    assert flags_over(serving, 1) == serving.flags


def test_rdma_asks_for_its_device_and_may_pin_memory():
    serving = resolve_service(RECIPES, "k26-ep8", "sm_120")
    assert "NCCL_IB_DISABLE" in serving.env
    server = pod_of(manifests(serving, site(gpus_per_node=4, rdma="rdma/shared")))["containers"][0]
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "4", "rdma/shared": "1"}
    assert server["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "NCCL_IB_DISABLE" not in {item["name"] for item in server["env"]}


def test_gpus_that_do_not_divide_are_refused():
    with pytest.raises(Refused, match="8 GPUs do not go on nodes of 3; allowed: 1, 2, 4, 8"):
        manifests(SERVINGS[0], site(gpus_per_node=3))
    assert "Deployment" in {m["kind"] for m in manifests(SERVINGS[0], site(gpus_per_node=16))}


def test_each_image_has_a_cache_folder_of_its_own():
    def folder(image):
        mounts = pod_of(manifests(SERVINGS[0], site(image=image)))["containers"][0]["volumeMounts"]
        return next(mount["subPath"] for mount in mounts if mount["mountPath"] == "/cache")

    assert folder(IMAGE) == "k26-sglang-sha256-" + "ab" * 32
    assert folder("host:5000/a/k26:1.2-x") == "k26-1.2-x"


def test_a_claim_that_is_there_is_not_made():
    made = manifests(SERVINGS[0], site(models_claim="weights"))
    assert "k26-models" not in json.dumps(made) and "weights" in json.dumps(pod_of(made))


def test_the_volume_holds_the_model():
    need = sum(repo.about_bytes for repo in RECIPES.source.repos().values())
    assert need < models_gib(RECIPES) << 30 < need * 1.2


def test_show_prints_yaml_and_json(capsys):
    words = ["kubernetes", "show", "k26-ep8", "--arch", "sm120", "--image", IMAGE]
    assert run(words) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == made
    assert made == manifests(
        resolve_service(RECIPES, "k26-ep8", "sm_120"), site(models_gib=models_gib(RECIPES))
    )


def test_show_refuses_an_unknown_service(capsys):
    assert run(["kubernetes", "show", "k26-ep88", "--arch", "sm_120", "--image", IMAGE]) == 2
    assert 'did you mean "k26-ep8"?' in capsys.readouterr().err


def test_render_check_finds_a_changed_file(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("imagebuild.command_kubernetes.deploy_dir", lambda: tmp_path)
    assert run(["kubernetes", "render", "--check"]) == 4
    assert run(["kubernetes", "render"]) == 0
    assert run(["kubernetes", "render", "--check"]) == 0
    capsys.readouterr()
    (tmp_path / "k26-ep8-sm_120.yaml").write_text("x")
    assert run(["kubernetes", "render", "--check"]) == 4
    assert "k26-ep8-sm_120.yaml: not what the recipes render to" in capsys.readouterr().err


def test_the_docs_name_every_committed_file():
    text = (project_root() / "docs" / "kubernetes.md").read_text()
    assert all(path.name in text for path in deploy_dir().glob("*.yaml"))
