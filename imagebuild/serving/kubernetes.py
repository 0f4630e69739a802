# SPDX-License-Identifier: Apache-2.0
"""Serving → Kubernetes manifests: a Deployment on one node, a LeaderWorkerSet over several.

The pod is the compose service again: same flags, same one-shots (as init containers), same limits. What a
pod cannot have (ulimits) is left to the preflight's `accept`. LeaderWorkerSet: lws.sigs.k8s.io, API v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from imagebuild.diagnostics import Refused
from imagebuild.serving.compose import CACHE, LOCKS
from imagebuild.serving.service import DRAFTER, MODELS, PORT, Serving

Manifest = dict[str, Any]

LWS_LABEL = "leaderworkerset.sigs.k8s.io"
RENDEZVOUS_PORT = 20000
SECRETS = "/run/secrets"
_UID, _GID = 1000, 0  # of the image
_SHM, _TMP, _CACHE = "32Gi", "16Gi", "50Gi"
_CPUS_PER_GPU = 4  # a scheduler process each, tokenizer and detokenizer beside them
_MEMORY_GIB = 32 + 16 + 16  # /dev/shm and /tmp are memory of the pod, and the server's main process
_MEMORY_GIB_PER_GPU = 8
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Site:
    """What a cluster has. `rdma` is the resource name of its RDMA device plugin, empty without one.

    `models_claim` names a claim that is there already; empty: one of `models_gib` GiB is made.
    """

    image: str
    gpus_per_node: int
    models_gib: int
    models_claim: str = ""
    storage_class: str = ""
    runtime_class: str = ""
    rdma: str = ""


def nodes_of(serving: Serving, site: Site) -> int:
    """Return over how many nodes a service goes. Raises Refused if its GPUs cannot be divided evenly."""
    gpus, each = serving.parallel.gpus, min(serving.parallel.gpus, site.gpus_per_node)
    if gpus % each:
        fitting = [str(n) for n in range(1, gpus + 1) if gpus % n == 0]
        raise Refused(f"{serving.service}: {gpus} GPUs do not go on nodes of {each}", allowed=fitting)
    return gpus // each


def flags_over(serving: Serving, nodes: int) -> tuple[str, ...]:
    """Return SGLang's flags for a group of nodes; one node's are the recipe's own.

    The all-reduce fusion goes: its kernels write into each other's memory, which ends at the node.
    """
    if nodes == 1:
        return serving.flags
    kept = list(serving.flags)
    name = "--flashinfer-allreduce-fusion-backend"
    if name in kept:
        at = kept.index(name)
        kept[at : at + 2] = ["--enforce-disable-flashinfer-allreduce-fusion"]
    return (
        *kept,
        "--nnodes", str(nodes), "--node-rank", "$(NODE_RANK)",
        "--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{RENDEZVOUS_PORT}",
    )  # fmt: skip


def manifests(serving: Serving, site: Site) -> list[Manifest]:
    """Return the manifests of one service, in the order of `kubectl apply`. Raises Refused."""
    if not _LABEL.fullmatch(serving.service):
        raise Refused(f'"{serving.service}" cannot be the name of a Kubernetes service')
    nodes = nodes_of(serving, site)
    made = (
        []
        if site.models_claim
        else [_claim(_models(serving, site), f"{site.models_gib}Gi", many=True, site=site)]
    )
    if nodes == 1:
        cache = f"{serving.service}-cache-{serving.arch.replace('_', '-')}"
        made += [_claim(cache, _CACHE, many=False, site=site), _deployment(serving, site, cache)]
        selector = _labels(serving)
    else:
        made += [_group(serving, site, nodes)]
        selector = {f"{LWS_LABEL}/name": serving.service, f"{LWS_LABEL}/worker-index": "0"}
    return [*made, _service(serving, selector)]


def to_yaml(head: str, made: Iterable[Manifest]) -> str:
    """Return manifests as one YAML stream below a comment."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return comment + "---\n".join(
        yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)
        for manifest in made
    )


class _Plain(yaml.SafeDumper):
    """Writes parts that occur twice out, instead of as anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Take no part for another's alias."""
        return True


def _labels(serving: Serving) -> dict[str, str]:
    return {"app.kubernetes.io/name": serving.service, "app.kubernetes.io/part-of": serving.model}


def _meta(serving: Serving, name: str) -> Manifest:
    return {"name": name, "labels": _labels(serving)}


def _models(serving: Serving, site: Site) -> str:
    return site.models_claim or f"{serving.model}-models"


def _claim(name: str, size: str, *, many: bool, site: Site) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteMany" if many else "ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if site.storage_class:
        spec["storageClassName"] = site.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _service(serving: Serving, selector: dict[str, str]) -> Manifest:
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(serving, serving.service),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": ports},
    }


def _deployment(serving: Serving, site: Site, cache: str) -> Manifest:
    # A folder per image: compiled kernels of two images must not meet, and the preflight refuses it.
    folder = re.sub("[^A-Za-z0-9.]+", "-", site.image.rpartition("/")[2])
    volume: Manifest = {"persistentVolumeClaim": {"claimName": cache}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(serving, serving.service),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # two would need the GPUs twice
            "progressDeadlineSeconds": 7200,
            "selector": {"matchLabels": _labels(serving)},
            "template": _template(serving, site, 1, volume, {"subPath": folder}),
        },
    }


def _group(serving: Serving, site: Site, nodes: int) -> Manifest:
    """Return a LeaderWorkerSet: its pods start together and, after a failure, again together.

    One template serves all: SGLang answers the health check on every node (engine.py,
    launch_dummy_health_check_server). Compiled kernels do not outlive a pod here: a claim of one node
    cannot be shared with the others.
    """
    volume: Manifest = {"emptyDir": {"sizeLimit": _CACHE}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _meta(serving, serving.service),
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": _template(serving, site, nodes, volume, {}),
            },
        },
    }


def _template(
    serving: Serving, site: Site, nodes: int, cache: Manifest, cache_mount: dict[str, str]
) -> Manifest:
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # its first process collects children that ended, as compose's init
        "terminationGracePeriodSeconds": 120,
        "nodeSelector": {"nvidia.com/gpu.product": serving.gpu.name.replace(" ", "-")},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _GID,
            "fsGroup": _GID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": list(_one_shots(serving, site)),
        "containers": [_server(serving, site, nodes, cache_mount)],
        "volumes": list(_volumes(serving, site, cache)),
    }
    if site.runtime_class:
        pod["runtimeClassName"] = site.runtime_class
    return {"metadata": {"labels": _labels(serving)}, "spec": pod}


def _one_shots(serving: Serving, site: Site) -> Iterable[Manifest]:
    """Yield what the server waits for: weights as locked, and a checked copy of the drafter."""
    base = [
        _mount("models", MODELS, read_only=True),
        _mount("locks", LOCKS, read_only=True),
        _mount("tmp", "/tmp"),
    ]
    shared: Manifest = {"image": site.image, "securityContext": _security()}
    yield {"name": "models", "args": ["models", serving.model], **shared, "volumeMounts": base}
    if serving.drafter:
        args = ["drafter", serving.model, serving.drafter]
        yield {"name": "drafter", "args": args, **shared, "volumeMounts": [*base, _mount("drafter", DRAFTER)]}


def _server(serving: Serving, site: Site, nodes: int, cache_mount: dict[str, str]) -> Manifest:
    gpus = serving.parallel.gpus // nodes
    env = {**serving.env, "IMAGEBUILD_BIND": "0.0.0.0", "IMAGEBUILD_ACCEPT": "ulimits"}
    if site.rdma:
        env.pop("NCCL_IB_DISABLE", None)  # right on one node only
    found: list[Manifest] = [{"name": name, "value": value} for name, value in env.items()]
    if nodes > 1:
        path = f"metadata.labels['{LWS_LABEL}/worker-index']"
        found.append({"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": path}}})
    mounts = [
        _mount("models", MODELS, read_only=True), _mount("locks", LOCKS, read_only=True),
        _mount("api-key", SECRETS, read_only=True), _mount("cache", CACHE) | cache_mount,
        _mount("shm", "/dev/shm"), _mount("tmp", "/tmp"),
    ]  # fmt: skip
    if serving.drafter:
        mounts.append(_mount("drafter", DRAFTER, read_only=True))
    devices = {"nvidia.com/gpu": str(gpus), **({site.rdma: "1"} if site.rdma else {})}
    memory = _MEMORY_GIB + _MEMORY_GIB_PER_GPU * gpus
    server: Manifest = {
        "name": "server",
        "image": site.image,
        "args": ["serve", *flags_over(serving, nodes)],
        "env": found,
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "requests": {"cpu": str(_CPUS_PER_GPU * gpus), "memory": f"{memory}Gi"},
            "limits": devices,
        },
        "securityContext": _security(pins_memory=bool(site.rdma)),
        "volumeMounts": mounts,
    }
    return server | _probes()


def _probes() -> Manifest:
    """Return the probes: an hour to load and compile, then as compose's health check."""
    health: Manifest = {"exec": {"command": ["imagebuild-entrypoint", "health"]}, "timeoutSeconds": 30}
    return {
        "startupProbe": {**health, "periodSeconds": 30, "failureThreshold": 120},
        "readinessProbe": {**health, "periodSeconds": 30},
        "livenessProbe": {**health, "periodSeconds": 60, "failureThreshold": 5},
    }


def _security(*, pins_memory: bool = False) -> Manifest:
    capabilities: Manifest = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if pins_memory else {})}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def _mount(name: str, path: str, *, read_only: bool = False) -> Manifest:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _volumes(serving: Serving, site: Site, cache: Manifest) -> Iterable[Manifest]:
    claim = {"claimName": _models(serving, site), "readOnly": True}
    yield {"name": "models", "persistentVolumeClaim": claim}
    yield {"name": "locks", "configMap": {"name": f"{serving.model}-locks"}}
    yield {"name": "api-key", "secret": {"secretName": f"{serving.model}-api-key", "defaultMode": 0o440}}
    yield {"name": "cache", **cache}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHM}}
    yield {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": _TMP}}
    if serving.drafter:
        yield {"name": "drafter", "emptyDir": {"sizeLimit": "16Gi"}}
