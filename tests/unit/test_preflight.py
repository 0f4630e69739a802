# SPDX-License-Identifier: Apache-2.0
"""The preflight's checks on facts: every wrong set-up has its own id, state and next step."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from imagebuild.diagnostics import Refused
from imagebuild.errors import ManifestError, PreconditionError
from imagebuild.host.facts import Gpu, Gpus
from imagebuild.models.config import drafter_shape, target_shape
from imagebuild.models.gpus import find_gpu
from imagebuild.preflight.checks_host import check_access, check_gpus, check_system
from imagebuild.preflight.findings import IDS, Finding, accept, exit_code, line, summary
from imagebuild.preflight.flags import read_flags
from imagebuild.preflight.host import NO_GPUS, Host
from imagebuild.preflight.image import Image, api_key, read_image, read_wishes
from imagebuild.preflight.main import main
from imagebuild.preflight.report import Result, hidden, show
from imagebuild.preflight.sglang import Resolved, assumed_gpu, check_arguments, check_memory
from imagebuild.preflight.weights import Models
from tests import hosts
from tests.modelfiles import DRAFTER_CONFIG, TARGET_CONFIG

GIB = 1 << 30
LIMITS = Host(shm=32 * GIB, nofile=1 << 20, cache_free=100 * GIB)
IMAGE = Image("sm_103", "13.0", "a" * 64, Path("/cache"))
PCIE = replace(LIMITS, gpus=hosts.gpus("8x-rtx-pro-6000"))
HOST = replace(LIMITS, gpus=hosts.gpus("8x-b300"))
TP8 = read_flags(["--model-path", "/models/x", "--tp-size", "8"])
EP8 = replace(TP8, ep=8)
SERVE = read_wishes("serve", False, {"IMAGEBUILD_WITHOUT_NVLINK": "k26-ep8 instead: 26 against 65 tokens/s"})


def findings(host=HOST, flags=TP8, image=IMAGE, wishes=SERVE, mark="", key="", port=""):
    found = [*check_gpus(image, flags, host, wishes), *check_system(image, flags, host, mark, wishes)]
    found += check_access(flags, wishes, key, port)
    assert len({f.id for f in found}) == len(found)
    assert all(f.next for f in found if f.state in ("missing", "failed"))
    return {f.id: f for f in found}


def test_a_good_host_passes_everything():
    found = findings()
    assert {f.state for f in found.values()} == {"ok"}
    assert exit_code(found.values()) == 0


def changed(*numbers: int, **change: Any) -> Host:
    """Return the good host with some GPUs changed."""
    devices = [replace(g, **change) if g.index in numbers else g for g in HOST.gpus.devices]
    return replace(HOST, gpus=replace(HOST.gpus, devices=tuple(devices)))


def on(name: str) -> Host:
    """Return the machine of tests/data/hosts/NAME.txt."""
    return replace(LIMITS, gpus=hosts.gpus(name))


def without_link(number: int) -> Host:
    """Return the good host with one GPU off NVLink."""
    rows = tuple(
        tuple("SYS" if i != j and number in (i, j) else cell for j, cell in enumerate(row))
        for i, row in enumerate(HOST.gpus.links)
    )
    return replace(HOST, gpus=replace(HOST.gpus, links=rows))


FOUR = replace(HOST, gpus=replace(HOST.gpus, devices=HOST.gpus.devices[:4]))


@pytest.mark.parametrize(
    ("host", "id", "state", "text"),
    [
        (on("no-driver"), "gpu", "missing", "no GPU in this container"),
        (on("no-program"), "gpu", "missing", "no GPU in this container"),
        (changed(*range(8), capability=(12, 0)), "gpu-arch", "failed", "8 of 8 GPUs are sm_120"),
        (changed(7, capability=(9, 0)), "gpu-arch", "failed", "1 of 8 GPUs are sm_90"),
        (changed(0, capability=(99, 9)), "gpu-arch", "failed", "sm_999"),
        (FOUR, "gpu-count", "missing", "4 GPUs, but the flags need 8"),
        (changed(6, 7, mig=True), "gpu-mig", "missing", "GPU 6, 7 is split by MIG"),
        (changed(0, fabric="not started"), "gpu-fabric", "missing", "GPU 0 is not in the NVSwitch fabric"),
        (replace(HOST, gpus=replace(HOST.gpus, driver="575.57.08")), "driver", "missing", "needs 580"),
        (replace(HOST, gpus=replace(HOST.gpus, driver="")), "driver", "missing", "needs 580"),
        (without_link(0), "link", "failed", "26 against 65 tokens/s"),
        (without_link(7), "link", "failed", "no NVLink between all GPUs (SYS)"),
        (replace(HOST, shm=64 << 20), "shm", "missing", "SIGBUS"),
        (replace(HOST, memlock=8 << 20), "ulimits", "missing", "memlock"),
        (replace(HOST, stack=8 << 20), "ulimits", "missing", "stack"),
        (replace(HOST, nofile=1024), "ulimits", "missing", "nofile"),
        (replace(HOST, cache_writable=False), "cache", "missing", "cannot be written"),
        (replace(HOST, cache_free=GIB), "cache", "missing", "1.0 GiB free"),
    ],
)  # fmt: skip
def test_each_wrong_host_has_its_own_id(host, id, state, text):
    found = findings(host)
    assert (found[id].state, text in found[id].text) == (state, True), found[id]
    assert [f.id for f in found.values() if f.state in ("missing", "failed")] == [id]
    assert exit_code(found.values()) == {"missing": 3, "failed": 1}[state]


def test_a_lost_gpu_is_named_and_not_counted():
    found = findings(changed(5, fault="GPU is lost"))
    assert found["gpu"].text == "GPU 5: GPU is lost"
    assert found["gpu-count"].text.startswith("7 GPUs")


def test_experts_on_each_gpu_need_no_nvlink():
    found = findings(PCIE, EP8, replace(IMAGE, arch="sm_120"))
    assert {f.state for f in found.values()} == {"ok"}
    assert found["link"].state == "ok"
    assert "whole experts" in found["link"].text


def test_without_a_better_service_no_nvlink_is_a_warning():
    found = findings(without_link(0), wishes=read_wishes("serve", False, {}))
    assert found["link"].state == "warning"


def test_without_gpu_a_check_skips_and_says_so():
    found = findings(replace(HOST, gpus=NO_GPUS), wishes=read_wishes("check", False, {}))
    assert {f.id for f in found.values() if f.state == "skipped"} == {
        "gpu", "gpu-arch", "gpu-count", "gpu-mig", "gpu-fabric", "driver", "link",
    }  # fmt: skip
    assert "7 skipped" in summary(list(found.values()))


def test_a_cache_of_another_image_is_refused():
    assert findings(mark="b" * 64)["cache"].state == "failed"
    assert findings(mark="a" * 64)["cache"].state == "ok"


def test_a_used_port():
    assert findings(port="Address already in use")["port"].state == "missing"


@pytest.mark.parametrize(
    ("bind", "key", "state"),
    [
        ("127.0.0.1", "", "ok"),
        ("::1", "", "ok"),
        ("[::1]", "", "ok"),
        ("localhost", "", "ok"),
        ("", "", "ok"),
        ("0.0.0.0", "", "missing"),
        ("192.0.2.7", "", "missing"),
        ("myhost", "", "missing"),
        ("0.0.0.0", "secret", "ok"),
    ],
)
def test_others_than_this_machine_need_a_key(bind, key, state):
    found = findings(wishes=read_wishes("serve", False, {"IMAGEBUILD_BIND": bind}), key=key)
    assert found["api-key"].state == state
    assert "secret" not in found["api-key"].text


def test_accepted_ids_become_warnings_and_only_those():
    found = accept([Finding("shm", "missing", "a"), Finding("link", "failed", "b")], ["link"])
    assert [f.state for f in found] == ["missing", "warning"]
    assert exit_code(found) == 3
    assert exit_code(found[1:]) == 0


def test_wrong_wishes_are_refused():
    with pytest.raises(Refused, match='no check "lnik"'):
        read_wishes("serve", False, {"IMAGEBUILD_ACCEPT": "shm,lnik"})
    with pytest.raises(Refused, match="IMAGEBUILD_ACTION"):
        read_wishes("serve", False, {"IMAGEBUILD_ACTION": "chekc"})
    assert read_wishes("serve", False, {"IMAGEBUILD_ACTION": "plan"}).action == "plan"
    assert read_wishes("check", False, {"IMAGEBUILD_ACTION": "serve"}).action == "check"


def test_flags_are_read_in_all_spellings():
    found = read_flags(["--model=/m", "--tp=4", "--pipeline-parallel-size", "2", "--nnodes", "2", "--x"])
    assert (found.model_path, found.tp, found.pp, found.gpus) == ("/m", 4, 2, 4)
    with pytest.raises(ManifestError, match="--tp"):
        read_flags(["--tp", "eight"])


def test_one_line_a_check():
    for finding in findings(replace(HOST, shm=0)).values():
        assert "\n" not in line(finding)
        assert line(finding).split()[1] == finding.id


# --- memory -----------------------------------------------------------------------------------

MODELS = Models((), target_shape(TARGET_CONFIG), drafter_shape(DRAFTER_CONFIG))
SMALL = read_flags(["--model-path", "/m", "--context-length", "4096"])
H200 = find_gpu(Path(__file__).parents[2] / "images", "H200")


def memory_of(flags, host, assumed=None, models=MODELS, **effective):
    (found,) = check_memory(flags, models, host, assumed, effective)
    return found


def with_free(*gib: int) -> Host:
    """Return a host whose GPUs have so much free memory."""
    gpus = [Gpu(i, "B300", memory_mib=275040, used_mib=275040 - 1024 * free) for i, free in enumerate(gib)]
    return replace(LIMITS, gpus=Gpus("nvml", devices=tuple(gpus)))


def test_memory_is_judged_by_what_is_free():
    assert memory_of(SMALL, HOST).state == "ok"
    assert memory_of(SMALL, with_free(20), mem_fraction_static=0.85).state == "ok"
    found = memory_of(SMALL, with_free(1))
    assert found.state == "failed"
    assert "GPU 0: 267.6 GiB are in use" in found.text
    assert memory_of(SMALL, with_free(200, 0)).state == "ok"  # one GPU is used only


def test_memory_of_an_assumed_gpu_and_of_unknown_shapes():
    assert "H200" in memory_of(SMALL, Host(), H200).text
    assert memory_of(SMALL, Host()).state == "skipped"
    assert memory_of(SMALL, HOST, models=Models(())).state == "skipped"
    assert memory_of(replace(SMALL, context=1 << 22), HOST).state == "failed"


def test_the_assumed_gpu_is_of_the_images_arch():
    assert assumed_gpu(IMAGE, "").short == "B300"
    assert assumed_gpu(replace(IMAGE, arch="sm_90"), "h100").short == "H100"
    with pytest.raises(Refused, match="H200 is sm_90, the image sm_103"):
        assumed_gpu(IMAGE, "H200")


# --- what is shown ----------------------------------------------------------------------------


def test_refused_arguments_fail_with_sglangs_own_words():
    found = check_arguments(Resolved(refused="ValueError: no"))
    assert (found.state, "ValueError: no" in found.text) == ("failed", True)


def test_no_key_is_shown(capsys):
    words = ["--api-key", "topsecret", "--admin-api-key=other", "--tp", "8"]
    assert hidden(words) == ["--api-key", "***", "--admin-api-key=***", "--tp", "8"]
    result = Result(
        (Finding("shm", "ok", "a"),), Resolved(effective={"api_key": "***", "bs": list(range(90))})
    )
    for as_json in (True, False):
        show(result, words, read_wishes("check", as_json, {}))
    out = capsys.readouterr().out
    assert "topsecret" not in out
    assert "other" not in out
    first = json.loads(out.splitlines()[0])
    assert first["checks"] == [{"id": "shm", "state": "ok", "text": "a", "next": ""}]
    assert first["effective"]["bs"] == list(range(90))
    assert '[0, 1, 2, "...", 89]' in out


def test_the_key_is_a_files_content(tmp_path):
    (tmp_path / "key").write_text("k\n")
    assert api_key(tmp_path / "key") == "k"
    assert api_key(tmp_path / "none") == ""
    assert api_key(Path("/dev/null")) == ""
    with pytest.raises(PreconditionError, match="cannot be read"):
        api_key(tmp_path)


def test_an_image_that_is_not_ours(tmp_path):
    with pytest.raises(PreconditionError, match=r"build\.py made"):
        read_image(tmp_path / "plan.json")


def test_ids_are_documented():
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert [name for name in IDS if f"| `{name}` |" not in text] == []


# --- health -----------------------------------------------------------------------------------


@pytest.mark.loopback
@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
def test_health_is_the_servers_answer(status, expected):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert main(["health", str(server.server_port)]) == expected
    assert asked == ["/health_generate"]
    assert main(["health", str(server.server_port)]) == 3
    assert main(["health", "x"]) == 2
