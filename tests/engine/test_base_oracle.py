# SPDX-License-Identifier: Apache-2.0
"""Our base against Debian's own tools: the same packages, installed by dpkg with all their scripts.

mmdebstrap installs exactly the locked .debs from a local repository; both trees are compared path by path.
What differs is listed in EXCEPTIONS with its reason, and an exception that excepts nothing is an error too.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagebuild import process
from imagebuild.fetch import fetch
from imagebuild.layer.base import BaseSettings, base_entries
from imagebuild.layer.deb import Spool
from imagebuild.layer.entries import Entry, read_directory
from imagebuild.layer.tarball import write_tar
from imagebuild.layer.tree import by_path
from imagebuild.lock import read_lock
from imagebuild.manifest import BaseManifest
from imagebuild.settings import load_settings
from imagebuild.yamlfile import load

BASE = Path(__file__).parents[2] / "images" / "base" / "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Paths (globs, `*` matches `/` too) that only one of the trees has, and why.
EXCEPTIONS = {
    # only in Debian's tree
    "*/__pycache__*": "bytecode of install scripts; a later layer compiles what the image needs",
    "dev/*": "mmdebstrap's; the container runtime mounts its own /dev",
    "etc/.pwd.lock": "lock file of the account tools",
    "etc/apt/*": "mmdebstrap's apt configuration; the image has no apt",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap": "how mmdebstrap gives dpkg our excludes",
    "etc/fstab": "mmdebstrap's; a container mounts nothing by itself",
    "etc/group-": "backup made by the account tools",
    "etc/gshadow-": "backup made by the account tools",
    "etc/passwd-": "backup made by the account tools",
    "etc/hostname": "mmdebstrap's copy of the host's; the container runtime writes it",
    "etc/resolv.conf": "mmdebstrap's copy of the host's; the container runtime writes it",
    "etc/rc?.d/*": "boot links; nothing boots in a container",
    "etc/systemd/system/*": "enabled units; the image has no systemd",
    "usr/share/info/dir": "index of the info pages, which are excluded",
    "var/cache/apt*": "apt's",
    "var/cache/debconf/*": "answers to install questions; nothing asks any in an image",
    "var/lib/apt*": "apt's",
    "var/lib/dpkg/arch": "mmdebstrap's; dpkg knows its own architecture without it",
    "var/lib/dpkg/lock*": "lock files",
    "var/lib/dpkg/status-old": "dpkg's backup",
    "var/lib/dpkg/triggers/Lock": "lock file",
    "var/lib/pam/*": "what pam-auth-update remembers for its next run; its results are compared",
    "var/lib/python*": "which Python py3compile has seen",
    "var/lib/shells.state": "what update-shells remembers for its next run; etc/shells is compared",
    "var/lib/systemd/deb-systemd-helper-enabled*": "enabled units; the image has no systemd",
    "var/log/apt": "apt's",
    # only in ours
    "etc/machine-id": "empty, so that a container runtime or library makes one for each container",
    "home/k26": "home of our user",
}


def _without_our_user(text: str) -> str:
    return re.sub(r"^k26:.*\n", "", text, flags=re.MULTILINE)


def _without_day(text: str) -> str:
    return re.sub(r"^([^:]*:[^:]*:)\d+:", r"\1:", _without_our_user(text), flags=re.MULTILINE)


def _without_man_pages(text: str) -> str:
    """Drop the slaves of an update-alternatives record whose links are man pages, and their paths."""
    head, _, rest = text.partition("\n\n")
    mode, link, *slaves = head.split("\n")
    path, priority, *targets = rest.split("\n")[: 2 + len(slaves) // 2]
    kept = [i for i in range(len(slaves) // 2) if not slaves[2 * i + 1].startswith("/usr/share/man/")]
    lines = [mode, link, *(line for i in kept for line in slaves[2 * i : 2 * i + 2])]
    return "\n".join([*lines, "", path, priority, *(targets[i] for i in kept)])


# Files (globs) that differ in a known way: what is left when that is taken out must be equal.
NORMALISED: dict[str, tuple[Callable[[str], str], str]] = {
    "etc/passwd": (_without_our_user, "has our user too"),
    "etc/shadow": (_without_day, "has our user too, and no day of the build as the day of the last change"),
    "var/lib/dpkg/alternatives/*": (_without_man_pages, "man pages are excluded"),
}


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The locked packages under their own names, from the user's cache or this host's mirror."""
    lock = read_lock(BASE / "debian.lock")
    store = fetch(lock.artifacts, load_settings(), created=lock.created)
    folder = tmp_path_factory.mktemp("debs")
    found = []
    for artifact in lock.artifacts:
        found.append(folder / artifact.file)
        shutil.copyfile(store.path(artifact.sha256), found[-1])
    return found


@pytest.fixture(scope="module")
def settings() -> BaseSettings:
    return load(BASE / "base.yaml", BaseManifest).settings


@pytest.fixture(scope="module")
def debian(
    debs: list[Path], settings: BaseSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The tree as Debian's tools make it."""
    if os.geteuid() != 0:
        pytest.skip("installing packages needs root")
    for program in ("mmdebstrap", "dpkg-scanpackages"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install -y mmdebstrap dpkg-dev")
    work = tmp_path_factory.mktemp("debian")
    pool, root = work / "pool", work / "root"
    pool.mkdir()
    for deb in debs:
        shutil.copy(deb, pool)
    work.chmod(0o755)
    (pool / "Packages").write_text(process.output(["dpkg-scanpackages", "-m", "."], cwd=pool))
    names = [deb.name.split("_")[0] for deb in debs]
    process.output(
        [
            "mmdebstrap",
            "--variant=essential",
            "--mode=root",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            f"--include={','.join(names)}",
            '--aptopt=Apt::Install-Recommends "false"',
            '--aptopt=pkgCacheGen::ForceEssential ","',
            *(f"--dpkgopt=path-exclude={glob}" for glob in settings.exclude),
            *(f"--dpkgopt=path-include={glob}" for glob in settings.include),
            "",
            str(root),
            f"deb [trusted=yes] copy:{pool} ./",
        ]
    )
    yield root
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def ours(
    debs: list[Path], settings: BaseSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The tree as we make it, unpacked from the tar that a layer is."""
    if os.geteuid() != 0:
        pytest.skip("unpacking with owners needs root")
    work = tmp_path_factory.mktemp("ours")
    root = work / "root"
    root.mkdir()
    with Spool() as spool, open(work / "base.tar", "wb") as out:
        write_tar(base_entries(debs, settings, spool), out, 0)
    process.output(["tar", "-xpf", str(work / "base.tar"), "-C", str(root)])
    yield root
    shutil.rmtree(work)


def _facts(entry: Entry, content: bytes | None) -> tuple[object, ...]:
    digest = "" if content is None else hashlib.sha256(content).hexdigest()
    return entry.kind, oct(entry.mode), entry.uid, entry.gid, entry.target, digest


def _hard_links(root: Path, tree: dict[str, Entry]) -> set[frozenset[str]]:
    groups: dict[int, set[str]] = defaultdict(set)
    for path, entry in tree.items():
        if entry.kind == "file":
            groups[(root / path).stat().st_ino].add(path)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def test_same_tree(debian: Path, ours: Path) -> None:
    trees = [by_path(read_directory(root)) for root in (debian, ours)]
    used: set[str] = set()
    normalised: set[str] = set()
    differences: list[str] = []

    def excepted(path: str) -> bool:
        found = [glob for glob in EXCEPTIONS if fnmatch.fnmatchcase(path, glob)]
        used.update(found)
        return bool(found)

    for path in sorted(trees[0].keys() | trees[1].keys()):
        both = [tree.get(path) for tree in trees]
        if both[0] is None or both[1] is None:
            if not excepted(path):
                differences.append(f"{path}: only in {'ours' if both[0] is None else 'Debian'}")
            continue
        contents = [entry.read() if entry and entry.kind == "file" else None for entry in both]
        facts = [_facts(entry, data) for entry, data in zip(both, contents, strict=True) if entry]
        for glob, (clean, _) in NORMALISED.items():
            if fnmatch.fnmatchcase(path, glob) and facts[0] != facts[1]:
                normalised.add(glob)
                facts = [
                    _facts(entry, clean(data.decode()).encode())
                    for entry, data in zip(both, contents, strict=True)
                    if entry and data is not None
                ]
        if facts[0] != facts[1]:
            differences.append(f"{path}: Debian {facts[0]}, ours {facts[1]}")
    assert differences == []
    assert sorted(EXCEPTIONS.keys() - used) == [], "unused exceptions"
    assert sorted(NORMALISED.keys() - normalised) == [], "unused normalisations"
    assert len(trees[1]) > 8000
    assert _hard_links(debian, trees[0]) == _hard_links(ours, trees[1])


@pytest.fixture(scope="module")
def run(ours: Path) -> Callable[[str], str]:
    if not (ours / "dev" / "null").exists():
        os.mknod(ours / "dev" / "null", 0o020666, os.makedev(1, 3))

    def inside(script: str) -> str:
        environment = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8"]
        return process.output([*environment, "chroot", str(ours), "/bin/bash", "-euc", script]).strip()

    return inside


def test_loader_cache_is_ldconfigs(ours: Path, run: Callable[[str], str]) -> None:
    run("ldconfig -C /tmp/ld.so.cache")
    assert (ours / "tmp" / "ld.so.cache").read_bytes() == (ours / "etc" / "ld.so.cache").read_bytes()
    listed = run("ldconfig -p")
    for name in ("libpython3.11.so.1.0", "libibverbs.so.1", "librdmacm.so.1", "libnuma.so.1"):
        assert f"{name} (libc6,x86-64)" in listed


def test_python(run: Callable[[str], str]) -> None:
    assert run("python3.11 -c 'import ssl, sqlite3, ctypes, lzma, readline; print(1)'") == "1"
    assert run("python3 --version").startswith("Python 3.11")
    trusted = run("python3.11 -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()))'")
    assert int(trusted) > 100
    assert run("python3.11 -c 'import getpass; print(getpass.getuser())'") == "root"


def test_certificates_by_hash(run: Callable[[str], str]) -> None:
    check = "openssl verify -CApath /etc/ssl/certs $f || true"
    script = f"for f in /etc/ssl/certs/*.0; do {check}; done | grep -c OK"
    assert int(run(script)) > 100


def test_compilers(run: Callable[[str], str]) -> None:
    program = (
        "#include <iostream>\\n#include <optional>\\n#include <thread>\\n"
        "int main(){int x=0; std::thread t([&]{x=std::optional<int>(7).value();}); t.join();"
        " if (int y=x; y==7) std::cout<<y;}\\n"
    )
    run(f"printf '%b' '{program}' > /tmp/a.cc && c++ -std=c++17 -O2 -pthread /tmp/a.cc -o /tmp/a")
    assert run("/tmp/a") == "7"
    headers = run("python3.11 -c 'import sysconfig; print(sysconfig.get_path(\"include\"))'")
    run("echo '#include <Python.h>' > /tmp/p.c")
    run(f"cc -shared -fPIC -I{headers} /tmp/p.c -o /tmp/p.so -lpython3.11")
    assert run("cpp --version | head -1").startswith("cpp (Debian 12")


def test_shell_tools(run: Callable[[str], str]) -> None:
    assert run("echo a b | awk '{print $2}'") == "b"
    assert run("readlink -f /bin/sh") == "/usr/bin/dash"
    assert run("which awk nawk cc pager rmt | wc -l") == "5"
    assert run("date +%Z; TZ=Europe/Berlin date +%Z").split()[0] == "UTC"


def test_accounts(run: Callable[[str], str]) -> None:
    assert run("getent passwd k26") == "k26:x:1000:0:model server:/home/k26:/bin/bash"
    assert run("su k26 -c 'id -u; id -g; touch ~/x && echo ok'").split() == ["1000", "0", "ok"]
    assert run("setpriv --reuid 4711 --regid 0 --clear-groups touch /home/k26/y && echo ok") == "ok"
    run("grpck -r")
    # Debian's own accounts have homes that only their packages make.
    said = run("pwck -r 2>&1 || true").splitlines()
    assert [line for line in said if "does not exist" not in line and line != "pwck: no changes"] == []


def test_dpkg(debs: list[Path], run: Callable[[str], str]) -> None:
    lock = json.loads((BASE / "debian.lock").read_text())
    expected = sorted(f"{a['name']} {a['version']} ii" for a in lock["artifacts"])
    listed = run("dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'")
    assert sorted(line.strip() for line in listed.splitlines()) == expected
    assert run("dpkg --audit") == ""
    assert run("dpkg -S /bin/bash") == "bash: /bin/bash"
    # dpkg -V lists files that differ from their package; excluded ones are missing, nothing else is wrong.
    wrong = [line for line in run("dpkg -V || true").splitlines() if not line.startswith("missing ")]
    assert wrong == []
