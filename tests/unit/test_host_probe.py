# SPDX-License-Identifier: Apache-2.0
"""What is found and recommended on many hosts; nvidia-smi's answers there are in tests/data/hosts."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from imagebuild import dotenv
from imagebuild.catalog import project_root
from imagebuild.cli import run
from imagebuild.command_compose import compose_dir
from imagebuild.command_probe import ProbeOptions, _note
from imagebuild.host.advice import advise
from imagebuild.host.facts import Cdi, HubAnswer, Limits, Storage
from imagebuild.host.probe import describe, judge
from imagebuild.host.report import read_report, to_json
from imagebuild.options import images_dir
from imagebuild.serving.service import read_model_recipes
from tests.hosts import NAMES, containers, gpus, host, machine

TB = 10**12
RECIPES = read_model_recipes(compose_dir(), images_dir(), "k26")


def report_of(name, **other):
    return judge(host(name, **other), RECIPES, "2026-12-01T00:00:00Z") if other else _plain(name)


@functools.cache
def _plain(name):
    return judge(host(name), RECIPES, "2026-12-01T00:00:00Z")


def bad(report):
    """Return the ids that are not in order, in the order of the lines."""
    return [f.id for f in report.findings if f.level not in ("ok", "note")]


@pytest.mark.parametrize(
    ("name", "service", "link", "ids"),
    [
        ("8x-b300", "k26-tp8", "nvlink", []),
        ("8x-h200", "k26-tp8", "nvlink", []),
        ("8x-rtx-pro-6000", "k26-ep8", "pcie", []),
        ("8x-rtx-pro-6000-no-p2p", "k26-ep8", "pcie", ["link.no-peer"]),
        ("8x-b300-one-off-nvlink", "k26-ep8", "partial", ["link.partial", "link.no-peer"]),
        ("8x-h200-fabric-not-started", "k26-tp8", "nvlink", ["link.fabric"]),
        ("1x-h200", "", "single", ["advice.none"]),
        ("4x-nvlink-bridges", "", "partial", ["link.partial", "advice.none"]),
        ("mixed", "", "partial", ["gpu.mixed", "link.partial", "link.no-peer", "advice.none"]),
        ("mixed-memory", "", "pcie", ["gpu.differ", "advice.none"]),
        ("mig", "", "nvlink", ["gpu.mig", "advice.none"]),
        ("wsl", "", "single", ["advice.none"]),
        ("old-driver", "", "nvlink", ["driver.old", "advice.none"]),
        ("older-driver", "", "nvlink", ["driver.old", "advice.none"]),
        ("lost-cells", "", "nvlink", ["gpu.lost", "gpu.lost", "advice.none"]),
        ("lost-handle", "", "unknown", ["gpu.lost", "link.unknown", "advice.none"]),
        ("lost-all", "", "single", ["gpu.lost"]),
        ("mismatch", "", "single", ["driver.mismatch"]),
        ("no-devices", "", "single", ["gpu.none"]),
        ("no-driver", "", "single", ["driver.missing"]),
        ("no-program", "", "single", ["driver.missing"]),
        ("blocked", "", "single", ["driver.blocked"]),
        ("unknown-error", "", "single", ["driver.unknown"]),
        ("no-answer", "", "single", ["driver.silent"]),
    ],
)
def test_each_host_has_its_findings_and_its_service(name, service, link, ids):
    report = report_of(name)
    assert (report.advice.service, report.advice.link, bad(report)) == (service, link, ids)
    assert report.ok is not any(f.level in ("fail", "missing") for f in report.findings)


def test_every_host_of_the_data_is_in_that_table():
    table = test_each_host_has_its_findings_and_its_service.pytestmark[0].args[1]
    assert sorted(row[0] for row in table) == NAMES


def test_pcie_has_the_measured_reason_and_its_source():
    advice = report_of("8x-rtx-pro-6000").advice
    rates = {rate.service: rate.tokens_per_s for rate in advice.measured if rate.concurrency == 1}
    assert rates == {"k26-tp8": 26, "k26-ep8": 65}
    assert all("8 RTX PRO 6000 over PCIe" in rate.source for rate in advice.measured)
    assert advice.env == {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1", "NCCL_MIN_NCHANNELS": "8"}
    text = describe(report_of("8x-rtx-pro-6000"))
    assert "recommended: docker compose up k26-ep8\n" in text
    assert "k26-ep8 65 tokens/s at concurrency 1 on sm_120, pcie" in text


def test_nvlink_sets_nothing_of_nccl():
    advice = report_of("8x-b300").advice
    assert advice.env == {} and advice.arch == "sm_103" and "NVLink" in advice.reason


def test_too_few_gpus_and_too_little_memory_are_both_said():
    text = report_of("mig").advice.reason
    assert "needs 8 GPUs, 6 can be used here" in text and "75.1 GiB per GPU" in text


def test_fewer_gpus_that_would_do_get_a_way():
    assert (
        "{tp: 4} would fit: add such a service to compose/recipes/k26.yaml"
        in report_of("lost-cells").advice.reason
    )


def test_if_the_right_service_does_not_fit_another_is_named_with_the_reason():
    small = tuple(replace(gpu, memory_mib=94000) for gpu in gpus("8x-rtx-pro-6000").devices)
    advice = advise(replace(gpus("8x-rtx-pro-6000"), devices=small), RECIPES)
    assert advice.service == "k26-pp8"
    assert advice.reason.startswith("k26-ep8 would be right for pcie, but: ")


def test_an_unknown_link_is_taken_from_the_product():
    for name, service in (("8x-b300", "k26-tp8"), ("8x-rtx-pro-6000", "k26-ep8")):
        advice = advise(replace(gpus(name), links=()), RECIPES)
        assert (advice.link, advice.service) == ("unknown", service)
        assert advice.reason.startswith("the link is not known, taken to be ")


def test_nvlink_that_is_off_is_named():
    pcie = gpus("8x-rtx-pro-6000").links
    report = judge(replace(host("8x-b300"), gpus=replace(gpus("8x-b300"), links=pcie)), RECIPES, "")
    assert bad(report) == ["link.off"] and report.advice.service == "k26-ep8"


def test_memory_in_use():
    busy = tuple(replace(gpu, used_mib=60000) if gpu.index == 5 else gpu for gpu in gpus("8x-b300").devices)
    report = judge(replace(host("8x-b300"), gpus=replace(gpus("8x-b300"), devices=busy)), RECIPES, "")
    assert bad(report) == ["gpu.busy"]
    assert "GPU5 60000 MiB" in next(f.text for f in report.findings if f.id == "gpu.busy")


def test_an_arch_without_an_image():
    other = tuple(replace(gpu, capability=(8, 0), name="NVIDIA A100") for gpu in gpus("8x-h200").devices)
    report = judge(replace(host("8x-h200"), gpus=replace(gpus("8x-h200"), devices=other)), RECIPES, "")
    assert bad(report) == ["gpu.no-image", "advice.none"]


FRESH = Cdi("/etc/cdi/nvidia.yaml", "nvidia.com/gpu", (*"01234567", "all"), "580.126.09")


@pytest.mark.parametrize(
    ("other", "ids"),
    [
        ({"machine": machine(wsl=True)}, ["host.wsl"]),
        ({"machine": machine(architecture="aarch64")}, ["host.cpu"]),
        ({"machine": machine(available_mib=40 << 10)}, ["host.memory"]),
        ({"machine": machine(iommu="translated")}, ["link.iommu"]),
        ({"machine": machine(iommu="identity")}, []),
        ({"machine": machine(shm_mib=64)}, ["host.shm"]),
        ({"machine": machine(shm_mib=None)}, ["host.shm"]),
        ({"machine": machine(limits=Limits(8 << 20, 1048576, -1))}, ["host.limits"]),
        ({"machine": machine(limits=Limits(-1, 1024, -1))}, ["host.limits"]),
        ({"containers": containers(engine="", problem="no program docker")}, ["docker.missing"]),
        ({"containers": containers(engine="20.10.24")}, ["docker.old"]),
        ({"containers": containers(compose="2.17.2")}, ["compose.old"]),
        ({"containers": containers(compose="")}, ["compose.old"]),
        ({"containers": containers(runtimes=("runc",))}, ["toolkit.missing"]),
        ({"containers": containers(runtimes=("runc",), cdi_in_engine=True, cdi=(FRESH,))}, []),
        (
            {"containers": containers(runtimes=("runc",), cdi_in_engine=False, cdi=(FRESH,))},
            ["toolkit.missing"],
        ),
        ({"containers": containers(cdi=(replace(FRESH, driver="570.133.20"),))}, ["cdi.stale"]),
        ({"containers": containers(cdi=(replace(FRESH, missing=("/usr/lib/x.so",)),))}, ["cdi.stale"]),
        ({"containers": containers(cdi=(replace(FRESH, devices=("0", "all")),))}, ["cdi.stale"]),
        ({"containers": containers(cdi=(Cdi("/etc/cdi/x.yaml", problem="KeyError: kind"),))}, ["cdi.broken"]),
        ({"containers": containers(cdi=(FRESH, replace(FRESH, path="/var/run/cdi/n.yaml")))}, ["cdi.twice"]),
        ({"containers": containers(cdi=(Cdi("/etc/cdi/nic.yaml", "example.com/nic"),))}, []),
        ({"storage": Storage("/m", 595 * 10**9, 0, TB, None, None)}, []),
        ({"storage": Storage("/m", 595 * 10**9, 0, 594 * 10**9, None, None)}, ["disk.room"]),
        ({"storage": Storage("/m", 595 * 10**9, 500 * 10**9, 96 * 10**9, None, None)}, []),
        ({"storage": Storage("/m", 595 * 10**9, 0, TB, None, 100)}, ["disk.room"]),
        ({"hub": HubAnswer(False, "no")}, []),
        (
            {"hub": HubAnswer(False, "no"), "storage": Storage("/m", 595 * 10**9, 0, TB, None, None)},
            ["hub.unreachable"],
        ),
    ],
)
def test_machine_containers_room_and_network(other, ids):
    report = report_of("8x-rtx-pro-6000", **other)
    notes = [f.id for f in report.findings if f.level == "note"]
    assert bad(report) + notes == ids
    assert report.advice.service == "k26-ep8"


@pytest.mark.parametrize(
    ("problem", "then"),
    [("no program docker", "install Docker"), ("permission denied while …", "join the group")],
)
def test_what_helps_against_a_missing_engine(problem, then):
    report = report_of("8x-b300", containers=containers(engine="", problem=problem))
    (finding,) = [f for f in report.findings if f.id == "docker.missing"]
    assert problem in finding.text and finding.next.startswith(then)


def test_a_stale_cdi_file_is_fatal_only_if_it_is_the_only_way():
    stale = replace(FRESH, driver="570.133.20")
    only = containers(runtimes=("runc",), cdi_in_engine=True, cdi=(stale,))
    assert not report_of("8x-b300", containers=only).ok
    assert report_of("8x-b300", containers=containers(cdi=(stale,))).ok


@pytest.mark.parametrize("name", NAMES)
def test_host_json_is_as_its_schema_says_and_comes_back(name, tmp_path):
    report = report_of(name)
    schema = json.loads((project_root() / "docs/schema/host.schema.json").read_text())
    jsonschema.validate(json.loads(to_json(report)), schema)
    (tmp_path / "host.json").write_text(to_json(report))
    assert read_report(tmp_path / "host.json") == report


@pytest.mark.parametrize("name", NAMES)
def test_one_line_and_one_id_per_finding(name):
    report = report_of(name)
    known = set(
        re.findall(r"^\| `([a-z-]+\.[a-z-]+)`", (project_root() / "docs/probe.md").read_text(), re.MULTILINE)
    )
    for finding in report.findings:
        assert "\n" not in finding.line() and finding.id in known


@pytest.mark.parametrize(
    ("name", "status"),
    [("8x-b300", 0), ("8x-rtx-pro-6000-no-p2p", 0), ("mig", 1), ("no-driver", 3), ("mixed", 1)],
)
def test_exit_codes_of_the_command(name, status, tmp_path, capsys):
    path = tmp_path / "host.json"
    path.write_text(to_json(report_of(name)))
    assert run(["probe", "--from", str(path), "--json", "--output", str(tmp_path / "out.json")]) == status
    out = capsys.readouterr()
    assert json.loads(out.out) == json.loads((tmp_path / "out.json").read_text())
    assert ("error: this host is not ready" in out.err) is (status != 0)


def test_a_file_that_is_no_report_and_a_model_without_recipes(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert run(["probe", "--from", str(tmp_path / "x.json")]) == 2
    assert run(["probe", "k99", "--from", str(tmp_path / "x.json")]) == 2
    assert 'no recipes for "k99": there are k26' in capsys.readouterr().err


def note(report, monkeypatch, folder, root=None):
    monkeypatch.setattr("imagebuild.command_probe.project_root", lambda: folder)
    options = ProbeOptions(
        name=None, root=root, drafter=None, token_file=None, source=None, output=None, no_env=False,
        offline=True, allreduce=False, python=None, deadline=60, as_json=False, verbose=0, quiet=False,
    )  # fmt: skip
    _note(report, options)


def test_env_gets_arch_gpu_driver_and_models_folder(monkeypatch, tmp_path):
    note(report_of("8x-rtx-pro-6000"), monkeypatch, tmp_path)
    assert dotenv.read(tmp_path / ".env") == {
        "IMAGEBUILD_ARCH": "sm_120",
        "IMAGEBUILD_GPU_DRIVER": "nvidia",
        "IMAGEBUILD_MODELS_DIR": "/data/models",
    }
    cdi = containers(runtimes=("runc",), cdi_in_engine=True, cdi=(FRESH,))
    note(report_of("8x-b300", containers=cdi), monkeypatch, tmp_path)
    env = dotenv.read(tmp_path / ".env")
    assert (env["IMAGEBUILD_ARCH"], env["IMAGEBUILD_GPU_DRIVER"]) == ("sm_103", "cdi")


def test_env_keeps_what_this_host_cannot_tell(monkeypatch, tmp_path):
    (tmp_path / ".env").write_text("IMAGEBUILD_ARCH=sm_90\nIMAGEBUILD_MODELS_DIR=/other\n")
    note(report_of("mixed"), monkeypatch, tmp_path)
    env = dotenv.read(tmp_path / ".env")
    assert (env["IMAGEBUILD_ARCH"], env["IMAGEBUILD_MODELS_DIR"]) == ("sm_90", "/other")
    note(report_of("mixed"), monkeypatch, tmp_path, root=Path("x"))
    assert dotenv.read(tmp_path / ".env")["IMAGEBUILD_MODELS_DIR"] == "/data/models"


def test_env_that_cannot_be_written_is_no_failure(monkeypatch, tmp_path, capsys):
    (tmp_path / ".env").write_text("A='x\n")
    note(report_of("8x-b300"), monkeypatch, tmp_path)
    assert "left alone" in capsys.readouterr().err and (tmp_path / ".env").read_text() == "A='x\n"
