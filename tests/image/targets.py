# SPDX-License-Identifier: Apache-2.0
"""Where an image is checked: in a Docker or Podman container, or unpacked and entered by chroot.

All of them give the same few things, so that no check knows which it is. The project's folder is at
/mnt in each, read-only; there is no network but loopback.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import testinfra
from testinfra.backend.chroot import ChrootBackend
from testinfra.host import Host

from imagebuild.checks.config import ImageConfig, oci_config, read_config
from imagebuild.checks.traced import CALLS
from imagebuild.layer.entries import Entry
from imagebuild.oci_layout import OciImage
from imagebuild.oci_read import check_layers, read_layout
from imagebuild.unpack import layer_members, unpack_image

HERE = Path(__file__).parent
# K2.6-shaped configurations without weights, where the services' flags look for them.
SHAPES = {
    "/models/Kimi-K2.6": HERE / "models" / "k26",
    "/drafter/Kimi-K2.6-DFlash-tmp-long": HERE / "models" / "drafter",
}
PROBES = "/mnt/tests/image/probes"
TREE = Path(__file__).parent / "probes" / "tree.py"
_STRACE = ("strace", "-f", "-qq", f"--trace={','.join(CALLS)}", "-s", "0")
_WAIT = 'read line; exec "$@"'


@dataclass(frozen=True)
class Result:
    """A finished program: exit status, standard output and standard error."""

    rc: int
    out: str
    err: str


def run(argv: list[str], **more: Any) -> Result:
    """Run a program of the host."""
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, **more)
    return Result(done.returncode, done.stdout, done.stderr)


def output(argv: list[str]) -> str:
    """Run a program of the host that must succeed; return its output."""
    done = run(argv)
    assert done.rc == 0, f"{shlex.join(argv)}: {done.err[-3000:]}"
    return done.out.strip()


class Target(Protocol):
    """An image that is ready to be looked into.

    `host` runs commands as the image's user and `root` as root; `digest` is the manifest's or the
    engine's id. `own` matches paths that are the container engine's. `layer_bytes` is the sum of all
    files in all layers.
    """

    backend: str
    digest: str
    config: ImageConfig
    host: Host
    root: Host
    own: tuple[re.Pattern[str], ...]
    layer_bytes: int

    def start(
        self, *argv: str, user: str | None = None, read_only: bool = False, options: tuple[str, ...] = ()
    ) -> Result:
        """Start the image anew with these arguments; return how it ended. `options` are the engine's."""

    def traced(self, *argv: str) -> tuple[Result, str]:
        """Start the image anew; return how it ended and strace's log of its network calls."""

    def tree(self) -> str:
        """Return what probes/tree.py says of the untouched image."""

    def close(self) -> None:
        """Remove what was made."""


class Container:
    """A container of Docker or Podman."""

    own = tuple(
        re.compile(pattern)
        for pattern in (
            r"\.dockerenv$", r"etc/(hosts|hostname|resolv\.conf|mtab)$", r"(dev|proc|sys|mnt)(/|$)",
            r"run/\.containerenv$", r"run/secrets(/|$)",
        )
    )  # fmt: skip

    def __init__(self, program: str, reference: str, project: Path) -> None:
        self.backend, self._program, self._reference, self._project = program, program, reference, project
        found = json.loads(output([program, "image", "inspect", reference]))[0]
        self.digest = found["Id"] if found["Id"].startswith("sha256:") else f"sha256:{found['Id']}"
        rows = self._history()
        self.layer_bytes = self._layer_bytes(found, rows)
        commands = tuple(str(row["CreatedBy"]) for row in rows)
        self.config = read_config(found["Config"], found["Created"], commands)
        self._name = output(
            [program, "run", "--detach", *self._options(), "--entrypoint=sleep", reference, "3600"]
        )
        self.host = testinfra.get_host(f"{program}://{self._name}")
        self.root = testinfra.get_host(f"{program}://root@{self._name}")

    def _layer_bytes(self, found: dict[str, Any], rows: list[dict[str, Any]]) -> int:
        """Sum the layers' files; Podman's history has sizes of tars, so there the files are asked."""
        if self._program != "podman":
            return sum(int(row["Size"]) for row in rows)
        data = found["GraphDriver"]["Data"]
        folders = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]
        files = (p.lstat() for folder in folders for p in Path(folder).rglob("*"))
        return sum({(s.st_dev, s.st_ino): s.st_size for s in files if stat.S_ISREG(s.st_mode)}.values())

    def _history(self) -> list[dict[str, Any]]:
        words = [self._program, "history", "--no-trunc", "--human=false", "--format"]
        if self._program == "podman":
            found: list[dict[str, Any]] = json.loads(output([*words, "json", self._reference]))
            return found
        return [json.loads(line) for line in output([*words, "{{json .}}", self._reference]).splitlines()]

    def _options(self, *, shapes: bool = True) -> list[str]:
        places = {"/mnt": self._project, **(SHAPES if shapes else {})}
        mounts = [f"--volume={folder}:{place}:ro" for place, folder in places.items()]
        # Podman would raise limits, which root in a virtual machine may not be allowed to.
        limits = (
            ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"] if self._program == "podman" else []
        )
        return ["--rm", "--pull=never", "--network=none", *limits, *mounts]

    def start(
        self, *argv: str, user: str | None = None, read_only: bool = False, options: tuple[str, ...] = ()
    ) -> Result:
        more = [f"--user={user}"] if user else []
        more += ["--read-only", "--tmpfs=/tmp"] if read_only else []
        return run([self._program, "run", *self._options(), *more, *options, self._reference, *argv])

    def traced(self, *argv: str) -> tuple[Result, str]:
        create = [self._program, "create", "--interactive", *self._options(), "--entrypoint=sh"]
        name = output([*create, self._reference, "-c", _WAIT, "sh", *self.config.entrypoint, *argv])
        with tempfile.NamedTemporaryFile() as log, subprocess.Popen(
            [self._program, "start", "--attach", "--interactive", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            pid = self._pid(name)
            with subprocess.Popen([*_STRACE, "-o", log.name, "-p", pid]) as tracer:
                _wait_for(lambda: "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text())
                out, err = process.communicate("\n")
                tracer.wait(timeout=60)
            return Result(process.returncode, out, err), Path(log.name).read_text(errors="replace")

    def _pid(self, name: str) -> str:
        def pid() -> str:
            found = run([self._program, "inspect", "--format", "{{.State.Pid}}", name]).out.strip()
            return found if found != "0" else ""

        _wait_for(lambda: bool(pid()))
        return pid()

    def tree(self) -> str:
        argv = [self._program, "run", *self._options(shapes=False), "--user=0:0", "--entrypoint=python"]
        return output([*argv, self._reference, "-B", f"{PROBES}/tree.py", "/", *sorted(self.config.volumes)])

    def close(self) -> None:
        output([self._program, "rm", "--force", self._name])


def _wait_for(ready: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


class _Entered(ChrootBackend):
    """testinfra's chroot, but with the image's user, environment, /proc, /dev and without network."""

    def __init__(self, root: str, prefix: list[str]) -> None:
        super().__init__(root)
        self._prefix = shlex.join(prefix)

    def run(self, command: str, *args: str, **kwargs: Any) -> Any:
        line = self.get_command(command, *args)
        done = self.run_local(f"{self._prefix} /bin/sh -c %s", line)
        done.command = self.encode(line)
        return done


class Unpacked:
    """An image of an OCI layout, unpacked by our own code (or before, at `root`), entered by chroot."""

    backend = "chroot"
    own: tuple[re.Pattern[str], ...] = (re.compile(r"(dev|proc|sys|mnt)/"),)

    def __init__(self, layout: Path, root: Path | None, project: Path) -> None:
        image = read_layout(layout)
        check_layers(image)
        self.digest = image.digest
        self.config = oci_config(json.loads(image.config))
        self._project = project
        self._folder = Path(tempfile.mkdtemp(prefix="imagebuild-check-", dir=layout.parent))
        self._root, self.layer_bytes = self._unpack(image, root)
        self._scratch = self._folder / "scratch"
        self._scratch.mkdir()
        self._volumes = {}
        for number, volume in enumerate(sorted(self.config.volumes)):
            copy = self._folder / f"volume{number}"
            output(["cp", "--archive", f"{self._root}{volume}", str(copy)])
            self._volumes[volume] = str(copy)
        self.host = self._host(self.config.user)
        self.root = self._host("0:0")

    def _unpack(self, image: OciImage, root: Path | None) -> tuple[Path, int]:
        sizes: list[int] = []

        def seen(entry: Entry) -> None:
            sizes.append(entry.size)

        if root is None:
            root = self._folder / "root"
            created = time.strptime(self.config.created[:19], "%Y-%m-%dT%H:%M:%S")
            unpack_image(image.layers, image.blobs, root, calendar.timegm(created), lambda line: None, seen)
        else:
            for layer in image.layers:
                for entry in layer_members(image.blobs / layer.digest.replace(":", "/"), layer.media_type):
                    seen(entry)
        return root.resolve(), sum(sizes)

    def _prefix(self, user: str, read_only: bool = False) -> list[str]:
        given = {
            "root": str(self._root), "scratch": str(self._scratch),
            "folders": {"/mnt": str(self._project), **{place: str(f) for place, f in SHAPES.items()}},
            "env": dict(self.config.env), "user": user, "workdir": self.config.workdir,
            "read_only": read_only, "volumes": self._volumes,
        }  # fmt: skip
        own = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        return [*own, sys.executable, str(Path(__file__).parent / "enter.py"), json.dumps(given)]

    def _host(self, user: str) -> Host:
        return Host(_Entered(str(self._root), self._prefix(user)))

    def start(
        self, *argv: str, user: str | None = None, read_only: bool = False, options: tuple[str, ...] = ()
    ) -> Result:
        assert not options, "a chroot has no GPU of a container engine"
        prefix = self._prefix(user or self.config.user, read_only)
        return run([*prefix, *self.config.entrypoint, *argv])

    def traced(self, *argv: str) -> tuple[Result, str]:
        with tempfile.NamedTemporaryFile() as log:
            words = [*self._prefix(self.config.user), *self.config.entrypoint, *argv]
            done = run([*_STRACE, "--seccomp-bpf", "-o", log.name, *words])
            return done, Path(log.name).read_text(errors="replace")

    def tree(self) -> str:
        return output([sys.executable, str(TREE), str(self._root)])

    def close(self) -> None:
        shutil.rmtree(self._folder)


def open_target(image: str, root: Path | None, backend: str, project: Path) -> Target:
    """Return the target that `--image` names: a layout folder, or a name or id of a container engine."""
    folder = Path(image)
    if folder.is_dir():
        assert os.geteuid() == 0, "a layout is checked as root, since its files have owners"
        return Unpacked(folder.resolve(), root, project)
    return Container(backend, image, project)
