# SPDX-License-Identifier: Apache-2.0
"""GPUs, links and peer access as nvidia-smi prints them on many hosts, and as NVML answers."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from imagebuild.host import nvml, smi
from imagebuild.host.facts import Gpu
from imagebuild.host.gpus import difference, from_json, with_numa
from imagebuild.host.matrix import LINK, P2P, read_table
from imagebuild.process import Ended
from tests.hosts import NAMES, gpus


def test_8_b300_with_nics_and_an_underlined_header():
    found = gpus("8x-b300")
    assert (found.source, found.driver, found.problem) == ("nvidia-smi", "580.126.09", "")
    assert found.devices[3] == Gpu(
        index=3, name="NVIDIA B300 SXM6 AC", uuid="GPU-00000003-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
        bus_id="0000:5e:00.0", capability=(10, 3), memory_mib=275040, used_mib=0, mig=False,
        fabric="completed", numa=0,
    )  # fmt: skip
    assert [gpu.numa for gpu in found.devices] == [0] * 4 + [1] * 4
    assert found.links == tuple(tuple("X" if i == j else "NV18" for j in range(8)) for i in range(8))
    assert found.p2p == tuple(tuple("X" if i == j else "OK" for j in range(8)) for i in range(8))


def test_8_rtx_pro_6000():
    found = gpus("8x-rtx-pro-6000")
    assert found.links[0] == ("X", "PHB", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS")
    assert found.links[7] == ("SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "PHB", "X")
    assert {gpu.capability for gpu in found.devices} == {(12, 0)}
    assert {gpu.fabric for gpu in found.devices} == {""}


def test_8_h200_with_runs_of_spaces_and_nics_by_name():
    found = gpus("8x-h200")
    assert len(found.devices) == 8 and {cell for row in found.links for cell in row} == {"X", "NV18"}
    assert [gpu.numa for gpu in found.devices] == [0] * 4 + [1] * 4


def test_blank_and_missing_affinities_are_unknown():
    found = gpus("8x-rtx-pro-6000-no-p2p")
    assert [gpu.numa for gpu in found.devices] == [None] * 8
    assert found.links[0][:3] == ("X", "PHB", "NODE")
    assert found.p2p[0] == ("X", "OK", "OK", "OK", "CNS", "CNS", "CNS", "CNS")


def test_one_gpu_out_of_the_fabric():
    found = gpus("8x-b300-one-off-nvlink")
    assert [row[2] for row in found.links] == ["NODE", "NODE", "X", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert found.p2p[2][0] == "TNS" and found.p2p[0][1] == "OK"


def test_mixed_gpus_and_a_range_of_nodes():
    found = gpus("mixed")
    assert [gpu.capability for gpu in found.devices] == [(12, 0)] * 4 + [(9, 0)] * 2
    assert found.links[4] == ("NODE", "NODE", "NODE", "NODE", "X", "NV12")
    assert found.p2p[0][4] == "GNS" and {gpu.numa for gpu in found.devices} == {None}


def test_mig_and_none():
    assert [gpu.mig for gpu in gpus("mig").devices] == [True] * 2 + [False] * 6
    assert gpus("wsl").devices[0].mig is None


def test_wsl_has_no_topology():
    found = gpus("wsl")
    assert (found.links, found.p2p) == ((), ()) and found.devices[0].memory_mib == 32607


def test_a_driver_that_knows_fewer_fields():
    found = gpus("older-driver")
    assert (found.driver, found.problem, len(found.devices)) == ("470.256.02", "", 2)
    assert found.devices[0].capability is None and found.devices[0].memory_mib == 81559


def test_lost_gpus():
    cells = gpus("lost-cells")
    assert cells.problem == "lost" and [gpu.fault for gpu in cells.devices] == [
        "", "", "", "GPU is lost", "", "", "ERR!", "",
    ]  # fmt: skip
    assert (cells.devices[3].bus_id, cells.devices[3].name, cells.devices[3].memory_mib) == (
        "0000:5e:00.0",
        "",
        None,
    )
    handle = gpus("lost-handle")
    assert [gpu.fault for gpu in handle.devices] == ["", "", "", "Unknown Error"]
    assert handle.devices[3].bus_id == "0000:5e:00.0" and len(handle.healthy) == 3
    everything = gpus("lost-all")
    assert everything.problem == "lost" and everything.healthy == ()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mismatch", "mismatch"), ("no-devices", "no-gpu"), ("no-driver", "no-driver"),
        ("blocked", "blocked"),
        ("unknown-error", "failed"), ("no-answer", "timeout"), ("no-program", "no-program"),
    ],
)  # fmt: skip
def test_broken_hosts_have_a_name(name, problem):
    found = gpus(name)
    assert (found.problem, found.devices) == (problem, ())


def test_the_drivers_words_are_kept():
    assert gpus("mismatch").detail == (
        "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.126"
    )


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("Unable to determine the device handle for GPU0000:20:00.0: Unknown Error", "0000:20:00.0"),
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.", "0000:02:00.0"),
        ("Unable to determine the device handle for GPU3: 0000:1B:00.0: Unknown Error", "0000:1b:00.0"),
    ],
)
def test_all_spellings_of_a_lost_handle(text, bus):
    found = smi.read_query(Ended(255, text, ""), smi.FIELDS)
    assert found.devices[0].bus_id == bus and found.devices[0].fault


def test_a_gpu_that_topo_does_not_show_keeps_its_place():
    text = "\tGPU0\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU2\tNV4\t X \t\t1\n"
    table = read_table(text, LINK)
    assert table.square([0, 1, 2]) == (("X", "", "NV4"), ("", "", ""), ("NV4", "", "X"))
    assert table.numa == {0: 0, 2: 1}


@pytest.mark.parametrize("text", ["", "\n\n", "Legend:\n X = Self\n", "GPU0\tGPU1\n", "\tGPU0\tGPU1\n"])
def test_text_without_a_table_is_none(text):
    assert read_table(text, P2P).square([0, 1]) == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_host_survives_json(name):
    found = gpus(name)
    assert from_json(json.loads(json.dumps(asdict(found)))) == found


def test_two_ways_of_asking_are_compared():
    one = gpus("8x-b300")
    assert difference(one, one) == []
    moved = replace(one, driver="x", devices=(replace(one.devices[0], mig=True), *one.devices[1:7]))
    assert difference(one, moved) == ["driver", "number of GPUs", "GPU0 mig"]


def test_numa_nodes_come_from_sysfs(tmp_path):
    for bus, node in (("0000:1b:00.0", "1\n"), ("0000:3a:00.0", "-1\n")):
        (tmp_path / "bus/pci/devices" / bus).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / bus / "numa_node").write_text(node)
    assert [gpu.numa for gpu in with_numa(gpus("8x-b300"), tmp_path).devices][:3] == [1, 0, 0]


class FakeNvml:
    """NVML of a host with three GPUs: two with four links to each other, the third out of order."""

    NVML_NVLINK_MAX_LINKS = 18

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__({15: "GPU is lost", 9: "Driver Not Loaded"}.get(value, "Not Supported"))
            self.value = value

    class c_nvmlGpuFabricInfo_t(ctypes.Structure):
        _fields_ = (("state", ctypes.c_uint),)

    def __init__(self, switch=False, init=0):
        self.switch, self.init = switch, init

    def nvmlInit(self):
        if self.init:
            raise self.NVMLError(self.init)

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.03"

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 2:
            raise self.NVMLError(15)
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=143771 << 20, used=5 << 20)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0".encode())

    def nvmlDeviceGetMigMode(self, handle):
        if handle == 1:
            raise self.NVMLError(3)
        return [1, 0]

    def nvmlDeviceGetGpuFabricInfo(self, handle, info):
        info._obj.state = 3 if self.switch else 0
        return 0

    def nvmlDeviceGetP2PStatus(self, one, other, index):
        assert index in (0, 1, 2)
        return {0: 0, 1: 4, 2: 0}[index]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= 4:
            raise self.NVMLError(2)
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return 2 if self.switch else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return self.nvmlDeviceGetPciInfo(9 if self.switch or link == 3 else 1 - handle)

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return 30


def test_nvml():
    found = nvml.read(FakeNvml())
    assert (found.source, found.driver, found.problem) == ("nvml", "580.159.03", "")
    assert found.devices[0] == Gpu(
        0, "NVIDIA H200", "GPU-0", "0000:00:00.0", (9, 0), memory_mib=143771, used_mib=5, mig=True
    )
    assert found.devices[1].mig is None and found.devices[2].fault == "GPU is lost"
    assert found.links == (("X", "NV3", ""), ("NV3", "X", ""), ("", "", "X"))
    assert found.p2p == (("X", "DR", ""), ("DR", "X", ""), ("", "", "X"))


def test_nvml_through_switches():
    found = nvml.read(FakeNvml(switch=True))
    assert found.links[0][1] == "NV4" and found.devices[0].fabric == "completed"


def test_nvml_without_nvlink(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setattr(fake, "nvmlDeviceGetP2PStatus", lambda one, other, index: 3 if index == 2 else 0)
    found = nvml.read(fake)
    assert found.links[0][1] == "PHB" and found.p2p[0][1] == "OK"


def test_nvml_without_a_driver():
    found = nvml.read(FakeNvml(init=9))
    assert (found.problem, found.detail, found.devices) == ("no-driver", "Driver Not Loaded", ())
