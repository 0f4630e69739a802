# SPDX-License-Identifier: Apache-2.0
"""The base tree, from small packages; tests/engine/test_base_oracle.py compares the real one."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from imagebuild.layer.base import (
    Alternative,
    BaseSettings,
    Copy,
    Directory,
    Diversion,
    TextFile,
    User,
    base_entries,
    excluded,
)
from imagebuild.layer.deb import Spool
from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry, symlink_entry
from imagebuild.layer.tarball import write_tar
from imagebuild.layer.tree import by_path, follow
from tests.debs import folder, hardlink, make_deb, member, symlink

MASTER = "root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUPS = "root:*:0:\nshadow:*:42:\nnogroup:*:65534:\n"
LDCONFIG = b"\0ldconfig (Debian GLIBC 2.36-9) stable release version 2.36\0"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Two packages that every base needs."""
    make_deb(
        tmp_path,
        "base-passwd",
        folder("./usr/"),
        folder("./usr/share/"),
        folder("./usr/share/base-passwd/"),
        member("./usr/share/base-passwd/passwd.master", MASTER.encode()),
        member("./usr/share/base-passwd/group.master", GROUPS.encode()),
    )
    make_deb(
        tmp_path,
        "libc-bin",
        folder("./sbin/"),
        member("./sbin/ldconfig", LDCONFIG, mode=0o755),
        folder("./etc/"),
        member("./etc/ld.so.conf", b"/usr/local/lib\n"),
        conffiles=b"/etc/ld.so.conf\n",
        triggers=b"# comment\ninterest-await ldconfig\n",
    )
    return tmp_path


@pytest.fixture
def build(pool: Path):
    with Spool() as spool:

        def run(**settings: Any) -> dict[str, Entry]:
            return by_path(base_entries(sorted(pool.glob("*.deb")), BaseSettings(**settings), spool))

        yield run


def text(tree: dict[str, Entry], path: str) -> str:
    return tree[path].read().decode()


def test_usr_merge(pool, build):
    make_deb(
        pool,
        "tool",
        folder("./bin/"),
        member("./bin/tool", b"1", mode=0o755),
        hardlink("./bin/t2", "bin/tool"),
        folder("./usr/"),
        folder("./usr/bin/"),
        member("./usr/bin/other", b"2"),
    )
    tree = build()
    assert {name: tree[name].target for name in ("bin", "sbin", "lib", "lib64")} == {
        "bin": "usr/bin",
        "sbin": "usr/sbin",
        "lib": "usr/lib",
        "lib64": "usr/lib64",
    }
    assert tree["usr/sbin/ldconfig"].mode == 0o755
    # tar needs the file before its hard links, so the first of the sorted names is the file.
    assert (tree["usr/bin/t2"].kind, tree["usr/bin/t2"].read()) == ("file", b"1")
    assert (tree["usr/bin/tool"].kind, tree["usr/bin/tool"].target) == ("hardlink", "usr/bin/t2")
    # The package's list has the path as packaged, as dpkg's does.
    assert text(tree, "var/lib/dpkg/info/tool.list").splitlines() == [
        "/.",
        "/bin",
        "/bin/tool",
        "/bin/t2",
        "/usr",
        "/usr/bin",
        "/usr/bin/other",
    ]


def test_equal_inputs_give_equal_tars(pool):
    make_deb(pool, "tool", member("./usr/bin/tool", b"1"))
    digests = set()
    for order in (1, -1):
        out = io.BytesIO()
        with Spool() as spool:
            write_tar(base_entries(sorted(pool.glob("*.deb"))[::order], BaseSettings(), spool), out, 0)
        digests.add(hashlib.sha256(out.getvalue()).hexdigest())
    assert len(digests) == 1


def test_every_parent_is_there_and_sorted(build):
    tree = build(files={"a/b/c": TextFile("x")})
    assert tree["a"].kind == tree["a/b"].kind == "dir"
    assert list(tree) == sorted(tree, key=lambda path: path.split("/"))


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("/usr/share/doc/a/README", "file", True),
        ("/usr/share/doc/a/copyright", "file", False),
        ("/usr/share/doc/a/deep/copyright", "file", False),
        ("/usr/share/doc/a", "dir", False),
        ("/usr/share/doc/a", "symlink", False),
        ("/usr/share/man/man1", "dir", True),
        ("/usr/share/manual", "file", False),
        ("/usr/lib/x", "file", False),
    ],
)
def test_excluded_is_dpkgs_rule(path, kind, expected):
    exclude, include = ["/usr/share/doc/*", "/usr/share/man/*"], ["/usr/share/doc/*/copyright"]
    assert excluded(path, kind, exclude, include) is expected


def test_excluded_files_stay_in_dpkgs_list(pool, build):
    make_deb(pool, "tool", member("./usr/share/man/a.1", b"1"), member("./usr/bin/a", b"2"))
    tree = build(exclude=("/usr/share/man/*",))
    assert "usr/share/man/a.1" not in tree
    assert "/usr/share/man/a.1\n" in text(tree, "var/lib/dpkg/info/tool.list")


def test_a_hard_link_to_an_excluded_file_becomes_the_file(pool, build):
    make_deb(pool, "tool", member("./usr/a", b"1"), hardlink("./usr/b", "./usr/a"))
    tree = build(exclude=("/usr/a",))
    assert (tree["usr/b"].kind, tree["usr/b"].read()) == ("file", b"1")


def test_accounts(build):
    tree = build(users=(User("k26", 1000, 0, "/home/k26", comment="server"),), groups={"rdma": 101})
    assert text(tree, "etc/passwd").splitlines() == [
        "root:x:0:0:root:/root:/bin/bash",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        "k26:x:1000:0:server:/home/k26:/bin/bash",
    ]
    assert text(tree, "etc/group").splitlines()[-1] == "rdma:x:101:"
    assert text(tree, "etc/gshadow").splitlines() == ["root:*::", "shadow:*::", "nogroup:*::", "rdma:!::"]
    assert text(tree, "etc/shadow").splitlines()[2] == "k26:*::0:99999:7:::"
    assert (tree["etc/shadow"].mode, tree["etc/shadow"].gid) == (0o640, 42)
    home = tree["home/k26"]
    assert (home.kind, home.mode, home.uid, home.gid) == ("dir", 0o770, 1000, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"users": (User("k26", 1000, 7, "/h"),)}, "no group has gid 7"),
        ({"users": (User("root", 1000, 0, "/h"),)}, "root exists already"),
        ({"users": (User("k26", 0, 0, "/h"),)}, "0 exists already"),
        ({"groups": {"shadow": 200}}, "shadow exists already"),
        ({"groups": {"rdma": 42}}, "42 exists already"),
        (
            {"alternatives": {"cc": Alternative("/usr/bin/cc", "/usr/bin/gcc", 20)}},
            r"alternatives\.cc .* leads to /usr/bin/gcc",
        ),
        ({"copies": {"etc/motd": Copy("/usr/share/motd")}}, r"copies\.etc/motd .* needs /usr/share/motd"),
        ({"copies": {"etc/x": Copy("/etc/ld.so.conf", {"name": "y"})}}, r"has no single line \$name"),
        ({"files": {"etc/ld.so.conf": TextFile("")}}, "would replace a packaged file"),
        ({"links": {"etc/ld.so.conf": "x"}}, "would replace a packaged file"),
        ({"files": {"etc": TextFile("")}}, "would replace a packaged dir"),
        ({"exclude": ("/sbin/ldconfig",)}, "usr/sbin/ldconfig: missing"),
        ({"exclude": ("/usr/share/base-passwd/*",)}, "users of the base settings needs"),
    ],
)
def test_bad_settings(build, settings, message):
    with pytest.raises(LayerError, match=message):
        build(**settings)


def test_alternatives(pool, build):
    make_deb(pool, "mawk", member("./usr/bin/mawk", b"1", mode=0o755))
    tree = build(
        alternatives={
            "awk": Alternative("/usr/bin/awk", "/usr/bin/mawk", 5, {"nawk": ("/bin/nawk", "/usr/bin/mawk")}),
        }
    )
    assert follow(tree, "/usr/bin/awk") == follow(tree, "/bin/nawk") == "usr/bin/mawk"
    assert tree["etc/alternatives/awk"].target == "/usr/bin/mawk"
    assert tree["usr/bin/nawk"].target == "/etc/alternatives/nawk"
    assert text(tree, "var/lib/dpkg/alternatives/awk") == (
        "auto\n/usr/bin/awk\nnawk\n/bin/nawk\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n\n"
    )


def test_diversions(pool, build):
    make_deb(pool, "dash", symlink("./bin/sh", "dash"))
    make_deb(pool, "bash", symlink("./bin/sh", "bash"))
    tree = build(diversions=(Diversion("/bin/sh", "/bin/sh.distrib", "dash"),))
    assert (tree["usr/bin/sh"].target, tree["usr/bin/sh.distrib"].target) == ("dash", "bash")
    assert text(tree, "var/lib/dpkg/diversions") == "/bin/sh\n/bin/sh.distrib\ndash\n"


def test_directories_links_copies_files(pool, build):
    make_deb(pool, "pam", folder("./var/run/"), member("./usr/share/t", b"a\n$one\n$two\nb\n", owner=(0, 5)))
    tree = build(
        directories={"var/mail": Directory("2775", gid=8)},
        links={"var/run": "/run"},
        copies={"etc/t": Copy("/usr/share/t", {"one": "1", "two": ""})},
        files={"etc/machine-id": TextFile(mode="0444")},
    )
    assert (tree["var/mail"].mode, tree["var/mail"].gid) == (0o2775, 8)
    assert tree["var/run"].target == "/run"
    assert (text(tree, "etc/t"), tree["etc/t"].gid) == ("a\n1\nb\n", 5)
    assert (tree["etc/machine-id"].mode, tree["etc/machine-id"].size) == (0o444, 0)


def test_two_packages_with_one_file(pool, build):
    make_deb(pool, "one", member("./bin/x", b"1"))
    make_deb(pool, "two", member("./usr/bin/x", b"1"))
    with pytest.raises(LayerError, match=r"two_.*deb: /usr/bin/x: one_1\.0-1_amd64\.deb ships it too"):
        build()


def test_two_packages_with_unequal_folders(pool, build):
    make_deb(pool, "one", folder("./srv/", mode=0o755))
    make_deb(pool, "two", folder("./srv/", mode=0o700))
    with pytest.raises(LayerError, match="another mode or owner"):
        build()


def test_no_file_is_written_through_a_link(pool, build):
    make_deb(pool, "one", symlink("./srv", "/etc"))
    make_deb(pool, "two", member("./srv/passwd", b"x"))
    with pytest.raises(LayerError, match="srv/passwd: its parent srv is a symlink"):
        build()


def test_dpkg_database(pool, build):
    make_deb(
        pool,
        "libdemo",
        folder("./etc/"),
        member("./etc/demo", b"conf"),
        conffiles=b"/etc/demo\n",
        md5sums=b"sums",
        postinst=b"#!/bin/sh\n",
        triggers=b"interest-noawait /usr/share/x\nactivate ldconfig\n",
        fields="Multi-Arch: same\nEssential: no\nHomepage: https://example.org\n"
        "Depends: libc6 (>=2.34),a|b ( << 1 ), c:any\nDescription: a thing\n more\n .\n end\n",
    )
    tree = build()
    stanzas = text(tree, "var/lib/dpkg/status").split("\n\n")
    assert [s.split("\n")[0].split()[1] for s in stanzas[:-1]] == ["base-passwd", "libc-bin", "libdemo"]
    digest = hashlib.md5(b"conf").hexdigest()
    assert stanzas[2].split("\n") == [
        "Package: libdemo",
        "Status: install ok installed",
        "Maintainer: A <a@example.org>",
        "Architecture: amd64",
        "Multi-Arch: same",
        "Version: 1.0-1",
        "Depends: libc6 (>= 2.34), a | b (<< 1), c:any",
        "Conffiles:",
        f" /etc/demo {digest}",
        "Description: a thing",
        " more",
        " .",
        " end",
        "Homepage: https://example.org",
    ]
    info = "var/lib/dpkg/info"
    assert text(tree, f"{info}/format") == "1\n"
    assert text(tree, f"{info}/libdemo:amd64.list") == "/.\n/etc\n/etc/demo\n"
    assert tree[f"{info}/libdemo:amd64.postinst"].mode == 0o755
    assert tree[f"{info}/libdemo:amd64.md5sums"].mode == 0o644
    assert f"{info}/libdemo:amd64.control" not in tree
    assert text(tree, "var/lib/dpkg/triggers/File") == "/usr/share/x libdemo:amd64/noawait\n"
    assert text(tree, "var/lib/dpkg/triggers/ldconfig") == "libc-bin\n"


@pytest.mark.parametrize("name", ["../../../etc/x", "File"])
def test_trigger_names_are_no_paths(pool, build, name):
    make_deb(pool, "evil", triggers=f"interest {name}\n".encode())
    with pytest.raises(LayerError, match="is no trigger name"):
        build()


def test_follow():
    tree = by_path(
        [
            dir_entry("usr"),
            dir_entry("usr/bin"),
            file_entry("usr/bin/a", b""),
            symlink_entry("bin", "usr/bin"),
            symlink_entry("usr/bin/up", "../../bin/./a"),
            symlink_entry("usr/bin/abs", "/bin/a"),
            symlink_entry("loop", "loop"),
            symlink_entry("high", "../../../usr"),
        ]
    )
    assert {follow(tree, p) for p in ("bin/a", "/bin/up", "bin/abs", "high/bin/a")} == {"usr/bin/a"}
    assert {follow(tree, p) for p in ("loop", "missing", "usr/bin/a/x")} == {None}
    assert follow(tree, "/") == ""
