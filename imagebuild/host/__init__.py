# SPDX-License-Identifier: Apache-2.0
"""What this host is, and which recipe suits it.

    NVML or nvidia-smi ─gpus→ Gpus ─┐
    /proc, /sys, docker ─machine…→ ─┴→ Host ─findings→ Finding… ─advice→ Advice → Report (host.json)

The modules that read GPUs (facts, driver, matrix, smi, nvml, gpus) and allreduce need the standard library
only, so that they run alone on any GPU host. Nothing here changes the host.
"""
