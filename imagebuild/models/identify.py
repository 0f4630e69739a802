# SPDX-License-Identifier: Apache-2.0
"""Where did this folder come from? Clues against known repos → repo, commit, confidence, evidence.

    certain   every file of the repo is here with its sha256
    strong    the weights' sizes and all hashes that were read agree, or a download's own trace says it
    likely    shape, quantisation and size agree and README or config name it; or the same tensors, cut anew
    unknown   anything less; `candidates` says what it could be, `derived_from` what it was made from

Only bytes prove a commit, so a commit comes from hashes or from traces, never from names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from imagebuild.models.clues import Clues
from imagebuild.models.known import Known
from imagebuild.models.naming import count, says
from imagebuild.models.shapes import DrafterShape, TargetShape

Confidence = Literal["certain", "strong", "likely", "unknown"]
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True)
class Identity:
    """The answer. `repo` and `commit` are empty where nobody can know; sizes in bytes."""

    folder: str
    repo: str
    commit: str
    quantisation: str
    stored: str
    confidence: Confidence
    evidence: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    derived_from: str = ""
    missing: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    files: int = 0
    size: int = 0


@dataclass(frozen=True)
class _Match:
    """How a folder's files compare with a known repo's."""

    known: Known
    same: tuple[str, ...]  # known paths whose bytes are here, under whatever name
    alike: tuple[str, ...]  # known paths whose size is here, not hashed
    missing: tuple[str, ...]
    different: tuple[str, ...]

    @property
    def weights(self) -> tuple[int, int]:
        """Weight files here, and all."""
        all_weights = [path for path in self.known.files if path.endswith(_WEIGHTS)]
        here = {*self.same, *self.alike}
        return sum(path in here for path in all_weights), len(all_weights)


def _match(clues: Clues, known: Known) -> _Match:
    by_hash = {*clues.hashes.values(), *clues.blobs.values()}
    unread = [path for path in clues.files if path not in clues.hashes]
    sizes = {clues.files[path] for path in unread}
    same, alike, missing, different = [], [], [], []
    for path, file in known.files.items():
        if (file.sha256 or file.blob) in by_hash:
            same.append(path)
        elif file.size in sizes and (path not in clues.files or clues.files[path] == file.size):
            alike.append(path)
        elif path in clues.files:
            different.append(path)
        else:
            missing.append(path)
    return _Match(known, tuple(same), tuple(alike), tuple(missing), tuple(different))


def identify(clues: Clues, known: Iterable[Known]) -> Identity:
    """Compare a folder's clues with known repos and say what it is."""
    repos = list(known)
    matches = sorted((_match(clues, k) for k in repos if k.files), key=_rank, reverse=True)
    found = _by_files(clues, matches) or _by_trace(clues, repos) or _by_shape(clues, repos)
    return found or _answer(clues, "unknown", [_size_text(clues), *clues.notes])


def _rank(match: _Match) -> tuple[float, int]:
    here, total = match.weights
    return (here / total if total else 0.0), len(match.same)


def _by_files(clues: Clues, matches: list[_Match]) -> Identity | None:
    """Answer from files: hashes and sizes against a lock or the hub."""
    good = [m for m in matches if m.weights[0] and (m.same or len(m.alike) > 2)]
    if not good:
        return _recut(clues, matches)
    best = good[0]
    others = [m for m in good[1:] if m.known.repo != best.known.repo and set(m.same) - set(best.same)]
    mixed = [m for m in others if any(path.endswith(_WEIGHTS) for path in m.same)]
    if mixed:
        names = tuple(dict.fromkeys(m.known.repo for m in (best, *mixed)))
        text = f"weights of {len(names)} repos in one folder: {', '.join(names)}"
        return _answer(clues, "unknown", [text, *_damage(clues)], candidates=names)
    here, total = best.weights
    evidence = [
        f"{len(best.same)} of {len(best.known.files)} files have the sha256 of {best.known.repo} "
        f"{best.known.commit[:12] or 'as locked'} ({best.known.origin})"
    ]
    if best.alike:
        evidence.append(f"{len(best.alike)} more have the right size and were not hashed (--full does)")
    if best.different:
        evidence.append(f"other bytes than locked: {', '.join(best.different[:5])}")
    if here < total:
        evidence.append(f"a part of it: {here} of {total} weight files")
    wrong = [path for path in best.different if path.endswith(_WEIGHTS)]
    if wrong and len(wrong) * 2 > total:
        evidence.append(f"{len(wrong)} of {total} weight files are others: changed after download")
        return _answer(clues, "unknown", evidence, derived=best.known.repo)
    whole = not best.alike and not best.missing and not best.different
    return _answer(
        clues, "certain" if whole else "strong", [*evidence, *_damage(clues)], best.known, match=best
    )


def _recut(clues: Clues, matches: list[_Match]) -> Identity | None:
    """Answer for the same tensors in other files, or for other weights with a known repo's small files."""
    for match in matches:
        known = match.known
        config = [path for path in match.same if path in ("config.json", "tiktoken.model", "tokenizer.json")]
        if not config or not clues.weights.tensors:
            continue
        same = clues.weights.total == known.tensor_bytes
        if known.tensors and len(clues.weights.tensors) == known.tensors and same:
            text = (
                f"the {known.tensors} tensors of {known.repo} in other files: cut anew, bytes not comparable"
            )
            return _answer(clues, "likely", [text, f"same {', '.join(config)}"], known, commit=False)
        text = f"same {', '.join(config)} as {known.repo}, but other weights"
        return _answer(clues, "unknown", [text, *_damage(clues)], derived=known.repo)
    return None


def _by_trace(clues: Clues, repos: list[Known]) -> Identity | None:
    """Answer from what a download left behind."""
    trace = clues.trace
    if len(trace.commits) > 1:
        shown = ", ".join(f"{commit[:12]} ({n} files)" for commit, n in trace.commits.items())
        return _answer(clues, "unknown", [f"files of several commits ({trace.source}): {shown}"])
    changed = [p for p, digest in trace.hashes.items() if clues.hashes.get(p, digest) != digest]
    if not trace.commit or changed:
        return None
    evidence = [f"{trace.source} says commit {trace.commit}"]
    if trace.repo:
        known = Known(trace.repo, trace.commit)
        return _answer(clues, "strong", [*evidence, f"and repo {trace.repo}", *_damage(clues)], known)
    named = [known for known in repos if _fits(clues, known) and _names(clues, known, by_folder=True)]
    if len(named) == 1:
        known = Known(named[0].repo, trace.commit)
        evidence.append(f"shape and name are those of {known.repo}")
        return _answer(clues, "likely", [*evidence, *_damage(clues)], known)
    return None


def _by_shape(clues: Clues, repos: list[Known]) -> Identity | None:
    """Answer from the config's shape and the names that the folder gives."""
    fitting = [known for known in repos if _fits(clues, known)]
    if not fitting:
        return _derived(clues, repos)
    evidence = [f"config.json has the shape of {', '.join(known.repo for known in fitting)}"]
    contradiction = _contradiction(clues)
    if contradiction:
        return _answer(clues, "unknown", [*evidence, contradiction], derived=fitting[0].repo)
    names = tuple(dict.fromkeys(name for k in fitting for name in (k.repo, *k.lookalikes)))
    named = [(known, where) for known in fitting if (where := _names(clues, known))]
    sized = [k for k, _ in named if abs(clues.total - k.about_bytes) <= 0.03 * k.about_bytes]
    if len(named) == 1 and sized:
        known, where = named[0]
        evidence += [f"{where} names {known.repo}", _size_text(clues)]
        return _answer(clues, "likely", [*evidence, *_damage(clues)], Known(known.repo))
    evidence += [f"{where} names {known.repo}" for known, where in named]
    if named and not sized:
        evidence.append(f"but {_size_text(clues)} is not its size")
    evidence += [_size_text(clues), *_front_text(clues), *_damage(clues)]
    return _answer(clues, "unknown", evidence, candidates=names)


def _derived(clues: Clues, repos: list[Known]) -> Identity | None:
    """Answer for a model with a known architecture whose shape or quantisation is another one."""
    for known in repos:
        if clues.shape is None or known.shape is None or type(clues.shape) is not type(known.shape):
            continue
        if _plain(clues.shape) == _plain(known.shape):
            text = f"the shape of {known.repo}, quantised as {clues.quantisation or '?'}"
            return _answer(clues, "unknown", [text, f"tensors are {clues.stored or '?'}"], derived=known.repo)
    return None


def _fits(clues: Clues, known: Known) -> bool:
    if clues.shape is None or known.shape is None or type(clues.shape) is not type(known.shape):
        return False
    return _bare(clues.shape) == _bare(known.shape)


def _bare(shape: TargetShape | DrafterShape) -> object:
    """Return a shape without what configs spell in several ways."""
    return shape.model_copy(update={"vision": None, "dtype": "", "target_layers": None})


def _plain(shape: TargetShape | DrafterShape) -> object:
    return shape.model_copy(
        update={"vision": None, "dtype": "", "quantisation": None, "rope": None, "target_layers": None}
    )


def _contradiction(clues: Clues) -> str:
    """Say if tensors and config disagree: somebody stored the weights anew and kept the config."""
    if not clues.stored or not clues.quantisation:
        return ""
    packed = clues.stored.startswith(("packed", "FP", "bytes"))
    if packed == (clues.quantisation == "none"):
        return f"config.json says {clues.quantisation}, but the tensors are {clues.stored}"
    return ""


def _names(clues: Clues, known: Known, *, by_folder: bool = False) -> str:
    """Return where a repo and none of its lookalikes is named, or nothing.

    The folder's own name is anybody's choice: it counts if nothing else has that shape, or `by_folder`.
    """
    places = {
        "_name_or_path": clues.name_or_path,
        "the README's base_model": _text(clues.front.get("base_model")),
        "the README's title": clues.title,
        "the folder's name": clues.folder.name if by_folder or not known.lookalikes else "",
    }
    for where, text in places.items():
        mine, others = says(text, known.repo), [n for n in known.lookalikes if says(text, n)]
        if mine and not others and where != "the README's base_model":
            return where
    often = count(clues.text, known.repo)
    if often >= 2 and often > 2 * sum(count(clues.text, name) for name in known.lookalikes):
        return "the README's text"
    return ""


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _front_text(clues: Clues) -> list[str]:
    keys = ("license", "license_name", "base_model", "tags", "library_name", "pipeline_tag")
    found = [f"{key}: {_text(clues.front[key])}" for key in keys if clues.front.get(key)]
    return [f"README front matter: {'; '.join(found)}"] if found else ["README: no front matter that helps"]


def _size_text(clues: Clues) -> str:
    return f"{clues.total / 1e9:.1f} GB ({clues.total / 2**30:.1f} GiB) in {len(clues.files)} files"


def _damage(clues: Clues) -> list[str]:
    problems = [f"{name}: {text}" for name, texts in clues.weights.problems.items() for text in texts]
    more = [f"and {len(problems) - 5} more problems of the weights"] if len(problems) > 5 else []
    return [*problems[:5], *more, *clues.notes]


def _answer(
    clues: Clues,
    confidence: Confidence,
    evidence: list[str],
    known: Known | None = None,
    *,
    commit: bool = True,
    match: _Match | None = None,
    candidates: tuple[str, ...] = (),
    derived: str = "",
) -> Identity:
    return Identity(
        folder=str(clues.folder),
        repo=known.repo if known else "",
        commit=known.commit if known and commit else "",
        quantisation=clues.quantisation or (known.quantisation if known else ""),
        stored=clues.stored,
        confidence=confidence,
        evidence=tuple(dict.fromkeys(evidence)),
        candidates=candidates,
        derived_from=derived,
        missing=match.missing if match else (),
        different=match.different if match else (),
        files=len(clues.files),
        size=clues.total,
    )


def describe(found: Identity) -> str:
    """Return an answer as lines for people."""
    rows = [
        f"repo         {found.repo or 'unknown'}",
        f"commit       {found.commit or 'unknown'}",
        f"quantisation {found.quantisation or 'unknown'}; tensors: {found.stored or 'unknown'}",
        f"confidence   {found.confidence}",
    ]
    if found.derived_from:
        rows.append(f"made from    {found.derived_from}, and changed since")
    if found.candidates:
        rows.append(f"could be     {', '.join(found.candidates)}")
    rows += [f"  {line}" for line in found.evidence]
    if found.missing:
        rows.append(f"  missing: {', '.join(found.missing[:5])}" + (" …" if len(found.missing) > 5 else ""))
    return "\n".join(rows)
