# SPDX-License-Identifier: Apache-2.0
import importlib.util
import marshal
import subprocess
import sys
from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile

from imagebuild.layer import transforms
from imagebuild.layer.bytecode import compile_source, pyc_path
from imagebuild.layer.entries import LayerError, file_entry
from imagebuild.layer.libcuda_stub import build_stub, declared_functions
from imagebuild.layer.spec import FileInput, Transform
from imagebuild.layer.transforms import Context, apply

HOME = "opt/venv/lib/python3.11/site-packages/nvidia/cu13"
HEADER = b"""
#define cuMemAlloc                          cuMemAlloc_v2
#define cuMemcpy                            __CUDA_API_PTDS(cuMemcpy)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
"""
SOURCE = b"def f(a, *, names=('x', 'y')):\n    return {a: names, 'interned': frozenset({'p', 'q'})}\n"


def no_inputs():
    return Context({}, 1)


def run(entries, kind, args=None, files=(), context=None):
    return {e.path: e for e in apply(entries, (Transform(kind, args or {}, files),), context or no_inputs())}


def test_venv_points_at_the_image_python():
    found = run([], "venv", {"prefix": "opt/venv", "python": "3.11"})
    assert found["opt/venv/bin/python"].target == "/usr/bin/python3.11"
    assert b"home = /usr/bin" in found["opt/venv/pyvenv.cfg"].read()


def test_directories_get_their_owner():
    args = {"paths": ["/cache"], "uid": 1000, "gid": 0, "mode": 0o775}
    entry = run([], "directories", args)["cache"]
    assert (entry.kind, entry.uid, entry.gid, entry.mode) == ("dir", 1000, 0, 0o775)


def test_cuda_home_gets_lib64_link_names_and_stub():
    entries = [
        file_entry(f"{HOME}/include/cuda.h", HEADER),
        file_entry(f"{HOME}/lib/libcudart.so.13", b""),
        file_entry(f"{HOME}/lib/libnvrtc-builtins.so.13.0", b""),
        file_entry(f"{HOME}/lib/libcudart_static.a", b""),
    ]
    found = run(entries, "cuda-home", {"home": HOME})
    assert found[f"{HOME}/lib64"].target == "lib"
    assert found[f"{HOME}/lib/libcudart.so"].target == "libcudart.so.13"
    assert found[f"{HOME}/lib/libnvrtc-builtins.so"].target == "libnvrtc-builtins.so.13.0"
    assert found[f"{HOME}/lib/stubs/libcuda.so.1"].target == "libcuda.so"
    assert f"{HOME}/lib/libcuda.so" not in found


@pytest.mark.parametrize("missing", ["include/cuda.h", "lib/libcudart.so.13"])
def test_cuda_home_says_what_is_missing(missing):
    given = {"include/cuda.h": HEADER, "lib/libcudart.so.13": b""}
    entries = [file_entry(f"{HOME}/{name}", content) for name, content in given.items() if name != missing]
    with pytest.raises(LayerError, match="cuda-home"):
        run(entries, "cuda-home", {"home": HOME})


def test_stub_defines_what_the_header_declares():
    names = declared_functions(HEADER.decode())
    assert names == ["cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuMemcpy"]
    elf = ELFFile(BytesIO(build_stub(names)))
    symbols = [s.name for s in elf.get_section_by_name(".dynsym").iter_symbols()][1:]
    assert symbols == names
    tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
    assert tags["DT_SONAME"].soname == "libcuda.so.1"


def test_stub_hash_table_finds_every_symbol():
    names = [f"cuFunction{i}" for i in range(500)]
    elf = ELFFile(BytesIO(build_stub(names)))
    table = elf.get_section_by_name(".hash")
    assert all(table.get_symbol(name).name == name for name in names)
    assert table.get_symbol("cuNothing") is None


def test_stub_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no functions"):
        build_stub([])


def listing(tmp_path, *paths):
    file = tmp_path / "bytecode.txt"
    file.write_text("\n".join(paths) + "\n")
    return (FileInput("bytecode.txt", "", 0o644, ""),), Context({"bytecode.txt": file}, 1)


def test_bytecompile_takes_listed_modules_only(tmp_path):
    entries = [file_entry("lib/a.py", SOURCE), file_entry("lib/b.py", SOURCE)]
    files, context = listing(tmp_path, "lib/a.py", "lib/not-there.py")
    found = run(entries, "bytecompile", files=files, context=context)
    assert sorted(found) == sorted(["lib/a.py", "lib/b.py", pyc_path("lib/a.py")])


def test_bytecode_is_unchecked_hash_based_and_runs(tmp_path):
    code = compile_source(SOURCE, "/lib/a.py")
    assert code[:4] == importlib.util.MAGIC_NUMBER
    assert int.from_bytes(code[4:8], "little") == 1
    assert code[8:16] == importlib.util.source_hash(SOURCE)
    namespace = {}
    loaded = marshal.loads(code[16:])
    exec(loaded, namespace)
    assert loaded.co_filename == "/lib/a.py"
    assert namespace["f"](1) == {1: ("x", "y"), "interned": frozenset({"p", "q"})}


def test_a_template_that_is_no_python_gets_no_bytecode(tmp_path):
    files, context = listing(tmp_path, "lib/t.py")
    found = run(
        [file_entry("lib/t.py", b"{{ cookiecutter }}: !")], "bytecompile", files=files, context=context
    )
    assert sorted(found) == ["lib/t.py"]


@pytest.mark.subprocess
def test_bytecode_does_not_depend_on_what_the_process_has_loaded():
    script = (
        "import sys; sys.path.insert(0, {root!r})\n"
        "if sys.argv[1] == 'busy':\n"
        "    import asyncio, decimal\n"
        "    names = [sys.intern(n) for n in ('f', 'a', 'names', 'interned', 'x', 'y', 'p', 'q')]\n"
        "from imagebuild.layer.bytecode import compile_source\n"
        "import hashlib; print(hashlib.sha256(compile_source({source!r}, '/lib/a.py')).hexdigest())\n"
    ).format(root=sys.path[0] or ".", source=SOURCE)
    seen = set()
    for mode in ("plain", "busy"):
        for seed in ("0", "1", "77"):
            argv = [sys.executable, "-c", script, mode]
            environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=True,
                env=environment,
            )
            seen.add(done.stdout)
    assert len(seen) == 1


def test_embed_and_symlinks(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    context = Context({"plan.json": tmp_path / "plan.json"}, 1)
    found = run([], "embed", {"name": "plan.json", "target": "/etc/p.json"}, context=context)
    assert found["etc/p.json"].read() == b"{}"
    assert run([], "symlinks", {"links": {"/a/b": "c"}})["a/b"].target == "c"


def test_unknown_transform_is_an_error_that_lists_the_known_ones():
    with pytest.raises(LayerError, match=r"'slimm'; known: .*bytecompile"):
        run([], "slimm")
    assert set(transforms.TRANSFORMS) >= {"venv", "cuda-home", "bytecompile"}
