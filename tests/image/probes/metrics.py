# SPDX-License-Identifier: Apache-2.0
"""Print the names of all metrics that SGLang's own collectors register, as a scrape would show them."""

import json
from types import SimpleNamespace

from prometheus_client import REGISTRY, generate_latest
from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector, TokenizerMetricsCollector

labels = {"model_name": "m", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}


class Arguments(SimpleNamespace):
    """Server arguments that leave every bucket to the collector."""

    def __getattr__(self, name):
        return None


given = Arguments(prefill_delayer_max_delay_passes=30)
SchedulerMetricsCollector(labels=labels, server_args=given)
TokenizerMetricsCollector(labels=labels, server_args=given)
lines = generate_latest(REGISTRY).decode().splitlines()
print(json.dumps({line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}))
