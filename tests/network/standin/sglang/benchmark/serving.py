# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's load generator where SGLang is not: same options, same fields, real requests.

Only what the harness around it needs is right here; tests/image runs the real one.
"""

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def _request(url, prompt, tokens):
    body = {"input_ids": prompt, "stream": True, "sampling_params": {"max_new_tokens": tokens}}
    begun = last = time.perf_counter()
    ttft, count, gaps = 0.0, 0, []
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                new = json.loads(line[6:])["meta_info"]["completion_tokens"]
                now = time.perf_counter()
                ttft = ttft or now - begun
                gaps += [(now - last) / (new - count)] * (new - count) if count else []
                count, last = new, now
    return ttft, gaps, last - begun, count


def cli_main():
    parser = argparse.ArgumentParser()
    flags = ("disable-tqdm", "flush-cache", "output-details", "tokenize-prompt")
    for name in flags:
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("backend", "tokenizer", "base-url", "dataset-name", "output-file", "random-range-ratio"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("warmup-requests", "max-concurrency", "num-prompts", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("random-input-len", "random-output-len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    prompts = [
        [(given.seed + i + j) % 1000 for j in range(given.random_input_len)] for i in range(given.num_prompts)
    ]
    begun = time.perf_counter()
    with ThreadPoolExecutor(given.max_concurrency) as pool:
        done = list(pool.map(lambda p: _request(given.base_url, p, given.random_output_len), prompts))
    seconds = time.perf_counter() - begun
    tokens = sum(count for *_, count in done)
    result = {
        "duration": seconds,
        "completed": len(done),
        "total_input_tokens": sum(map(len, prompts)),
        "total_output_tokens": tokens,
        "output_throughput": tokens / seconds,
        "median_tpot_ms": 1e3 * (done[0][2] - done[0][0]) / (done[0][3] - 1),
        "errors": [""] * len(done),
    }
    samples = {"ttft": [d[0] for d in done], "itl": [g for d in done for g in d[1]]}
    samples["e2e_latency"] = [d[2] for d in done]
    for name, values in samples.items():
        for kind in ("median", "mean", "p90", "p99"):
            result[f"{kind}_{name}_ms"] = 1e3 * sorted(values)[len(values) // 2]
    with open(given.output_file, "a") as file:
        file.write(json.dumps(result) + "\n")
