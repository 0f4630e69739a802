# SPDX-License-Identifier: Apache-2.0
"""The models a server loads: where they come from, their locks, their bytes, and whether they fit.

    images/models/NAME.yaml ─source→ repos ─pin(hub)→ lock ─fetch→ folders ─verify→ stamp
    config.json ─shapes→ contract (drafter ↔ target), memory plan;  any folder ─identify→ repo and commit

`hub` and `xet` are the only modules that import huggingface_hub and hf_xet.
"""
