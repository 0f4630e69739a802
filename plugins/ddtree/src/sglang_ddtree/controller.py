# SPDX-License-Identifier: Apache-2.0
"""Which budget is fastest for this batch size, from what was measured. No torch here.

Tokens per second of a batch: its size by tokens per step and request, over seconds per step. Both are
measured per budget and per power-of-two class of batch sizes. A class tries every budget for some
steps, keeps the fastest, and tries one of the others again after `period` steps, twice as many
after each try in vain. When the accepted length drifts (other prompts, another temperature), it tries
all of them anew.

A larger tree's step tells the tokens of the smaller ones, too, for the same texts. So what budgets
are compared by differs in their time only, which varies little, and not in luck.

A step's time is the interval between two launches. With overlap scheduling the interval after a
launch belongs to the step before it, so intervals count only when the last three launches had the
same batch size and budget and nothing came in between.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW = 256  # measurements that are remembered per budget and class
SETTLE = 3  # launches of the same kind before an interval counts
DRIFT = 0.3  # change of the accepted length, relative, that makes a class try everything anew
RECENT = 64  # steps that a drift is looked for in
HOPELESS = 0.85  # of the best's speed: a try that is slower ends early
PATIENCE = 6  # a try that is interrupted again and again ends after PATIENCE times its steps


@dataclass
class Arm:
    """What was measured of one budget in one class."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def known(self, times: int, steps: int) -> bool:
        return len(self.seconds) >= times and len(self.tokens) >= steps

    @property
    def accept_length(self) -> float:
        """Mean tokens per step and request."""
        return statistics.fmean(self.tokens)

    @property
    def step_seconds(self) -> float:
        """Median seconds per step: a pause that went unnoticed must not count."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Tokens per second and request; 0 when unknown."""
        return self.accept_length / self.step_seconds if self.seconds and self.tokens else 0.0


@dataclass
class Class:
    """A class of batch sizes: its arms, what it runs now and why."""

    arms: dict[int, Arm]
    todo: list[int]
    best: int
    trying: int | None = None
    tried: int = 0  # launches since this try began
    since: int = 0  # launches since the last try began
    order: list[int] = field(default_factory=list)  # budgets, the longest untried first
    expected: float = 0.0  # accepted length of the best when it was judged
    checked: int = 0  # `since` when it was last looked for a drift
    vain: int = 0  # tries since the best changed


class Controller:
    """Chooses a budget per launch.

    budgets: ascending. need: step times before a budget is judged; samples: accepted lengths of requests
    before it is, since they vary more and a small batch gives few per step. chain_too: whether the
    steps of trees tell of budget 0. period: steps between two
    further tries of a class. margin: how much faster another budget must be to replace the best.
    clock: seconds.
    """

    def __init__(
        self,
        budgets: tuple[int, ...],
        clock: Callable[[], float],
        *,
        need: int = 24,
        samples: int = 96,
        chain_too: bool = True,
        period: int = 1500,
        margin: float = 0.01,
    ) -> None:
        self.budgets = budgets
        self.clock, self.chain_too = clock, chain_too
        self.need, self.samples, self.period, self.margin = need, samples, period, margin
        self.classes: dict[int, Class] = {}
        self.plan: dict[int, int] = {}
        self._last: tuple[int, int] | None = None  # batch size and budget of the last launch
        self._at = 0.0
        self._same = 0

    @staticmethod
    def class_of(batch: int) -> int:
        """The power of two at or above a batch size."""
        return 1 << max(batch - 1, 0).bit_length()

    def launch(self, batch: int, *, decide: bool = True) -> int:
        """Return the budget for a step that is about to be launched, and take the time.

        decide: whether the plan may change now. Ranks that must agree decide together, now and then.
        """
        now = self.clock()
        if self._last is not None and self._same >= SETTLE and self._last[0] == batch:
            self._class(batch).arms[self._last[1]].seconds.append(now - self._at)
        state = self._class(batch)
        state.since += 1
        state.tried += 1
        if decide:
            self.decide(batch)
        budget = self.plan.get(self.class_of(batch), self.budgets[0])
        kind = (batch, budget)
        self._same = self._same + 1 if kind == self._last else 1
        self._last, self._at = kind, now
        return budget

    def pause(self) -> None:
        """Something else ran: the running interval is no step."""
        self._last, self._same = None, 0

    def result(self, batch: int, tokens: dict[int, int]) -> None:
        """Take what a step gave: tokens of all requests together, by budget."""
        for budget, count in tokens.items():
            self._class(batch).arms[budget].tokens.append(count / batch)

    def decide(self, batch: int) -> None:
        """Update the plan for a batch size's class from what was measured."""
        state = self._class(batch)
        steps = max(self.need, self.samples // batch)
        if state.trying is not None and self._tried_enough(state, state.trying, steps):
            state.trying = None
            self._judge(state)
        if state.trying is None and not state.todo:
            if self._drifted(state):
                state.todo, state.vain = self._order(), 0
            elif state.since >= max(self.period, 20 * steps) << min(state.vain, 4):
                state.todo = [budget for budget in state.order if budget != state.best][:1]
        if state.trying is None and state.todo:
            self._try(state, state.todo.pop(0))
        self.plan[self.class_of(batch)] = state.best if state.trying is None else state.trying

    def arm(self, batch: int, budget: int) -> Arm:
        """What was measured of a budget at batch sizes like this one."""
        return self._class(batch).arms[budget]

    def _try(self, state: Class, budget: int) -> None:
        """Begin to measure a budget."""
        state.trying = budget
        state.tried = state.since = state.checked = 0
        state.order.remove(budget)
        state.order.append(budget)
        state.arms[budget].seconds.clear()
        if budget == self.budgets[-1] or budget > state.best:
            # Its steps tell of the smaller ones: all are compared by the same texts.
            for other in self.budgets:
                if other <= budget and (other or self.chain_too):
                    state.arms[other].tokens.clear()

    def _tried_enough(self, state: Class, budget: int, steps: int) -> bool:
        arm, best = state.arms[budget], state.arms[state.best]
        if state.tried > PATIENCE * steps or arm.known(self.need, steps):
            return True
        return arm.known(self.need, self.need) and 0 < arm.rate < HOPELESS * best.rate

    def _order(self) -> list[int]:
        """The smallest first, for its time; then the largest, which tells how far all of them come."""
        return [self.budgets[0], *reversed(self.budgets[1:])]

    def _judge(self, state: Class) -> None:
        rates = {budget: arm.rate for budget, arm in state.arms.items()}
        fastest = max(self.budgets, key=lambda budget: rates[budget])
        if rates[fastest] > (1 + self.margin) * rates[state.best]:
            state.best, state.vain = fastest, 0
        else:
            state.vain += not state.todo
        state.expected = state.arms[state.best].accept_length if state.arms[state.best].tokens else 0.0

    def _drifted(self, state: Class) -> bool:
        if len(self.budgets) == 1 or not state.expected or state.since - state.checked < RECENT:
            return False
        state.checked = state.since
        recent = list(state.arms[state.best].tokens)[-RECENT:]
        now = statistics.fmean(recent) if len(recent) == RECENT else state.expected
        return abs(now - state.expected) > DRIFT * state.expected

    def _class(self, batch: int) -> Class:
        key = self.class_of(batch)
        if key not in self.classes:
            arms = {budget: Arm() for budget in self.budgets}
            self.classes[key] = Class(arms, self._order(), self.budgets[0], order=self._order())
        return self.classes[key]
