# SPDX-License-Identifier: Apache-2.0
"""How a model is served: recipes, what SGLang forbids, compose files, and the checks before a start.

    compose/recipes/MODEL.yaml ─recipe→ services ─rules→ refusals
                               ─service→ Serving (one service on one arch: flags, variables) ─compose→ files

What runs inside an image is in `imagebuild.preflight`.
"""
