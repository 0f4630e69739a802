# SPDX-License-Identifier: Apache-2.0
"""The loader cache. That its bytes are glibc's own is shown by tests/engine/test_base_oracle.py."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.layer.entries import Entry, LayerError, file_entry, merge, symlink_entry
from imagebuild.layer.ldcache import Library, _name_order, cache_entries, decode, encode, soname
from imagebuild.layer.tree import by_path
from tests.debs import elf

GENERATOR = "ldconfig (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36"
LIB = "usr/lib/x86_64-linux-gnu"
BASE = [
    file_entry("usr/sbin/ldconfig", b"\0\0" + GENERATOR.encode() + b"\0"),
    file_entry("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n"),
    file_entry("etc/ld.so.conf.d/x.conf", f"# multiarch\n/lib/x86_64-linux-gnu\n/{LIB}\n/missing\n".encode()),
    symlink_entry("lib", "usr/lib"),
]


def listed(*entries: Entry) -> dict[str, str]:
    made = by_path(cache_entries(by_path(merge([*BASE, *entries]))))
    return {lib.soname: lib.path for lib in decode(made["etc/ld.so.cache"].read())}


def library(name: str, so: str | None = None) -> Entry:
    return file_entry(f"{LIB}/{name}", elf(so))


def test_a_package_with_its_usual_links():
    found = listed(
        library("libz.so.1.2.13", "libz.so.1"),
        symlink_entry(f"{LIB}/libz.so.1", "libz.so.1.2.13"),
        symlink_entry(f"{LIB}/libz.so", "libz.so.1.2.13"),
    )
    # Both folders of the configuration are one; it is called as the first of them.
    assert found == {
        "libz.so.1": "/lib/x86_64-linux-gnu/libz.so.1",
        "libz.so": "/lib/x86_64-linux-gnu/libz.so",
    }


def test_a_link_that_is_not_the_soname_is_not_listed():
    found = listed(
        library("libp.so.1.0", "libp.so.1.0"),
        symlink_entry(f"{LIB}/libp.so.1", "libp.so.1.0"),
        symlink_entry(f"{LIB}/libp.so", "libp.so.1"),
    )
    assert sorted(found) == ["libp.so", "libp.so.1.0"]


def test_without_a_soname_the_file_name_counts():
    assert listed(library("libplug.so")) == {"libplug.so": "/lib/x86_64-linux-gnu/libplug.so"}


def test_the_newest_of_two_versions_and_its_missing_link():
    tree = by_path(merge([*BASE, library("libv.so.1.9", "libv.so.1"), library("libv.so.1.10", "libv.so.1")]))
    made = by_path(cache_entries(tree))
    assert made[f"{LIB}/libv.so.1"] == symlink_entry(f"{LIB}/libv.so.1", "libv.so.1.10")


def test_what_is_not_a_library_is_left_out():
    assert listed(
        file_entry(f"{LIB}/libc.so", b"/* GNU ld script */"),
        file_entry(f"{LIB}/notlib.so", elf("notlib.so")),
        file_entry(f"{LIB}/libx.a", elf("libx")),
        file_entry(f"{LIB}/libexe.so.1", elf("libexe.so.1", kind=2)),
        file_entry(f"{LIB}/deeper/libdeep.so.1", elf("libdeep.so.1")),
        symlink_entry(f"{LIB}/libgone.so.1", "nowhere"),
        file_entry("opt/libopt.so.1", elf("libopt.so.1")),
        library("ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2"),
    ) == {"ld-linux-x86-64.so.2": "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"}


def test_hard_links_are_read_through():
    link = Entry(f"{LIB}/libb.so.1", "hardlink", 0o644, target=f"{LIB}/liba.so.1")
    assert sorted(listed(library("liba.so.1"), link)) == ["liba.so.1", "libb.so.1"]


def test_refuses_what_it_does_not_know():
    with pytest.raises(LayerError, match="glibc-hwcaps"):
        listed(file_entry(f"{LIB}/glibc-hwcaps/x86-64-v3/liba.so.1", elf("liba.so.1")))
    with pytest.raises(LayerError, match=r"libarm\.so: damaged or unknown library: ELF machine 183"):
        listed(file_entry(f"{LIB}/libarm.so", elf("libarm.so", machine=183)))
    with pytest.raises(LayerError, match="usr/sbin/ldconfig: missing"):
        cache_entries({})
    with pytest.raises(LayerError, match="no glibc ldconfig"):
        cache_entries(by_path(merge([file_entry("usr/sbin/ldconfig", b"busybox")])))
    with pytest.raises(LayerError, match=r"libcut\.so: damaged"):
        listed(file_entry(f"{LIB}/libcut.so", elf("libcut.so.1")[:150]))
    with pytest.raises(LayerError, match=r"not a glibc-ld\.so\.cache1\.1"):
        decode(b"ld.so-1.7.0")


def test_soname():
    assert soname(elf("liba.so.1")) == ("liba.so.1", 0x303)
    assert soname(elf(None)) == (None, 0x303)
    assert soname(b"\x7fELF") is soname(b"") is None


def test_known_bytes():
    names = ("liba.so.1", "libb.so")
    data = encode([Library(name, f"/lib/{name}", 0x303) for name in names], "g")
    strings = b"/lib/libb.so\0/lib/liba.so.1\0"
    head = 48 + 2 * 24
    assert data[:48] == b"glibc-ld.so.cache1.1" + b"".join(
        n.to_bytes(4, "little") for n in (2, len(strings), 2, head + 28, 0, 0, 0)
    )
    assert data[head : head + 28] == strings
    assert (
        data[head + 28 :]
        == b"".join(n.to_bytes(4, "little") for n in (0xEAA42174, 1, 0, 0, head + 28 + 24, 1)) + b"g"
    )
    # The greatest name first; each name lies inside its path.
    assert [lib.soname for lib in decode(data)] == ["libb.so", "liba.so.1"]


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("liba.so.1.9", "liba.so.1.10"),
        ("liba", "liba.so"),
        ("libA", "liba"),
        ("liba-x", "liba1"),
        ("a9", "a10"),
    ],
)
def test_name_order(less, more):
    assert _name_order(less, more) < 0 < _name_order(more, less)
    assert _name_order(less, less) == 0


NAMES = st.text("ab1.9-", min_size=1, max_size=8).map(lambda s: f"lib{s}")


@given(st.dictionaries(NAMES, st.sampled_from(["/lib", "/usr/local/lib"]), max_size=20), st.randoms())
def test_reads_back_what_it_wrote(folders: dict[str, str], shuffle: random.Random):
    libraries = [Library(name, f"{folder}/{name}", 0x303) for name, folder in folders.items()]
    data = encode(libraries, GENERATOR)
    shuffle.shuffle(libraries)
    found = decode(data)
    assert {(lib.soname, lib.path) for lib in found} == {(lib.soname, lib.path) for lib in libraries}
    assert all(_name_order(a.soname, b.soname) >= 0 for a, b in itertools.pairwise(found))
    assert data.endswith(GENERATOR.encode())
