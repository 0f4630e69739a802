# SPDX-License-Identifier: Apache-2.0
"""DDTREE's choice of a budget against simulated servers with known speeds."""

import math
import random
from collections import deque

import pytest
from sglang_ddtree.controller import Controller

BUDGETS = (0, 16, 32)


class Server:
    """Steps with a known accepted length and time per budget; results come one step late."""

    def __init__(self, accept, seconds, *, batch=1, seed=1, overlap=1, **options):
        self.accept, self.seconds, self.batch = accept, seconds, batch
        self.now, self.random, self.overlap = 0.0, random.Random(seed), overlap
        self.controller = Controller(BUDGETS, lambda: self.now, **options)
        self.used = dict.fromkeys(BUDGETS, 0)
        self.tokens = 0.0
        self.pending = deque()
        self.length = 0.0  # of the step that the GPU works on

    def run(self, steps, pause_every=100):
        for step in range(steps):
            if step % pause_every == pause_every - 1:
                self.now += 0.05  # a prefill
                self.controller.pause()
            budget = self.controller.launch(self.batch)
            self.used[budget] += 1
            if len(self.pending) >= self.overlap:
                self.controller.result(self.batch, self.pending.popleft())
            luck = self.random.gauss(0, 1.5 / math.sqrt(self.batch))  # of the same texts for all budgets
            given = {b: max(1, self.accept[b] + luck) * self.batch for b in BUDGETS if b <= budget}
            self.pending.append(given)
            self.tokens += given[budget]
            # The host waits for the step before this one, which may have had another budget.
            self.now += self.length
            self.length = self.seconds[budget] * self.random.uniform(0.97, 1.08)
        return self

    @property
    def best(self):
        return max(BUDGETS, key=lambda b: self.accept[b] / self.seconds[b])


CASES = [
    ({0: 2.3, 16: 2.8, 32: 3.2}, {0: 1.0, 16: 1.05, 32: 1.1}),
    ({0: 2.3, 16: 2.8, 32: 3.0}, {0: 1.0, 16: 1.05, 32: 1.4}),
    ({0: 2.3, 16: 2.8, 32: 3.2}, {0: 1.0, 16: 1.4, 32: 1.9}),
    ({0: 6.1, 16: 6.1, 32: 6.1}, {0: 1.0, 16: 1.2, 32: 1.5}),
]


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize(("accept", "seconds"), CASES)
def test_the_fastest_budget_is_used_for_most_steps(accept, seconds, batch):
    server = Server(accept, seconds, batch=batch).run(1500)
    assert server.used[server.best] > 0.8 * 1500, server.used


@pytest.mark.parametrize(("accept", "seconds"), CASES)
def test_it_costs_little_against_the_chain_and_wins_where_trees_do(accept, seconds):
    server = Server(accept, seconds, period=1000).run(4000)
    chain = Server(accept, seconds)
    chain.controller = Controller((0,), lambda: chain.now)
    chain.run(4000)
    assert server.tokens / server.now >= 0.98 * chain.tokens / chain.now


def test_other_texts_are_noticed():
    server = Server(*CASES[0]).run(1000)
    assert server.controller.classes[1].best == 32
    server.accept = {0: 6.1, 16: 6.1, 32: 6.1}
    server.seconds = {0: 1.0, 16: 1.2, 32: 1.5}
    server.run(800)
    assert server.controller.classes[1].best == 0


def test_classes_of_batch_sizes_are_judged_by_themselves():
    server = Server(*CASES[0]).run(800)
    server.batch, server.seconds = 64, {0: 1.0, 16: 1.6, 32: 2.5}
    server.controller.pause()
    server.pending.clear()
    server.run(600)
    assert server.controller.classes[1].best == 32
    assert server.controller.classes[64].best == 0


def test_intervals_across_a_pause_or_another_batch_size_do_not_count():
    now = [0.0]
    controller = Controller((0,), lambda: now[0])
    for _ in range(10):
        controller.launch(4)
        now[0] += 1.0
    assert list(controller.arm(4, 0).seconds) == [1.0] * 7
    controller.pause()
    now[0] += 100.0
    controller.launch(4)
    now[0] += 50.0
    controller.launch(3)
    assert max(controller.arm(4, 0).seconds) == 1.0


def test_one_budget_is_always_that_one():
    controller = Controller((16,), lambda: 0.0)
    assert {controller.launch(batch) for batch in (1, 2, 64) for _ in range(40)} == {16}


def test_ranks_that_may_not_decide_follow_the_plan():
    leader, other = Controller(BUDGETS, lambda: 0.0), Controller(BUDGETS, lambda: 0.0)
    leader.decide(1)
    assert leader.plan == {1: 0}
    leader.plan[1] = 32
    assert other.launch(1, decide=False) == 0
    other.plan = leader.plan
    assert other.launch(1, decide=False) == 32
    assert other.launch(64, decide=False) == 0


def test_a_try_that_never_gets_its_measurements_ends():
    controller = Controller(BUDGETS, lambda: 0.0)
    chosen = []
    for _ in range(6000):
        controller.pause()
        chosen.append(controller.launch(64))
    assert chosen[-1] == 0 and set(chosen) == set(BUDGETS)
