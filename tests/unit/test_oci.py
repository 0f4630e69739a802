# SPDX-License-Identifier: Apache-2.0
"""The embedded engine's formats: equal input gives equal bytes, and the bytes are what the standards say."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import asdict

import pytest
import zstandard

from imagebuild.catalog import project_root
from imagebuild.errors import ManifestError
from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry, merge, symlink_entry
from imagebuild.layer.tarball import _TYPES, _header, write_tar
from imagebuild.oci_blob import Blob, blob_path, write_blob
from imagebuild.oci_layers import _cached, _like_base, layer_key, remove_layers
from imagebuild.oci_layout import make_image, write_archive, write_layout
from imagebuild.registry import parse_target
from imagebuild.resolve import resolve
from imagebuild.unpack import layer_members, unpack_image

IMAGES = project_root().resolve() / "images"
ENTRIES = merge(
    [
        file_entry("usr/bin/tool", b"#!/bin/sh\n" * 1000, 0o755),
        symlink_entry("bin", "usr/bin"),
        dir_entry("tmp", 0o1777),
        file_entry("cache/" + "long/" * 40 + "file", b"x", 0o600, 1000, 0),
    ]
)


def blob(folder, compression="zstd", threads=1, entries=ENTRIES):
    return write_blob(entries, folder, 1796083200, compression, threads, lambda n: None)


@pytest.fixture
def plan():
    return resolve(IMAGES, "sm_103")


def test_golden_digests(tmp_path):
    """A change of these changes every image: raise `_FORMAT` in oci_layers with them."""
    assert blob(tmp_path).diff_id == "sha256:23b5ac38d5c1d35301a1f9e223bd2a412b876d5d8a917a665b0cb0687bf039fd"
    assert blob(tmp_path).digest == "sha256:411c4229acac746b94a503ecc9fedb6bf02d7d809bab5ea4b2aabaac35f9a8d9"


def test_headers_are_those_of_tarfile():
    """Ours are written by hand, being many; every length at which the form changes is tried."""
    lengths = [1, 50, *range(90, 103), 150, *range(980, 1000), *range(9975, 9999)]
    entries = [Entry("a" * n, kind, 0o4755, 1000, 65534, n) for n in lengths for kind in _TYPES]
    entries += [Entry("b" * 30, "symlink", 0o777, target="t" * n) for n in (1, 99, 100, 101, 300)]
    entries += [Entry("c" * 120, "hardlink", 0o644, target="t" * n) for n in (100, 101)]
    entries += [Entry("d", "file", 0o644, size=n) for n in (8**11 - 1, 8**11)]
    entries += [
        Entry("ä", "file", 0o644),
        Entry("e", "symlink", 0o777, target="ü"),
        Entry("f" * 200, "dir", 0o1777),
    ]
    for entry in entries:
        info = tarfile.TarInfo(entry.path)
        info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, 1796083200
        info.type, info.size = _TYPES[entry.kind], entry.size if entry.kind == "file" else 0
        info.linkname = entry.target if entry.kind.endswith("link") else ""
        expected = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        assert _header(entry, 1796083200) == expected, entry


def test_gc_keeps_the_layers_of_the_plans(tmp_path, plan):
    kept, dropped = blob(tmp_path / "blobs"), blob(tmp_path / "blobs", entries=ENTRIES[:1])
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / layer_key(plan, plan.layers[0], "zstd")).write_text(json.dumps(asdict(kept)))
    (tmp_path / "layers" / "0123").write_text(json.dumps(asdict(dropped)))
    for dry_run in (True, False):
        assert remove_layers(tmp_path, [plan], dry_run=dry_run) == dropped.size
    assert blob_path(tmp_path / "blobs", kept.digest).is_file()
    assert not blob_path(tmp_path / "blobs", dropped.digest).exists()
    assert [p.name for p in (tmp_path / "layers").iterdir()] != ["0123"]
    assert remove_layers(tmp_path, [plan], dry_run=False) == 0
    assert remove_layers(tmp_path / "none", [plan], dry_run=False) == 0


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_bytes_do_not_depend_on_the_number_of_cores(tmp_path, compression):
    big = [file_entry("big", bytes(range(256)) * 40_000)]
    found = {blob(tmp_path, compression, threads, big).digest for threads in (1, 2, 3, 8)}
    assert len(found) == 1


def test_digests_are_of_what_is_in_the_file(tmp_path):
    made = blob(tmp_path)
    content = blob_path(tmp_path, made.digest).read_bytes()
    assert made.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert made.size == len(content)
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    assert made.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert made.unpacked == len(tar)
    packed = blob(tmp_path, "gzip")
    assert gzip.decompress(blob_path(tmp_path, packed.digest).read_bytes()) == tar


def test_a_failed_layer_leaves_nothing(tmp_path):
    short = Entry("x", "file", 0o644, size=10, open=lambda: io.BytesIO(b"short"))
    with pytest.raises(LayerError, match="has 5 bytes, its archive said 10"):
        blob(tmp_path, entries=[short])
    assert list((tmp_path / "sha256").iterdir()) == []


def test_parents_look_as_in_the_base():
    base = {e.path: e for e in [dir_entry("tmp", 0o1777), dir_entry("root", 0o700)]}
    merged = _like_base(merge([file_entry("tmp/x", b""), file_entry("opt/x", b"")]), base)
    assert {e.path: oct(e.mode) for e in merged if e.kind == "dir"} == {"tmp": "0o1777", "opt": "0o755"}


def test_every_input_of_a_layer_is_in_its_key(plan):
    key = layer_key(plan, plan.layers[1], "zstd")
    assert key == layer_key(plan, plan.layers[1], "zstd")
    changes = [{"mtime": 1}, {"prefix": "/x"}, {"python": "3.12"}, {"tool_code": "x"}, {"base_code": "x"}]
    keys = {layer_key(plan.model_copy(update=change), plan.layers[1], "zstd") for change in changes}
    keys |= {layer_key(plan, plan.layers[1], "gzip"), layer_key(plan, plan.layers[2], "zstd"), key}
    assert len(keys) == len(changes) + 3


def test_only_the_launch_layer_depends_on_the_whole_plan(plan):
    other = plan.model_copy(update={"tag_stem": "other"})
    same = [layer_key(plan, a, "zstd") == layer_key(other, a, "zstd") for a in plan.layers]
    assert same == [True] * (len(same) - 1) + [False]


def test_a_damaged_cached_blob_is_not_used(tmp_path):
    made = blob(tmp_path / "blobs")
    record = tmp_path / "record"
    record.write_text(json.dumps(made.__dict__))
    assert _cached(record, tmp_path / "blobs") == made
    path = blob_path(tmp_path / "blobs", made.digest)
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.unlink()
    path.write_bytes(content)
    assert _cached(record, tmp_path / "blobs") is None
    assert not path.exists()
    record.write_text("{}")
    assert _cached(record, tmp_path / "blobs") is None


def image(plan, folder):
    layers = [("base", blob(folder)), ("launch", blob(folder, entries=[file_entry("etc/x", b"1")]))]
    return make_image(plan, layers, folder)


def test_configuration_and_manifest_follow_the_plan(plan, tmp_path):
    made = image(plan, tmp_path)
    config, manifest = json.loads(made.config), json.loads(made.manifest)
    assert config["config"]["Labels"] == plan.labels
    assert config["config"]["User"] == plan.config.user
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in made.layers]
    assert len(config["history"]) == len(made.layers)
    assert manifest["config"]["digest"] == made.config_digest
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.digest for layer in made.layers]
    assert image(plan, tmp_path).digest == made.digest


def test_layout_is_whole_and_in_one_step(plan, tmp_path):
    made = image(plan, tmp_path / "blobs")
    write_layout(made, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == made.digest
    for path in (tmp_path / "out" / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    with pytest.raises(FileExistsError):
        write_layout(made, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_archive_has_both_formats(plan, tmp_path):
    made = image(plan, tmp_path)
    out = io.BytesIO()
    write_archive(made, out, "example.org/library/k26:1")
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        names = tar.getnames()
        docker = json.loads(tar.extractfile("manifest.json").read())[0]
        assert docker["RepoTags"] == [plan.reference]
        assert set(docker["Layers"]) | {docker["Config"], "index.json", "oci-layout"} <= set(names)


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_unpack_gives_the_files_back(plan, tmp_path, compression):
    made = blob(tmp_path / "blobs", compression)
    root = tmp_path / "root"
    unpack_image((made,), tmp_path / "blobs", root, 1000, lambda line: None)
    assert (root / "usr/bin/tool").read_bytes() == b"#!/bin/sh\n" * 1000
    assert (root / "bin").is_symlink()
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(FileExistsError):
        unpack_image((made,), tmp_path / "blobs", root, 1000, lambda line: None)


def hostile(folder, *members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    content = zstandard.compress(out.getvalue())
    digest = hashlib.sha256(content).hexdigest()
    (folder / "sha256").mkdir(parents=True, exist_ok=True)
    (folder / "sha256" / digest).write_bytes(content)
    return Blob(f"sha256:{digest}", len(content), "", 0, "application/vnd.oci.image.layer.v1.tar+zstd")


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "")],
        [("/evil", tarfile.REGTYPE, "")],
        [("up", tarfile.SYMTYPE, "../.."), ("up/evil", tarfile.REGTYPE, "")],
        [("abs", tarfile.SYMTYPE, "/../../.."), ("abs/evil", tarfile.REGTYPE, "")],
        [("hard", tarfile.LNKTYPE, "../../etc/passwd")],
        [("dev", tarfile.CHRTYPE, "")],
        [("fifo", tarfile.FIFOTYPE, "")],
    ],
)
def test_hostile_layers_are_refused(tmp_path, members):
    made = hostile(tmp_path / "blobs", *members)
    with pytest.raises(LayerError):
        unpack_image((made,), tmp_path / "blobs", tmp_path / "deep" / "root", 0, lambda line: None)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep" / "evil").exists()


def test_a_truncated_layer_is_named(tmp_path):
    made = blob(tmp_path, entries=[file_entry("big", bytes(range(256)) * 4000)])
    path = blob_path(tmp_path, made.digest)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LayerError, match="damaged layer"):
        for entry in layer_members(path, made.media_type):
            if entry.kind == "file":
                entry.read()


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("127.0.0.1:5000/k26:x", "http://127.0.0.1:5000"),
        ("localhost:5000/k26", "http://localhost:5000"),
        ("[::1]:5000/a/b", "http://[::1]:5000"),
        ("registry.example.org/team/k26-sglang:1.0", "https://registry.example.org"),
        ("10.0.0.1:5000/k26", "https://10.0.0.1:5000"),
    ],
)
def test_plain_http_is_for_loopback_only(text, base):
    assert parse_target(text, "tag").base == base


@pytest.mark.parametrize(
    "text", ["k26", "team/k26", "example.org/UPPER", "https://example.org/x", "a.b/", ""]
)
def test_a_push_target_needs_its_host(text):
    with pytest.raises(ManifestError, match="allowed: HOST"):
        parse_target(text, "tag")


def test_tar_is_readable_by_others():
    out = io.BytesIO()
    write_tar(ENTRIES, out, 5)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert len(tar.getmembers()) == len(ENTRIES)
