# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (a case reads best on one line)
"""The arch table, its spellings, and the rules of what loads where."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.arch import (
    Code,
    GpuArch,
    Kind,
    Suffix,
    arch_of_capability,
    archs,
    loadable,
    match,
    min_driver,
    parse_arch,
)
from imagebuild.errors import ManifestError

# nvcc 13.0.88 --list-gpu-code, and the a and f spellings in its --help
NVCC = ["75", "80", "86", "87", "88", "89", "90", "100", "103", "110", "120", "121"]
NVCC_SUFFIXED = ["90a", *(n + s for n in ("100", "103", "110", "120", "121") for s in "af")]
# torch 2.11.0, torch/utils/cpp_extension.py
TORCH = [
    "7.5",
    "8.0",
    "8.6",
    "8.7",
    "8.9",
    *(n + s for n in ("9.0", "10.0", "10.3", "11.0", "12.0", "12.1") for s in ("", "a")),
]

BY_NAME = {arch.name: arch for arch in archs()}
SUFFIXES: tuple[Suffix, ...] = ("", "a", "f")
KINDS: tuple[Kind, ...] = ("elf", "ptx")
NUMBERS = [50, 53, 60, 62, 70, 72, *(arch.number for arch in archs()), 101, 107, 130]

any_arch = st.sampled_from(archs())
any_code = st.builds(
    Code, st.sampled_from((*KINDS, "other")), st.sampled_from(NUMBERS), st.sampled_from(SUFFIXES)
)


def test_the_table_is_total_and_ordered():
    assert [arch.number for arch in archs()] == sorted(int(n) for n in NVCC)
    assert [arch.name for arch in archs()] == [f"sm_{arch.number}" for arch in archs()]
    suffixed = [f"{arch.number}{target}" for arch in archs() for target in arch.targets]
    assert sorted(suffixed) == sorted(NVCC_SUFFIXED)


@pytest.mark.parametrize("arch", archs(), ids=lambda arch: arch.name)
def test_each_row_agrees_with_itself(arch: GpuArch):
    dotted = f"{arch.capability[0]}.{arch.capability[1]}"
    own = "a" if "a" in arch.targets else ""
    assert arch.nvcc == f"{arch.number}{own}"
    assert arch.gencode == f"arch=compute_{arch.number}{own},code=sm_{arch.number}{own}"
    assert arch.torch == (dotted + own if dotted + own in TORCH else "")
    assert arch.flashinfer == dotted + ("f" if arch.name == "sm_120" else own)
    assert arch.cute in ("", f"sm_{arch.number}{own}")
    assert arch.shared_memory % 1024 == 0
    assert (arch.number in arch.family) == ("f" in arch.targets)
    for number in arch.family:
        member = BY_NAME[f"sm_{number}"]
        assert member.family == arch.family
        assert member.capability[0] == arch.capability[0]
    for text in filter(None, (arch.name, arch.nvcc, arch.torch, arch.flashinfer, arch.cute)):
        assert parse_arch(text) is arch
    assert arch_of_capability(*arch.capability) is arch


def test_a_gpu_name_means_one_arch():
    names = [gpu for arch in archs() for gpu in arch.gpus]
    assert len(names) == len(set(names))


def test_the_two_targets():
    b300, rtx = BY_NAME["sm_103"], BY_NAME["sm_120"]
    assert "NVIDIA B300 SXM6 AC" in b300.gpus
    assert [gpu for gpu in rtx.gpus if "6000 Blackwell" in gpu] == [
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ]
    assert (b300.torch, b300.flashinfer, b300.cute, b300.shared_memory) == (
        "10.3a",
        "10.3a",
        "sm_103a",
        232448,
    )
    assert (rtx.torch, rtx.flashinfer, rtx.cute, rtx.shared_memory) == ("12.0a", "12.0f", "sm_120a", 101376)
    assert arch_of_capability(10, 1) is None


@pytest.mark.parametrize(
    "text",
    ["sm_103", "sm103", "sm-103", "103", "10.3", "10.3a", "10.3f", "103a", "SM_103A", "compute_103", "Compute_103f", " sm_103\n"],
)  # fmt: skip
def test_spellings(text: str):
    assert parse_arch(text).name == "sm_103"


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ("sm_130", 'unknown GPU arch "sm_130"', "sm_103"),
        ("sm_102", 'unknown GPU arch "sm_102"', "sm_120"),
        ("12.2", 'unknown GPU arch "12.2"', "sm_121"),
        ("sm_101a", 'unknown GPU arch "sm_101a"; CUDA 13 renumbered it sm_110', "sm_110"),
        ("sm_70", 'unknown GPU arch "sm_70"; CUDA 13 begins with sm_75', None),
        ("sm_90f", 'sm_90 has no "f" target', "sm_90"),
        ("8.0a", 'sm_80 has no "a" target', "sm_80"),
        ("RTX PRO 6000", '"RTX PRO 6000" is a GPU, not an arch', "sm_120"),
        ("rtx pro 6000 max-q", '"rtx pro 6000 max-q" is a GPU, not an arch', "sm_120"),
        ("B300", '"B300" is a GPU, not an arch', "sm_103"),
        ("h100", '"h100" is a GPU, not an arch', "sm_90"),
        ("NVIDIA H200", '"NVIDIA H200" is a GPU, not an arch', "sm_90"),
        ("rtx", '"rtx" is not a GPU arch', None),
        ("gfx942", '"gfx942" is not a GPU arch', None),
        ("sm_1O3", '"sm_1O3" is not a GPU arch', "sm_103"),
        ("sm_", '"sm_" is not a GPU arch', None),
        ("nvidia", '"nvidia" is not a GPU arch', None),
        ("", '"" is not a GPU arch', None),
        ("sm_103 x", '"sm_103 x" is not a GPU arch', "sm_103"),
        ("10.3+PTX", '"10.3+PTX" is not a GPU arch', None),
        ("१०३", '"१०३" is not a GPU arch', None),
    ],
)
def test_wrong_spellings(text: str, message: str, suggestion: str | None):
    with pytest.raises(ManifestError) as caught:
        parse_arch(text)
    allowed = getattr(caught.value, "allowed", ())
    assert caught.value.message == f"{message}; allowed: {', '.join(allowed)}"
    assert {parse_arch(name) for name in allowed} <= set(archs())
    assert caught.value.hint == (None if suggestion is None else f'did you mean "{suggestion}"?')
    assert caught.value.exit_code == 2


def test_drivers():
    assert min_driver(BY_NAME["sm_103"], "13.0") == 580
    assert min_driver(BY_NAME["sm_90"], "13.0") == 580
    assert min_driver(BY_NAME["sm_103"], "12.9") == 575
    assert min_driver(BY_NAME["sm_90"], "12.4") == 525
    for arch, cuda, message in [
        ("sm_103", "12.8", "needs 12.9"),
        ("sm_120", "12.4", "needs 12.8"),
        ("sm_90", "14.0", "allowed: 11.x, 12.x, 13.x"),
        ("sm_90", "13", 'unknown CUDA release "13"'),
    ]:
        with pytest.raises(ManifestError, match=message):
            min_driver(BY_NAME[arch], cuda)


# --- what loads where -------------------------------------------------------------------------

# Which numbers load on which GPU, written out from NVIDIA's tables, one row per (kind, suffix).
LOADS = {
    "sm_103": {
        ("elf", ""): {100, 101, 103},
        ("elf", "f"): {100, 101, 103},
        ("elf", "a"): {103},
        ("ptx", ""): {n for n in NUMBERS if n <= 103},
        ("ptx", "f"): {100, 101, 103},
        ("ptx", "a"): {103},
    },
    "sm_120": {
        ("elf", ""): {120},
        ("elf", "f"): {120},
        ("elf", "a"): {120},
        ("ptx", ""): {n for n in NUMBERS if n <= 120},
        ("ptx", "f"): {120},
        ("ptx", "a"): {120},
    },
    "sm_121": {
        ("elf", ""): {120, 121},
        ("elf", "f"): {120, 121},
        ("elf", "a"): {121},
        ("ptx", ""): {n for n in NUMBERS if n <= 121},
        ("ptx", "f"): {120, 121},
        ("ptx", "a"): {121},
    },
    "sm_90": {
        ("elf", ""): {90},
        ("elf", "f"): {90},
        ("elf", "a"): {90},
        ("ptx", ""): {n for n in NUMBERS if n <= 90},
        ("ptx", "f"): {90},
        ("ptx", "a"): {90},
    },
    "sm_89": {
        ("elf", ""): {80, 86, 87, 88, 89},
        ("elf", "f"): {80, 86, 87, 88, 89},
        ("elf", "a"): {89},
        ("ptx", ""): {n for n in NUMBERS if n <= 89},
        ("ptx", "f"): {80, 86, 87, 88, 89},
        ("ptx", "a"): {89},
    },
}


@pytest.mark.parametrize("name", LOADS)
def test_loadable_is_exactly_this(name: str):
    for kind, suffix in itertools.product(KINDS, SUFFIXES):
        loads = {n for n in NUMBERS if loadable(Code(kind, n, suffix), BY_NAME[name])}
        assert loads == LOADS[name][kind, suffix], (kind, suffix)


@pytest.mark.parametrize(
    ("code", "gpu", "expected"),
    [
        (Code("elf", 103), "sm_103", "native"),
        (Code("elf", 103, "a"), "sm_103", "native"),
        (Code("elf", 100), "sm_103", "compatible"),
        (Code("elf", 100, "f"), "sm_103", "compatible"),
        (Code("elf", 100, "a"), "sm_103", "none"),
        (Code("elf", 103), "sm_100", "none"),
        (Code("elf", 120), "sm_103", "none"),
        (Code("elf", 103), "sm_120", "none"),
        (Code("elf", 120, "f"), "sm_121", "compatible"),
        (Code("elf", 121, "f"), "sm_120", "none"),
        (Code("elf", 80), "sm_89", "compatible"),
        (Code("elf", 90, "a"), "sm_100", "none"),
        (Code("ptx", 90), "sm_103", "ptx"),
        (Code("ptx", 103), "sm_103", "ptx"),
        (Code("ptx", 103), "sm_120", "ptx"),
        (Code("ptx", 120), "sm_103", "none"),
        (Code("ptx", 100, "f"), "sm_103", "ptx"),
        (Code("ptx", 100, "f"), "sm_120", "none"),
        (Code("ptx", 90, "a"), "sm_100", "none"),
        # embedded numbers: kept by `loadable`, promised by nobody
        (Code("elf", 87), "sm_89", "none"),
        (Code("elf", 101), "sm_103", "none"),
        (Code("elf", 101, "f"), "sm_103", "none"),
        (Code("ptx", 72), "sm_90", "none"),
        (Code("elf", 87), "sm_87", "native"),
        (Code("elf", 80), "sm_87", "none"),
        (Code("ptx", 80), "sm_87", "ptx"),
        (Code("other", 103), "sm_103", "none"),
    ],
)
def test_match(code: Code, gpu: str, expected: str):
    assert match(code, BY_NAME[gpu]) == expected


def test_blackwell_halves_never_run_each_others_machine_code():
    for suffix in SUFFIXES:
        for here, there in [("sm_103", "sm_120"), ("sm_120", "sm_103"), ("sm_100", "sm_120")]:
            assert not loadable(Code("elf", BY_NAME[here].number, suffix), BY_NAME[there])


@given(arch=any_arch, kind=st.sampled_from(KINDS), suffix=st.sampled_from(SUFFIXES))
def test_own_code_always_loads(arch: GpuArch, kind: Kind, suffix: Suffix):
    assert loadable(Code(kind, arch.number, suffix), arch)
    assert match(Code(kind, arch.number, suffix), arch) != "none"


@given(code=any_code, gpu=any_arch)
def test_a_promise_implies_loadable(code: Code, gpu: GpuArch):
    if match(code, gpu) != "none":
        assert loadable(code, gpu)


@given(code=any_code, gpu=any_arch)
def test_narrower_targets_load_on_less(code: Code, gpu: GpuArch):
    """a ⊆ f ⊆ plain, and a cubin loads only where the PTX of its target would."""
    a, f, plain = (loadable(Code(code.kind, code.arch, s), gpu) for s in ("a", "f", ""))
    assert a <= f <= plain
    if code.kind == "elf":
        assert loadable(code, gpu) <= loadable(Code("ptx", code.arch, code.suffix), gpu)


@given(code=any_code, here=any_arch, later=any_arch)
def test_what_is_not_arch_specific_runs_on_later_ones(code: Code, here: GpuArch, later: GpuArch):
    """Forward compatibility: plain PTX everywhere later, the rest within its major version."""
    if code.suffix == "a" or later.number < here.number or not loadable(code, here):
        return
    if later.capability[0] == here.capability[0] or (code.kind == "ptx" and code.suffix == ""):
        assert loadable(code, later)


@given(code=any_code, other=any_code, gpu=any_arch)
def test_nothing_newer_than_the_gpu_loads(code: Code, other: Code, gpu: GpuArch):
    if code.kind != "other" and code.arch > gpu.number:
        assert not loadable(code, gpu)
    # a cubin for another major version never loads
    if other.kind == "elf" and other.arch // 10 != gpu.capability[0]:
        assert not loadable(other, gpu)


@given(number=st.sampled_from(NUMBERS), suffix=st.sampled_from(SUFFIXES), gpu=any_arch)
def test_unknown_kinds_are_kept(number: int, suffix: Suffix, gpu: GpuArch):
    assert loadable(Code("other", number, suffix), gpu)
