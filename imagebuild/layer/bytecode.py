# SPDX-License-Identifier: Apache-2.0
"""Byte-compile modules so that equal sources give equal .pyc files (PEP 552, unchecked hash).

Must run under the image's own interpreter, since byte-code belongs to one Python minor version.
"""

from __future__ import annotations

import importlib.util
import marshal
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from types import CodeType

_UNCHECKED_HASH = 0b01
_CHUNK = 32
# CPython has one object for each string of one Latin-1 character and one for the empty string, and
# marshal writes whether a string is interned: for these, whether anything before has interned them.
_INTERNED = tuple(sys.intern(text) for text in ("", *map(chr, range(256))))


def pyc_path(source: str, cache_tag: str | None = None) -> str:
    """Return the `__pycache__` path (PEP 3147) of the module at `source`, for this interpreter or a tag."""
    folder, _, name = source.rpartition("/")
    stem = name.removesuffix(".py")
    return f"{folder}/__pycache__/{stem}.{cache_tag or sys.implementation.cache_tag}.pyc"


def _hold(code: CodeType, held: list[object]) -> None:
    """Collect every string and constant of a code object.

    marshal marks an object as shared only if its reference count is above one, so whether an
    interned name is marked depends on what else the process has loaded. Holding one more
    reference to each makes the marks, and so the bytes, independent of that.
    """
    held += [code.co_name, code.co_qualname, code.co_filename]  # type: ignore[attr-defined]
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        held.append(names)
        held += names
    pending: list[object] = list(code.co_consts)
    while pending:
        value = pending.pop()
        held.append(value)
        if isinstance(value, CodeType):
            _hold(value, held)
        elif isinstance(value, tuple | frozenset):
            pending += value


def compile_source(source: bytes, path: str) -> bytes:
    """Return the .pyc bytes of a module's source; `path` is its absolute image path.

    Raises SyntaxError or ValueError for a source that this interpreter cannot compile.
    """
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    held: list[object] = []
    _hold(code, held)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little")
    return header + importlib.util.source_hash(source) + marshal.dumps(code)


def _compile_or_none(job: tuple[bytes, str]) -> bytes | None:
    try:
        return compile_source(*job)
    except (SyntaxError, ValueError):
        return None


def compile_all(jobs: list[tuple[bytes, str]], workers: int) -> list[bytes | None]:
    """Compile many sources with `workers` processes; None where a source does not compile."""
    if workers <= 1 or len(jobs) <= _CHUNK:
        return [_compile_or_none(job) for job in jobs]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_compile_or_none, jobs, chunksize=_CHUNK))


def main(jobs_file: str, out_file: str, workers: str) -> None:
    """Compile the pickled jobs of one file into another: what an image's own interpreter is started for.

    Both files are written and read by one build, in its own temporary folder.
    """
    with open(jobs_file, "rb") as source:
        jobs = pickle.load(source)
    with open(out_file, "wb") as out:
        pickle.dump(compile_all(jobs, int(workers)), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
