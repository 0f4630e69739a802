# SPDX-License-Identifier: Apache-2.0
"""No example has a time limit: a busy machine must not fail a test, and speed belongs to benchmarks/."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
