# SPDX-License-Identifier: Apache-2.0
"""What /metrics shows of DDTREE: per budget and class of batch sizes, from rank 0."""

from __future__ import annotations

from typing import Any

from sglang_ddtree.controller import Controller


class Metrics:
    """Gauges and a counter in SGLang's own Prometheus registry."""

    def __init__(self, model_name: str) -> None:
        # After SGLang has set PROMETHEUS_MULTIPROC_DIR, hence not at the top.
        from prometheus_client import Counter, Gauge

        self.model = model_name
        names = ["model_name", "batch", "budget"]

        def gauge(name: str, text: str, labels: list[str]) -> Any:
            return Gauge(f"sglang:ddtree_{name}", text, labels, multiprocess_mode="mostrecent")

        self.budget = gauge("budget", "Draft nodes per tree in use; 0 is a chain.", names[:2])
        self.accept = gauge("accept_length", "Tokens per verify step and request, recently.", names)
        self.seconds = gauge("step_seconds", "Seconds between two steps, recent median.", names)
        self.steps = Counter("sglang:ddtree_steps", "Decode steps.", names)

    def update(self, controller: Controller, batch: int, budget: int) -> None:
        """After a step's result: count it, and show what the controller knows now."""
        labels = (self.model, str(controller.class_of(batch)), str(budget))
        self.steps.labels(*labels).inc()
        self.budget.labels(*labels[:2]).set(controller.plan.get(controller.class_of(batch), budget))
        arm = controller.arm(batch, budget)
        if arm.tokens:
            self.accept.labels(*labels).set(arm.accept_length)
        if arm.seconds:
            self.seconds.labels(*labels).set(arm.step_seconds)
