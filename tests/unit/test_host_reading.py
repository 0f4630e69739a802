# SPDX-License-Identifier: Apache-2.0
"""Reading the machine, Docker, CDI files, room and the hub; and which program checks all-reduce."""

from __future__ import annotations

import json
import os

import pytest

from imagebuild.host import run_allreduce as running
from imagebuild.host.containers import read_cdi, read_containers
from imagebuild.host.facts import Cdi
from imagebuild.host.machine import read_machine
from imagebuild.host.run_allreduce import command, run_allreduce
from imagebuild.host.storage import ask_hub, read_storage
from imagebuild.models.source import read_source
from imagebuild.options import images_dir
from imagebuild.process import Ended
from tests.hosts import containers, host

BUS = ["0000:1b:00.0", "0000:3a:00.0"]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    root = write(tmp_path, {
        "proc/version": "Linux version 6.8.0",
        "proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n",
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n',
        "sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": "",
        f"sys/bus/pci/devices/{BUS[0]}/iommu_group/type": "identity\n",
        f"sys/bus/pci/devices/{BUS[1]}/iommu_group/type": "DMA-FQ\n",
    })  # fmt: skip
    found = read_machine(BUS, root)
    assert (found.system, found.kernel) == ("Ubuntu 24.04.2 LTS", os.uname().release)
    assert (found.memory_mib, found.available_mib, found.numa_nodes) == (2048, 1024, 2)
    assert (found.wsl, found.container, found.shm_mib, found.iommu) == (False, False, None, "translated")
    assert read_machine(BUS[:1], root).iommu == "identity" and read_machine([], root).iommu == ""


def test_wsl_and_containers(tmp_path):
    root = write(
        tmp_path, {"proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2", ".dockerenv": ""}
    )
    found = read_machine([], root)
    assert found.wsl and found.container and found.memory_mib == 0


def programs(**known):
    """Answer programs by the first words of their command line; others are not there."""

    def run(argv):
        line = " ".join(argv).replace("-", "_").replace(" ", "_")
        return next((ended for name, ended in known.items() if line.startswith(name)), None)

    return run


INFO = {
    "ServerVersion": "28.1.1", "Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": ["/etc/cdi"],
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"], "ServerErrors": None,
}  # fmt: skip


def test_docker_compose_and_toolkit(tmp_path):
    run = programs(
        docker_info=Ended(0, json.dumps(INFO), ""),
        docker_compose=Ended(0, "v2.35.1\n", ""),
        nvidia_ctk=Ended(0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f2a\n", ""),
    )
    found = read_containers(run, tmp_path)
    assert (found.engine, found.compose, found.toolkit) == ("28.1.1", "2.35.1", "1.17.8")
    assert found.runtimes == ("nvidia", "runc") and found.cdi_in_engine and found.rootless and not found.cdi


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (None, "no program docker"),
        (
            Ended(1, json.dumps({"ServerVersion": "", "ServerErrors": ["Cannot connect to the daemon"]}), ""),
            "Cannot connect to the daemon",
        ),
        (
            Ended(1, "", "permission denied while trying to connect\nmore"),
            "permission denied while trying to connect",
        ),
        (Ended(None, "", ""), "docker info did not come back"),
    ],
)
def test_no_engine_says_why(ended, problem, tmp_path):
    run = programs(docker_info=ended) if ended else programs()
    assert read_containers(run, tmp_path).problem == problem


def test_plugins_that_are_missing_are_empty(tmp_path):
    info = json.dumps({**INFO, "CDISpecDirs": [], "SecurityOptions": []})
    missing = Ended(1, "", "docker: 'compose' is not a docker command.")
    found = read_containers(programs(docker_info=Ended(0, info, ""), docker_compose=missing), tmp_path)
    assert (found.compose, found.toolkit, found.cdi_in_engine, found.rootless) == ("", "", False, False)


CDI = """
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes: [{path: /dev/nvidiactl}]
  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [nvidia-ctk, hook]}]
  mounts:
    - {hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.126.09, containerPath: /usr/lib/x}
    - {hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.09, containerPath: /usr/lib/x}
devices:
  - {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/nvidia0}]}}
  - {name: GPU-1c2d, containerEdits: {}}
  - {name: all, containerEdits: {}}
"""


def test_cdi(tmp_path):
    library = "usr/lib/x86_64-linux-gnu/libcuda.so.580.126.09"
    root = write(
        tmp_path, {"etc/cdi/nvidia.yaml": CDI, library: "", "dev/nvidia0": "", "etc/cdi/readme.txt": ""}
    )
    assert read_cdi(root / "etc/cdi/nvidia.yaml", root) == Cdi(
        "/etc/cdi/nvidia.yaml", "nvidia.com/gpu", ("0", "GPU-1c2d", "all"), "580.126.09",
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.09",),
    )  # fmt: skip
    write(root, {"var/run/cdi/x.json": json.dumps({"kind": "nvidia.com/gpu", "devices": None})})
    assert [cdi.path for cdi in read_containers(programs(), root).cdi] == [
        "/etc/cdi/nvidia.yaml", "/var/run/cdi/x.json",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "a: [", "- 1\n", "kind: x\ndevices: 3\n", "devices: []\n", "\x00"])
def test_a_broken_cdi_file_is_told(text, tmp_path):
    root = write(tmp_path, {"etc/cdi/bad.yaml": text})
    found = read_cdi(root / "etc/cdi/bad.yaml", root)
    assert found.problem and "\n" not in found.problem


def test_storage_counts_what_is_there(tmp_path):
    source = read_source(images_dir(), "k26")
    write(
        tmp_path,
        {f"{source.target.place}/a": "1234", f"{source.target.place}/.imagebuild/files/b.part": "56"},
    )
    found = read_storage(source, None, "long", tmp_path)
    assert (found.needed, found.present) == (588400000000 + 6960000000, 6)
    assert read_storage(source, None, None, tmp_path / "new").present == 0
    (tmp_path / source.target.place / "gone").symlink_to(tmp_path / "nowhere")
    assert read_storage(source, None, "long", tmp_path).present == 6


def test_the_hub_is_asked_once_and_trouble_is_an_answer(monkeypatch):
    from huggingface_hub import HfApi

    source = read_source(images_dir(), "k26")
    monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")
    calls = []

    def model_info(self, repo, **given):
        calls.append(given["timeout"])
        import httpx2

        raise httpx2.ConnectError("refused for http://user:secret@127.0.0.1:9/x")

    monkeypatch.setattr(HfApi, "model_info", model_info)
    found = ask_hub(source)
    assert found.answers is False and "does not answer" in found.detail and "secret" not in found.detail
    assert calls == [10]
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: type("Info", (), {"sha": "ab" * 20})())
    assert ask_hub(source).detail == "moonshotai/Kimi-K2.6 is at commit abababababab"
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert ask_hub(source).answers is False


def test_where_allreduce_runs():
    with_nvidia, cdi = host("8x-b300"), containers(
        runtimes=("runc",), cdi_in_engine=True, cdi=(Cdi("/etc/cdi/n.yaml", "nvidia.com/gpu", ("all",)),)
    )  # fmt: skip
    argv = command(with_nvidia, None, "k26:x", 60) or []
    assert argv[:6] == ["docker", "run", "--rm", "--init", "--gpus", "all"] and "--network=none" in argv
    assert argv[-5:] == ["k26:x", "/allreduce.py", "--json", "--deadline", "60"]
    assert "nvidia.com/gpu=all" in (command(host("8x-b300", containers=cdi), None, "k26:x", 60) or ())
    assert (command(with_nvidia, "/opt/py", "k26:x", 60) or [""])[0] == "/opt/py"
    assert command(with_nvidia, None, None, 60) is None
    assert run_allreduce(with_nvidia, None, None, 60)[0].id == "allreduce.skipped"


def test_what_allreduce_said(monkeypatch):
    ok = {"id": "allreduce.ok", "level": "ok", "text": "8 ranks"}
    answers = iter([
        Ended(0, json.dumps({"findings": [ok], "one_token_us": 31.5, "bus_gb_per_s": 400.1}), ""),
        Ended(125, "", "docker: Error response from daemon: could not select device driver"),
        Ended(None, "", ""),
    ])  # fmt: skip
    monkeypatch.setattr(running, "attempt", lambda argv, timeout: next(answers))
    found = run_allreduce(host("8x-b300"), "python3", None, 60)
    assert [f.id for f in found] == ["allreduce.ok", "allreduce.speed"] and "31.5 us" in found[1].text
    broken = run_allreduce(host("8x-b300"), "python3", None, 60)[0]
    assert broken.id == "allreduce.broken" and "could not select device driver" in broken.text
    assert run_allreduce(host("8x-b300"), "python3", None, 60)[0].text.endswith("it said nothing")
