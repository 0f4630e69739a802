# SPDX-License-Identifier: Apache-2.0
"""The correctness gate: no figure of a server that answers wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from imagebuild.bench.result import Check
from imagebuild.bench.server import Server
from imagebuild.bench.suite import GateSpec, Known

Answers = tuple[tuple[int, ...], ...]


def _name(prompt: Known) -> str:
    return repr(prompt.text[:40]) if prompt.text else f"ids {list(prompt.ids[:6])}"


def ask(server: Server, spec: GateSpec) -> tuple[tuple[Check, ...], Answers]:
    """Ask every prompt twice; return the checks and the greedy answers.

    An answer must have the asked number of tokens, begin as it is known to, and come again the same.
    """
    checks: list[Check] = []
    answers: list[tuple[int, ...]] = []
    for prompt in spec.prompts:
        ids, text = server.answer(prompt, spec.tokens)
        again, _ = server.answer(prompt, spec.tokens)
        answers.append(ids)
        whole = len(ids) == spec.tokens
        checks.append(Check(name=f"{_name(prompt)}: length", passed=whole, detail=f"{len(ids)} tokens"))
        if prompt.begins:
            right = text.lstrip().startswith(prompt.begins.lstrip())
            checks.append(Check(name=f"{_name(prompt)}: begins", passed=right, detail=repr(text[:60])))
        checks.append(equal_start(f"{_name(prompt)}: twice the same", ids, again, spec.equal_tokens))
    return tuple(checks), tuple(answers)


def equal_start(name: str, ours: Sequence[int], theirs: Sequence[int], tokens: int) -> Check:
    """Compare the first `tokens` tokens of two answers."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    return Check(name=name, passed=same >= tokens, detail=f"the first {same} tokens agree, {tokens} must")


def compare_answers(spec: GateSpec, other: str, ours: Answers, theirs: Answers) -> tuple[Check, ...]:
    """Compare an arm's answers with those of the arm `other`; nothing if the suite does not compare."""
    if spec.equal_tokens == 0:
        return ()
    if len(theirs) != len(spec.prompts):
        detail = "it has not passed its own gate here"
        return (Check(name=f"same as {other}", passed=False, detail=detail),)
    return tuple(
        equal_start(f"{_name(prompt)}: same as {other}", mine, its, spec.equal_tokens)
        for prompt, mine, its in zip(spec.prompts, ours, theirs, strict=True)
    )
