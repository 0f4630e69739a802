# SPDX-License-Identifier: Apache-2.0
"""SGLang takes the flags of a service that goes over two nodes, as deploy/kubernetes has them."""

from __future__ import annotations

import pytest

from imagebuild.catalog import project_root
from imagebuild.serving.kubernetes import flags_over
from imagebuild.serving.service import read_model_recipes, services_of


@pytest.mark.slow
def test_every_service_of_this_arch_over_two_nodes(sglang, plan):
    root = project_root()
    servings = services_of(read_model_recipes(root / "compose", root / "images", "k26"), plan.arch)
    known = {"$(NODE_RANK)": "1", "$(LWS_LEADER_ADDRESS):20000": "10.0.0.1:20000"}
    lines = [[known.get(word, word) for word in flags_over(serving, 2)] for serving in servings]
    for serving, answer in zip(servings, sglang(plan.arch, *lines), strict=True):
        assert "refused" not in answer, f"{serving.service}: {answer}"
        effective = answer["effective"]
        assert (effective["nnodes"], effective["node_rank"]) == (2, 1), serving.service
        assert effective["dist_init_addr"] == "10.0.0.1:20000"
