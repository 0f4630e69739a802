# SPDX-License-Identifier: Apache-2.0
"""Turn a pinned LLM-serving stack into per-GPU-architecture container images."""

__version__ = "0.1.0"
