# SPDX-License-Identifier: Apache-2.0
"""Which engines run, with which tasks, and what their results must show.

An arm: name; spec for engine.py (or a function of the burst that makes it from earlier results) or
command; needs: names of arms that must end first; judge: a function of the burst that returns
(passed, text) pairs. A pair whose passed is None is a report, not a gate.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import checks
import treeoracle
from probe_plugin.probe_plugin import FALLOFF, rank_of

HERE = Path(__file__).resolve().parent
BLOCK, DEPTH = 8, 7
Verdict = tuple[bool | None, str]
STOP = [7, 40, 200]
#: Two logits nearer than this are a tie: a node's logits and its path's differ by up to 2e-5.
TIE = 4e-5
#: What every exactness arm decodes: a batch, ragged lengths, stop tokens, one after another.
TEXT: dict[str, dict[str, Any]] = {
    "batch": {"kind": "text"},
    "ragged": {"kind": "text", "seed": 12, "tokens": 96, "ragged": True},
    "stop": {"kind": "text", "seed": 13, "stop_token_ids": STOP},
    "alone": {"kind": "text", "seed": 14, "prompts": 3, "at_once": 1, "tokens": 64},
    "again": {"kind": "text", "seed": 14, "prompts": 3, "tokens": 64, "flush": False},
}


def engine(
    work: Path, target: str, draft: str | None, tasks: dict[str, Any], *, algorithm: str = "DFLASH",
    budgets: str | None = None, env: dict[str, str] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A spec for engine.py. budgets: DDTREE's, the largest of which sets the verify width."""
    models = work / "models"
    spec: dict[str, Any] = {
        "target": str(models / target),
        "tasks": tasks,
        "options": options,
        "env": env or {},
    }
    if draft:
        spec |= {"draft": str(models / draft), "algorithm": algorithm}
    if budgets is not None:
        spec["env"] = {"SGLANG_DDTREE_BUDGETS": budgets} | spec["env"]
        spec["options"] = {"speculative_num_draft_tokens": max(map(int, budgets.split(","))) + 1} | options
    return spec


def same_text(name: str, reference: str) -> Callable[[Any], list[Verdict]]:
    """Every text task must give the reference's tokens, up to ties nearer than float32 can tell."""

    def judge(burst: Any) -> list[Verdict]:
        mine, other = burst.result(name), burst.result(reference)
        found: list[Verdict] = []
        for task, result in mine.get("tasks", {}).items():
            wanted = other.get("tasks", {}).get(task)
            if "ids" not in result or wanted is None:
                continue
            bad = checks.differing(wanted["ids"], result["ids"])
            gaps = wanted.get("gaps")
            ties = [(i, at, gaps[i][at]) for i, at in bad if gaps and gaps[i][at] < TIE]
            count = len(result["ids"])
            text = f"{name} {task}: {count - len(bad)} of {count} equal to {reference}"
            text += f", accept {result.get('accept')}"
            text += f", ties (row, token, gap) {ties}" if ties else ""
            text += f", first {bad[:4]}" if len(bad) > len(ties) else ""
            found.append((len(bad) == len(ties), text))
        complete = bool(mine.get("done"))
        return [*found, (complete and bool(found), f"{name}: complete")]

    return judge


def must_differ(name: str, reference: str) -> Callable[[Any], list[Verdict]]:
    """A negative control: at least one text must differ, or the gate sees nothing."""

    def judge(burst: Any) -> list[Verdict]:
        verdicts = [v for v in same_text(name, reference)(burst) if " equal to " in v[1]]
        caught = any(passed is False for passed, _ in verdicts)
        return [
            (
                caught,
                f"control {name}: {'caught' if caught else 'NOT caught'}: "
                + (verdicts[0][1] if verdicts else "no result"),
            )
        ]

    return judge


def answers(burst: Any, reference: str) -> dict[tuple[int, ...], list[int]]:
    """Prompt → prompt and answer of a reference run, in the order in which prompts first came."""
    found: dict[tuple[int, ...], list[int]] = {}
    for task in burst.result(reference)["tasks"].values():
        for prompt, ids in zip(task.get("prompts", ()), task.get("ids", ()), strict=True):
            # Ragged tasks may hold a shorter answer to a prompt that came before.
            if len(found.get(tuple(prompt), ())) < len(prompt) + len(ids):
                found[tuple(prompt)] = prompt + ids
    return found


def oracle_file(burst: Any, reference: str, name: str, seed: int, ranks: int) -> str:
    """Write the answers of a reference run for the oracle drafter."""
    found = answers(burst, reference)
    data = {
        "rows": [*found.values()],
        "lengths": [len(prompt) for prompt in found],
        "ranks": ranks,
        "seed": seed,
    }
    path = burst.folder / f"{name}.oracle.json"
    path.write_text(json.dumps(data))
    return str(path)


def oracle_table(ranks: int) -> list[list[float]]:
    """The oracle's log-probabilities, rounded as the GPU rounds them."""
    f32 = treeoracle.f32
    return [
        [f32(f32(f32(-FALLOFF) * (1 + r)) - f32(f32(0.01) * d)) for r in range(ranks)]
        for d in range(1, DEPTH + 1)
    ]


def oracle_judge(
    name: str, reference: str, budget: int, seed: int, ranks: int
) -> Callable[[Any], list[Verdict]]:
    """Texts equal and every request's number of verify steps exactly as computed."""

    def judge(burst: Any) -> list[Verdict]:
        verdicts = same_text(name, reference)(burst)
        shape = treeoracle.tree(oracle_table(budget - DEPTH + 1), budget, True)
        order = {prompt: row for row, prompt in enumerate(answers(burst, reference))}
        for task, result in burst.result(name).get("tasks", {}).items():
            if "ids" not in result:
                continue
            wanted = []
            for prompt, ids in zip(result["prompts"], result["ids"], strict=True):
                row = order[tuple(prompt)]
                at = [rank_of(seed, row, p, ranks) for p in range(len(prompt) + len(ids) + 64)]
                wanted.append(checks.oracle_steps(shape, at, len(prompt), len(ids)))
            right = wanted == result["steps"]
            verdicts.append(
                (right, f"{name} {task}: steps {result['steps']}" + ("" if right else f" not {wanted}"))
            )
        return verdicts

    return judge


def path_specs(burst: Any, work: Path, target: str, recorded: str) -> dict[str, Any]:
    """For recorded tree steps: every leaf's path after its text, to be run as a plain prompt."""
    import torch

    texts = answers(burst, recorded)
    ids: list[list[int]] = []
    places: list[list[Any]] = []
    for step in sorted((burst.folder / f"{recorded}.steps").glob("*.pt")):
        data = torch.load(step)
        parents, width = data["parents"].tolist(), len(data["parents"][0])
        tokens = data["tokens"].view(-1, width).tolist()
        for b, prompt in enumerate(data["prompts"][:4]):
            text = texts[tuple(prompt)][: int(data["prefix"][b])]
            for leaf in set(range(width)) - set(parents[b]):
                line = []
                node = leaf
                while node >= 0:
                    line.append(node)
                    node = parents[b][node]
                line.reverse()
                ids.append(text + [tokens[b][node] for node in line])
                places.append([step.name, b, line])
    task = {"kind": "logprobs", "ids": ids, "places": places, "top": 20}
    return engine(work, target, None, {"paths": task}, max_running_requests=32)


def path_judge(name: str, recorded: str) -> Callable[[Any], list[Verdict]]:
    """A node's log-probabilities must be those of its path run as a chain."""

    def judge(burst: Any) -> list[Verdict]:
        import torch

        result = burst.result(name)
        if not result.get("done"):
            return [(False, f"{name}: no result")]
        task = result["spec"]["tasks"]["paths"]
        worst, nodes, steps = 0.0, 0, {}
        for (step, b, line), ids, rows in zip(
            task["places"], task["ids"], result["tasks"]["paths"]["rows"], strict=True
        ):
            if step not in steps:
                data = torch.load(burst.folder / f"{recorded}.steps" / step)
                logits = data["logits"].view(len(data["prompts"]), len(data["parents"][0]), -1)
                steps[step] = torch.log_softmax(logits, -1)
            start = len(ids) - len(line)
            for depth, node in enumerate(line):
                for token, value in rows[start + depth]:
                    worst = max(worst, abs(float(steps[step][b, node, token]) - value))
                nodes += 1
        good = nodes > 0 and worst < 2e-3
        return [(good, f"{name}: {nodes} nodes on {len(task['ids'])} paths, largest difference {worst:.2e}")]

    return judge


def first(work: Path) -> list[dict[str, Any]]:
    """Kernels, greedy equality in float32, oracle, faults, tree logits = path logits."""
    plan = [_kernels()]
    plan += [_none(work, target) for target in EXACT]
    for target in EXACT:
        plan += _equal(work, target, "tree16", "DDTREE", "16")
    for target in EXACT:
        plan += _oracle(work, target, 16, seed=3, ranks=4)
    for target in EXACT:
        plan += _equal(work, target, "dflash", "DFLASH", None)
        plan += _equal(work, target, "adaptive", "DDTREE", "0,8,16", tries=4)
        plan += _equal(work, target, "eager", "DDTREE", "16", cuda_graph_backend_decode="disabled")
    for fault in ("mask", "depth", "compact"):
        plan += _oracle(work, "mla-fp32", 16, seed=3, ranks=4, fault=fault)
    return plan


def second(work: Path) -> list[dict[str, Any]]:
    """A pair is trained; sampling; leaks; more of the matrix; what the patch ledger had on no GPU."""
    eager: dict[str, Any] = {"cuda_graph_backend_decode": "disabled"}
    train = [sys.executable, str(HERE / "train.py"), str(work / "models")]
    plan: list[dict[str, Any]] = [
        {"name": "train", "command": train, "judge": lambda burst: [_log(burst, "train", "trained in", 12)]},
        *(_none(work, target) for target in EXACT),
        _split(work),
        *_equal(work, "mla-fp32", "tree32", "DDTREE", "32"),
        *_equal(work, "qwen3-fp32", "page16", "DDTREE", "16", page_size=16),
        *_equal(work, "mla-fp32", "paper16", "DDTREE", "16", env={"SGLANG_DDTREE_SPINE": "0"}),
        *_equal(work, "mla-fp32", "eager-no-overlap", "DDTREE", "16", disable_overlap_schedule=True, **eager),
        *_leak(work),
        *_oracle(work, "mla-fp32", 24, seed=5, ranks=5, disable_overlap_schedule=True),
    ]
    for label, budgets in (("none", None), ("dflash", None), ("tree16", "16"), ("tree", "0,8,16")):
        plan.append(_samples(work, label, budgets))
    plan += [
        _samples(work, "tree16", "16", fault="warm"),
        *_half(work, "mla-fp16", "dflash-eager", "DFLASH", None, **eager),
        *_equal(work, "mla-fp32", "dflash-eager", "DFLASH", None, **eager),
        *_half(work, "deepseek-bf16", "tree16", "DDTREE", "16"),
        *_half(work, "mla-fp16", "tree16-eager", "DDTREE", "16", **eager),
        _kernels(),
    ]
    return plan


def third(work: Path) -> list[dict[str, Any]]:
    """Tokens per second with the trained pair, each engine alone; and once more the exact texts."""
    exact = [
        _none(work, "qwen3-fp32"),
        *_equal(work, "qwen3-fp32", "adaptive", "DDTREE", "0,16,32", tries=3),
        *_equal(work, "qwen3-fp32", "tree32", "DDTREE", "32"),
    ]
    for arm in exact:
        arm["spec"]["turn"] = "shared"
    return [_kernels(cases=16), *exact, *_speed(work, rounds=5, tokens=256)]


EXACT = ("qwen3-fp32", "mla-fp32")


def _kernels(cases: int = 400) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "kernel_cases.py"), "--cases", str(cases), "--time"]
    return {
        "name": "kernels",
        "command": command,
        "judge": lambda burst: [_log(burst, "kernels", "plain Python", 10)],
    }


def _none(work: Path, target: str) -> dict[str, Any]:
    tasks = {name: task | {"gaps": True} for name, task in TEXT.items()}
    return {"name": f"{target}-none", "spec": engine(work, target, None, tasks)}


def _log(burst: Any, name: str, wanted: str, lines: int) -> Verdict:
    """A command's log must hold a text; its last lines are reported."""
    path = burst.folder / f"{name}.log"
    text = path.read_text() if path.exists() else ""
    return wanted in text, f"{name}: " + " | ".join(text.splitlines()[-lines:])


#: Sampling tasks on the trained pair: 4 tokens of one prompt, the first of them from the prefill.
SAMPLES: dict[str, dict[str, Any]] = {
    "t1": {"temperature": 1.0, "count": 3000, "rounds": 4},
    "top-p": {"temperature": 1.0, "top_p": 0.8, "count": 3000, "rounds": 2},
    "top-k": {"temperature": 1.5, "top_k": 3, "count": 3000, "rounds": 2},
    "min-p": {"temperature": 1.0, "min_p": 0.15, "count": 3000, "rounds": 2},
}


def _samples(work: Path, label: str, budgets: str | None, *, fault: str = "") -> dict[str, Any]:
    """Sample one prompt many times and compare with no speculation by chi-square."""
    tasks: dict[str, Any] = {"batch": {"kind": "text", "symbols": 32, "gaps": label == "none"}}
    tasks |= {k: {"kind": "counts", "symbols": 32, "tokens": 4} | task for k, task in SAMPLES.items()}
    if fault:
        tasks = {"t1": tasks["t1"]}
    options: dict[str, Any] = {"max_running_requests": 32, "cuda_graph_max_bs_decode": 32}
    draft = None if label == "none" else "pair-draft-fp32"
    algorithm = "DFLASH" if budgets is None else "DDTREE"
    env = {"DDTREE_FAULT": fault} if fault else {}
    name = f"pair-{label}" + (f"-{fault}" if fault else "")
    spec = engine(work, "pair-fp32", draft, tasks, algorithm=algorithm, budgets=budgets, env=env, **options)

    def judge(burst: Any) -> list[Verdict]:
        found: list[Verdict] = (
            [] if fault else [v for v in same_text(name, "pair-none")(burst) if "accept" in v[1]]
        )
        for task, result in burst.result(name).get("tasks", {}).items():
            other = burst.result("pair-none").get("tasks", {}).get(task, {})
            if "counts" not in result or "counts" not in other:
                continue
            statistic, freedom, p = checks.chi_square(other["counts"], result["counts"])
            # Stock DFLASH leaves min_p out when it verifies; that is no fault of the test.
            gate = None if (label, task) == ("dflash", "min-p") else p > 1e-3
            text = f"{name} {task}: chi-square {statistic:.0f}, {freedom} degrees, p {p:.3g}, "
            text += f"{sum(result['counts'].values())} samples, accept {result['accept']}"
            found.append((p < 1e-6 if fault else gate, ("control " if fault else "") + text))
        return found or [(False, f"{name}: no result")]

    arm: dict[str, Any] = {"name": name, "needs": ["train"], "spec": spec}
    return arm if label == "none" else arm | {"judge": judge}


def _split(work: Path) -> dict[str, Any]:
    """DFLASH on the MLA model with unlike prefill and decode attention backends (ledger)."""
    options: dict[str, Any] = {
        "prefill_attention_backend": "flashinfer",
        "decode_attention_backend": "triton",
    }
    name = "mla-bf16-split"
    spec = engine(work, "mla-bf16", "draft-anchor-bf16", {"batch": TEXT["batch"]}, **options)

    def judge(burst: Any) -> list[Verdict]:
        result = burst.result(name)
        return [
            (
                None,
                f"{name}: done {result.get('done')}, "
                f"accept {result.get('tasks', {}).get('batch', {}).get('accept')}",
            )
        ]

    return {"name": name, "spec": spec, "judge": judge, "limit": 270}


def _half(
    work: Path, target: str, label: str, algorithm: str, budgets: str | None, **options: Any
) -> list[dict[str, Any]]:
    """A 16-bit arm: it must run; how much is equal to no speculation depends on rounding."""
    name, kind = f"{target}-{label}", target.rsplit("-", 1)[1]
    tasks = {"batch": TEXT["batch"]}
    spec = engine(
        work, target, f"draft-anchor-{kind}", tasks, algorithm=algorithm, budgets=budgets, **options
    )

    def judge(burst: Any) -> list[Verdict]:
        result = burst.result(name)
        return [
            (
                bool(result.get("done")),
                f"{name}: accept {result.get('tasks', {}).get('batch', {}).get('accept')}",
            )
        ]

    return [{"name": name, "spec": spec, "judge": judge}]


def _leak(work: Path) -> list[dict[str, Any]]:
    """Several times the KV pool's tokens through requests of all lengths; then the same text as without."""
    tasks = {
        "leak": {"kind": "leak", "prompts": 160, "tokens": 160},
        "metrics": {"kind": "metrics"},
        "info": {"kind": "internal"},
    }
    options: dict[str, Any] = {"max_total_tokens": 4096, "max_running_requests": 16, "enable_metrics": True}
    none, tree = "qwen3-fp32-leak-none", "qwen3-fp32-leak"
    spec = engine(
        work, "qwen3-fp32", "draft-anchor-fp32", tasks, algorithm="DDTREE", budgets="0,8,16", **options
    )

    def judge(burst: Any) -> list[Verdict]:
        result = burst.result(tree).get("tasks", {})
        log = (burst.folder / f"{tree}.log").read_text()
        retracted = log.count("Retract")
        lines = result.get("metrics", {}).get("lines", [])
        return [
            *same_text(tree, none)(burst),
            ("leak detected" not in log,
             f"{tree}: {result.get('leak', {}).get('tokens')} tokens through a pool of 4096, no leak "
             f"reported, {retracted} retractions"),
            (any("ddtree_step_seconds" in line for line in lines),
             f"{tree}: /metrics: " + " ".join(lines[:40])),
        ]  # fmt: skip

    reference = {"leak": tasks["leak"]}
    return [
        {
            "name": none,
            "spec": engine(
                work, "qwen3-fp32", None, reference, max_total_tokens=16384, max_running_requests=16
            ),
        },
        {"name": tree, "needs": [none], "spec": spec, "judge": judge},
    ]


#: Algorithms and budgets of the speed arms.
SPEED = {"dflash": None, "ddtree": "0,16,32", "none": None}
BATCHES = [1, 4, 16, 64]


def _speed(work: Path, *, rounds: int, tokens: int) -> list[dict[str, Any]]:
    """Tokens per second at each concurrency, in rounds; models/pair-bf16 must be there."""
    arms: list[dict[str, Any]] = []
    for label, budgets in SPEED.items():
        # Without speculation a round takes longest and is no gate.
        times = rounds if label != "none" else (rounds + 1) // 2
        task: dict[str, Any] = {
            "kind": "speed",
            "batches": BATCHES,
            "rounds": times,
            "tokens": tokens,
            "symbols": 32,
        }
        tasks = {
            "t1": task | {"temperature": 1.0, "warm": [8, 5, 3, 3]},
            "t0": task | {"temperature": 0, "warm": [12, 6, 4, 3]},
            "info": {"kind": "internal"},
        }
        options: dict[str, Any] = {
            "max_running_requests": 64,
            "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 24, 32, 48, 64],
            "mem_fraction_static": 0.12,
        }
        draft = None if label == "none" else "pair-draft-bf16"
        algorithm = "DFLASH" if budgets is None else "DDTREE"
        spec = engine(work, "pair-bf16", draft, tasks, algorithm=algorithm, budgets=budgets, **options)
        spec["turn"] = "alone"
        arms.append({"name": f"speed-{label}", "spec": spec, "judge": _speed_judge(label)})
    return arms


def _speed_judge(label: str) -> Callable[[Any], list[Verdict]]:
    def judge(burst: Any) -> list[Verdict]:
        found: list[Verdict] = []
        for temperature in ("t1", "t0"):
            task = burst.result(f"speed-{label}").get("tasks", {}).get(temperature, {})
            plain = burst.result("speed-dflash").get("tasks", {}).get(temperature, {})
            for batch, rates in task.get("tokens_per_second", {}).items():
                mine = statistics.median(rates)
                other = statistics.median(plain.get("tokens_per_second", {}).get(batch, [mine]))
                accept = statistics.median(task["accept"][batch])
                text = f"speed {label} {temperature} at {batch}: {mine:.0f} tokens/s, accept {accept}, "
                text += f"{mine / other:.3f} of DFLASH, {rates}"
                found.append((mine >= 0.98 * other if label == "ddtree" else None, text))
        return found or [(False, f"speed {label}: no result")]

    return judge


def _equal(
    work: Path, target: str, label: str, algorithm: str, budgets: str | None, *, tries: int = 1,
    draft: str = "draft-anchor", env: dict[str, str] | None = None, **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """An arm that must decode what no speculation decodes."""
    name, kind = f"{target}-{label}", target.rsplit("-", 1)[1]
    tasks: dict[str, Any] = dict(TEXT)
    for n in range(1, tries):
        tasks = {f"warm{n}": {"kind": "text", "seed": 40 + n}} | tasks
    tasks["info"] = {"kind": "internal"}
    spec = engine(
        work, target, f"{draft}-{kind}", tasks, algorithm=algorithm, budgets=budgets, env=env, **options
    )
    return [{"name": name, "spec": spec, "judge": same_text(name, f"{target}-none")}]


def _oracle(
    work: Path, target: str, budget: int, *, seed: int, ranks: int, fault: str = "", **options: Any
) -> list[dict[str, Any]]:
    """A drafter that is told the answer: steps are exactly known; with a fault the text must differ."""
    none = f"{target}-none"
    name = f"{target}-oracle{budget}" + (f"-{fault}" if fault else "")

    def spec(burst: Any) -> dict[str, Any]:
        env = {"DDTREE_ORACLE": oracle_file(burst, none, name, seed, ranks)}
        if fault:
            env["DDTREE_FAULT"] = fault
        else:
            env["DDTREE_RECORD"] = str(burst.folder / f"{name}.steps")
        kind = target.rsplit("-", 1)[1]
        return engine(
            work,
            target,
            f"draft-random-{kind}",
            dict(TEXT),
            algorithm="DDTREE",
            budgets=str(budget),
            env=env,
            **options,
        )

    judge = must_differ(name, none) if fault else oracle_judge(name, none, budget, seed, ranks)
    arms: list[dict[str, Any]] = [{"name": name, "needs": [none], "spec": spec, "judge": judge}]
    if not fault:
        paths = f"{target}-paths{budget}"
        arms.append(
            {
                "name": paths,
                "needs": [name],
                "spec": lambda burst: path_specs(burst, work, target, name),
                "judge": path_judge(paths, name),
            }
        )
    return arms


def judge(burst: Any, plan: Iterable[dict[str, Any]]) -> int:
    """Say every verdict; return how many gates failed."""
    failed = 0
    for arm in plan:
        if "judge" not in arm:
            continue
        try:
            verdicts = arm["judge"](burst)
        except Exception as error:  # one arm's broken result must not hide the others
            verdicts = [(False, f"{arm['name']}: {type(error).__name__}: {error}")]
        for passed, text in verdicts:
            failed += passed is False
            burst.say(f"{ {True: 'PASS', False: 'FAIL', None: 'note'}[passed] } {text}")
    return failed
