# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of a served model, and what they say about which strategy to take.

    images/bench/NAME.yaml ─suite→ Suite ─runner→ runs/*.json ─result→ BenchResult ─report, compare→ text

SGLang's own load generator makes the load (`load`); the plan around it is ours: which cells, warm-up,
repeats, a correctness gate before any figure, and going on after an interrupt.
"""
