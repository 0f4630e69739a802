# SPDX-License-Identifier: Apache-2.0
"""Daemons of one's own: a Docker Engine that shares nothing with the machine's, and a registry."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path("/opt/imagebuild-docker/usr")  # scripts/install-docker
_START_S = 30.0


@contextlib.contextmanager
def own_engine(folder: Path, **features: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Run a Docker Engine with nothing in it, below `folder`, which is removed afterwards.

    Yields its process id and the environment that leads the docker command to it. Its bridge
    leads nowhere. `features` are dockerd's, with _ for -.
    """
    folder.mkdir(parents=True)
    asked = {name.replace("_", "-"): value for name, value in features.items()}
    (folder / "daemon.json").write_text(json.dumps({"features": asked}))
    sockets = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))  # a socket's path has at most 104 bytes
    address = f"unix://{sockets}/docker.sock"
    argv = [str(ENGINE / "sbin" / "dockerd"), f"--config-file={folder}/daemon.json", f"--host={address}"]
    argv += [f"--data-root={folder}/data", f"--exec-root={sockets}/run", f"--pidfile={folder}/pid"]
    # Not --bridge=none: that deletes docker0, which may be another Engine's.
    bridge = f"{sockets.name[-8:].lower()}-br"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    argv += [f"--init-path={ENGINE}/bin/docker-init", f"--bridge={bridge}", "--iptables=false"]
    argv += ["--ip6tables=false", *([] if features else ["--storage-driver=overlay2"])]
    path = f"{ENGINE}/bin:{ENGINE}/sbin:{os.environ['PATH']}"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(argv, env={**os.environ, "PATH": path}, stdout=log, stderr=log)
    env = {"DOCKER_HOST": address, "DOCKER_CONFIG": str(folder / "client")}
    reach = {**os.environ, **env}
    try:
        end = time.monotonic() + _START_S
        while subprocess.run(["docker", "version"], env=reach, capture_output=True, check=False).returncode:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the Engine did not start: {(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield server.pid, env
    finally:
        server.terminate()
        server.wait()
        subprocess.run(["ip", "link", "delete", bridge], check=False)
        for place in (folder, sockets):
            _unmount(place)
            shutil.rmtree(place, ignore_errors=True)


def _unmount(folder: Path) -> None:
    """Unmount what a daemon left mounted below a folder, the innermost first."""
    table = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    places = [line.split()[1] for line in table]
    for place in reversed([p for p in places if p.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def own_registry(folder: Path, port: int) -> Iterator[str]:
    """Run Debian's docker-registry on 127.0.0.1 below `folder`, removed afterwards; yield HOST:PORT."""
    folder.mkdir(parents=True)
    config = folder / "registry.yml"
    store = f"filesystem: {{rootdirectory: {folder / 'data'}}}"
    config.write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage:\n  {store}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    server = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("docker-registry did not start")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
