# SPDX-License-Identifier: Apache-2.0
"""The metrics image: its rules by promtool, a real Prometheus that scrapes, and its page in a browser."""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from imagebuild.catalog import project_root
from imagebuild.metrics.dashboards import read_panels
from tests.benchsuites import ROOT, timed_server

PORT = 9191
NAME = "imagebuild-test-prometheus"
HOME = "/etc/imagebuild/metrics"


def docker(*argv):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The image, built twice to the same digest and loaded."""
    made = []
    for name in ("one", "two"):
        argv = [sys.executable, "-m", "imagebuild.cli", "metrics", "--json"]
        argv += ["--output", str(tmp_path_factory.mktemp("metrics") / f"{name}.tar")]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout))
    assert made[0]["digest"] == made[1]["digest"]
    docker("load", "-i", made[0]["output"])
    yield made[0]["reference"]
    docker("rmi", "-f", made[0]["reference"])


def promtool(image, *argv):
    mount = f"{ROOT / 'tests' / 'metrics'}:/tests:ro"
    return docker("run", "--rm", "--network=none", "-v", mount, "--entrypoint=promtool", image, *argv)


def test_promtool_takes_the_settings_and_every_rule_is_tested(image):
    assert "6 rules found" in promtool(image, "check", "config", f"{HOME}/prometheus.yml")
    promtool(image, "test", "rules", "/tests/rules.test.yml")
    rules = yaml.safe_load((ROOT / "images" / "metrics" / "rules" / "sglang.yml").read_text())
    tested = (ROOT / "tests" / "metrics" / "rules.test.yml").read_text()
    for rule in rules["groups"][0]["rules"]:
        assert re.search(rf"alertname: {rule['alert']}\n +exp_alerts:\n", tested), rule["alert"]


def ask(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=5) as answer:
        return answer.read().decode()


def query(expr):
    return json.loads(ask("/api/v1/query?" + urllib.parse.urlencode({"query": expr})))["data"]["result"]


def load(url, stop):
    body = json.dumps(
        {"input_ids": [1] * 64, "stream": True, "sampling_params": {"max_new_tokens": 40}}
    ).encode()
    while not stop.is_set():
        with urllib.request.urlopen(urllib.request.Request(f"{url}/generate", body)) as answer:
            answer.read()


@pytest.fixture(scope="module")
def prometheus(image, tmp_path_factory):
    """Prometheus with our settings, but one server with a fixed address, which is under load."""
    settings = yaml.safe_load((ROOT / "images" / "metrics" / "prometheus.yml").read_text())
    settings["global"]["scrape_interval"] = "1s"
    with timed_server("--ttft-ms", "300", "--itl-ms", "20", "--tokens-per-chunk", "4") as url:
        [job] = settings["scrape_configs"]
        del job["dns_sd_configs"], job["relabel_configs"]
        job["static_configs"] = [{"targets": [url.removeprefix("http://")], "labels": {"service": "k26-tp8"}}]
        path = tmp_path_factory.mktemp("prometheus") / "prometheus.yml"
        path.write_text(yaml.safe_dump(settings))
        path.chmod(0o644)
        path.parent.chmod(0o755)

        mount = f"{path}:{HOME}/prometheus.yml:ro"
        argv = [
            "run",
            "-d",
            "--rm",
            "--name",
            NAME,
            "--network=host",
            "--read-only",
            "--cap-drop=ALL",
            "-v",
            mount,
        ]
        docker(*argv, image, f"--web.listen-address=127.0.0.1:{PORT}")
        stop = threading.Event()
        users = [threading.Thread(target=load, args=(url, stop)) for _ in range(6)]
        for user in users:
            user.start()
        try:
            deadline = time.monotonic() + 90
            rate = 'rate(sglang:realtime_tokens_total{mode="decode"}[1m]) > 0'
            while time.monotonic() < deadline:
                try:
                    if query(rate) and query("count_over_time(up[1m]) > 25"):
                        break
                except OSError:
                    pass
                time.sleep(1)
            yield url
        finally:
            stop.set()
            for user in users:
                user.join()
            docker("rm", "-f", NAME)


def test_prometheus_scrapes_and_every_query_of_the_dashboards_has_an_answer(prometheus):
    assert query('up{job="sglang"}')[0]["value"][1] == "1"
    dashboard = json.loads((ROOT / "images" / "metrics" / "grafana" / "sglang.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 12
    for expr in queries:
        if "prefill_cache" not in expr:  # the server of the test has no prefix cache
            [found] = query(expr)
            assert found["metric"]["service"] == "k26-tp8", expr
    [ttft] = query(next(expr for expr in queries if "0.5" in expr and "first_token" in expr))
    assert 0.2 <= float(ttft["value"][1]) <= 0.4  # the bucket that 300 ms fall into
    [counted] = query('sglang:realtime_tokens_total{mode="decode"}')
    with urllib.request.urlopen(f"{prometheus}/server_info", timeout=5) as answer:
        sent = json.load(answer)["timed"]["tokens"]
    assert 0.8 * sent < float(counted["value"][1]) <= sent


def test_the_page_shows_every_panel_in_a_browser(prometheus, tmp_path):
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    argv += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,1450",
        "--virtual-time-budget=8000",
    ]
    url = f"http://127.0.0.1:{PORT}/consoles/sglang.html?span=300"
    shot = tmp_path / "page.png"
    for action in ("--dump-dom", f"--screenshot={shot}"):
        done = subprocess.run([*argv, action, url], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        if action == "--dump-dom":
            page = done.stdout
    assert 'data-state="shown"' in page
    panels = read_panels(project_root() / "images").panels
    for panel in panels:
        assert f"<h2>{panel.title}</h2>" in page
    assert page.count("<polyline") >= len(panels)
    assert "no alert" in page
    assert shot.stat().st_size > 20_000
