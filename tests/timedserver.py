# SPDX-License-Identifier: Apache-2.0
"""A streaming server with exactly known timing, in SGLang's dialect; standard library only.

    python tests/timedserver.py --port 0 --ttft-ms 120 --itl-ms 20 --model-path DIR

The first chunk of an answer leaves `ttft` after its request has arrived, and chunk k leaves k times
`itl` later: by absolute deadlines, so that no delay adds up. `--tokens-per-chunk` above 1 is what
speculative decoding looks like from outside. It prints its port, then serves until it is killed.
`/server_info` tells how many tokens it has sent and how late the chunks were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 1000


@dataclass
class Timing:
    """What the server does, in seconds and tokens; `jitter` is a share of the time between chunks."""

    ttft: float
    itl: float
    tokens_per_chunk: int = 1
    jitter: float = 0.0
    wrong_after: int = 0  # from this token on the answer differs from the rule; 0: never
    model_path: str = ""
    startup: float = 0.0


@dataclass
class State:
    """What has happened so far."""

    begun: float = field(default_factory=time.monotonic)
    running: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    chunks: int = 0
    requests: int = 0
    late: list[float] = field(default_factory=list)


def token(prompt: list[int], position: int) -> int:
    """The rule: which token follows at `position` of the answer to `prompt`."""
    return (sum(prompt) * 31 + position * 7) % VOCABULARY


def words(tokens: list[int]) -> str:
    """Return tokens as text: `t17 t24`."""
    return " ".join(f"t{number}" for number in tokens)


def ids_of(text: str) -> list[int]:
    """Return the tokens of a text; a word that is none of ours is a token by its length."""
    return [int(w[1:]) if w[:1] == "t" and w[1:].isdigit() else len(w) for w in text.split()]


class Server:
    """One server; `timing` may be changed while it runs."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.state = State()
        self.random = random.Random(1)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                arrived = time.monotonic()
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(method, path.partition("?")[0], body, writer, arrived)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter, arrived: float
    ) -> None:
        """Answer one request."""
        if path in ("/generate", "/v1/completions"):
            await self.generate(json.loads(body), path, writer, arrived)
            return
        if path == "/metrics":
            plain(writer, 200, self.metrics().encode(), "text/plain; version=0.0.4")
        elif path in ("/health", "/health_generate"):
            ready = time.monotonic() - self.state.begun >= self.timing.startup
            plain(writer, 200 if ready else 503, b"")
        elif path == "/flush_cache":
            plain(writer, 200, b"Cache flushed.\n")
        elif path == "/v1/models":
            plain(writer, 200, json.dumps({"data": [{"id": "timed", "object": "model"}]}).encode())
        elif path == "/model_info":
            plain(writer, 200, json.dumps({"model_path": self.timing.model_path}).encode())
        elif path == "/server_info":
            plain(writer, 200, json.dumps(self.info()).encode())
        else:
            plain(writer, 404, b"not here")
        await writer.drain()

    def info(self) -> dict[str, Any]:
        """Return what SGLang's /server_info has, and our own counts under `timed`."""
        state = self.state
        late = sorted(state.late) or [0.0]
        accept = state.tokens / state.chunks if state.chunks else 1.0
        memory = {"weight": 1.5, "kvcache": 2.25, "graph": 0.25, "token_capacity": 65536}
        return {
            "version": "timed",
            "model_path": self.timing.model_path,
            "speculative_algorithm": "DFLASH" if self.timing.tokens_per_chunk > 1 else None,
            "internal_states": [{"memory_usage": memory, "avg_spec_accept_length": accept}],
            "timed": {
                "tokens": state.tokens,
                "requests": state.requests,
                "late_p99_ms": 1e3 * late[int(0.99 * (len(late) - 1))],
            },
        }

    def metrics(self) -> str:
        """Return the metrics of SGLang that the harness and the dashboards read."""
        state, width = self.state, self.timing.tokens_per_chunk
        label = '{model_name="timed"}'
        verify = state.chunks if width > 1 else 0
        rows = {
            ("sglang:prompt_tokens_total", "counter"): state.prompt_tokens,
            ("sglang:generation_tokens_total", "counter"): state.tokens,
            ("sglang:spec_verify_calls_total", "counter"): verify,
            ("sglang:num_requests_total", "counter"): state.requests,
            ("sglang:num_running_reqs", "gauge"): state.running,
            ("sglang:num_queue_reqs", "gauge"): 0,
            ("sglang:token_usage", "gauge"): min(1.0, state.running / 128),
            ("sglang:spec_accept_length", "gauge"): float(width if width > 1 else 0),
            ("sglang:spec_num_draft_tokens", "gauge"): 2 * width if width > 1 else 0,
            ("sglang:cache_hit_rate", "gauge"): 0.25,
            ("sglang:num_retracted_requests_total", "counter"): 0,
        }
        lines = [f"# TYPE {name} {kind}\n{name}{label} {value}\n" for (name, kind), value in rows.items()]
        for mode, count in (("decode", state.tokens), ("prefill_compute", state.prompt_tokens)):
            lines.append(f'sglang:realtime_tokens_total{{model_name="timed",mode="{mode}"}} {count}\n')
        lines += histogram("sglang:time_to_first_token_seconds", self.timing.ttft, state.requests)
        lines += histogram("sglang:inter_token_latency_seconds", self.timing.itl / width, state.tokens)
        return "".join(lines)

    async def generate(
        self, body: dict[str, Any], path: str, writer: asyncio.StreamWriter, arrived: float
    ) -> None:
        """Send an answer of the asked length, chunk by chunk, at the known times."""
        timing, state = self.timing, self.state
        sampling = body.get("sampling_params", body)
        count = int(sampling.get("max_new_tokens", sampling.get("max_tokens", 16)))
        given = body.get("input_ids", body.get("text", body.get("prompt", "")))
        prompt = ids_of(given) if isinstance(given, str) else list(given)
        state.running += 1
        state.requests += 1
        state.prompt_tokens += len(prompt)
        stream = bool(body.get("stream"))
        if stream:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
        answer: list[int] = []
        step, number = 1, 0
        try:
            while len(answer) < count:
                due = arrived + timing.ttft + number * timing.itl
                if timing.jitter and number:
                    due += timing.itl * timing.jitter * self.random.uniform(-1, 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                state.late.append(time.monotonic() - due)
                for _ in range(min(step, count - len(answer))):
                    wrong = timing.wrong_after and len(answer) >= timing.wrong_after
                    answer.append(token(prompt, len(answer)) ^ (1 if wrong else 0))
                    state.tokens += 1
                state.chunks += 1 if number else 0
                step, number = timing.tokens_per_chunk, number + 1
                if stream:
                    chunk(writer, b"data: " + self.piece(answer, len(prompt), path) + b"\n\n")
                    await writer.drain()
            if stream:
                chunk(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
            else:
                plain(writer, 200, self.piece(answer, len(prompt), path))
            await writer.drain()
        finally:
            state.running -= 1

    def piece(self, answer: list[int], prompt: int, path: str) -> bytes:
        """Return one chunk: /generate sends all text so far, /v1/completions what is new."""
        counts = {"completion_tokens": len(answer), "prompt_tokens": prompt}
        if path == "/generate":
            value: dict[str, Any] = {"text": words(answer), "output_ids": answer, "meta_info": counts}
        else:
            value = {"choices": [{"text": words(answer[-1:]) + " "}], "usage": counts}
        return json.dumps(value).encode()


BOUNDS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6, 1, 2, 4, 10)


def histogram(name: str, value: float, count: int) -> list[str]:
    """Return a Prometheus histogram that saw `value` seconds so many times."""
    lines = [f"# TYPE {name} histogram\n"]
    lines += [f'{name}_bucket{{le="{bound}"}} {count if value <= bound else 0}\n' for bound in BOUNDS]
    lines.append(f'{name}_bucket{{le="+Inf"}} {count}\n')
    return [*lines, f"{name}_sum {value * count}\n{name}_count {count}\n"]


def plain(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json") -> None:
    """Write a whole answer."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write one chunk of a chunked answer."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def tokenizer_files(words: int = VOCABULARY) -> dict[str, str]:
    """Return a tokenizer of so many of our words, as the tokenizers library reads it."""
    vocabulary = {f"t{number}": number for number in range(words)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    whole: dict[str, Any] = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    for name in ("truncation", "padding", "normalizer", "post_processor", "decoder"):
        whole[name] = None
    whole["added_tokens"] = []
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0"}
    return {"tokenizer.json": json.dumps(whole), "tokenizer_config.json": json.dumps(settings)}


async def serve(host: str, port: int, server: Server) -> None:
    """Serve until cancelled; prints the port first."""
    listening = await asyncio.start_server(server.handle, host, port, limit=1 << 22)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=100)
    parser.add_argument("--itl-ms", type=float, default=20)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--jitter", type=float, default=0)
    parser.add_argument("--wrong-after", type=int, default=0)
    parser.add_argument("--startup-s", type=float, default=0)
    parser.add_argument("--model-path", default="")
    given = parser.parse_args()
    timing = Timing(
        ttft=given.ttft_ms / 1e3,
        itl=given.itl_ms / 1e3,
        tokens_per_chunk=given.tokens_per_chunk,
        jitter=given.jitter,
        wrong_after=given.wrong_after,
        model_path=given.model_path,
        startup=given.startup_s,
    )
    asyncio.run(serve(given.host, given.port, Server(timing)))


if __name__ == "__main__":
    main()
