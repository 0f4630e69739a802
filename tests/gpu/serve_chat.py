# SPDX-License-Identifier: Apache-2.0
"""On a GPU host: the sm_90 recipe's flags, with the overrides below, serve an OpenAI chat request.

    python -m tests.gpu.serve_chat pack FOLDER       here: what the host cannot make: flags and plan
    python -m tests.gpu.serve_chat run FOLDER MODELS OUT     there, as root, in the checkout

The server is started as an image starts it: preflight, then `sglang serve` in the same process. MODELS is the
kit's folder of tiny models. It writes OUT/serve_chat.json and OUT/server.log: whether a drafter was used, the
answer with and without the API key, and that SIGTERM lets a running request end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVICE, ARCH, PORT = "k26-tp8", "sm_90", 30000
TARGET, DRAFTER = "mla-fp32", "draft-anchor-fp32"
KEY = "key-of-the-test"
# What the recipe says and one GPU with tiny models cannot have; None: the flag goes, with its value.
OVERRIDES: dict[str, tuple[str | None, str]] = {
    "--model-path": ("{models}/" + TARGET, "a tiny model of the same attention"),
    "--speculative-draft-model-path": ("{models}/" + DRAFTER, "its drafter"),
    "--tp-size": ("1", "one GPU"),
    "--flashinfer-allreduce-fusion-backend": (None, "one GPU has no all-reduce"),
    "--context-length": ("4096", "all that the tiny model has"),
    "--mem-fraction-static": ("0.3", "other programs may use the GPU"),
    "--max-running-requests": ("8", "few graphs to capture"),
    "--attention-backend": ("triton", "FlashAttention 3 has 1.7 GB and is not carried"),
    "--speculative-draft-attention-backend": ("triton", "the same"),
    "--moe-runner-backend": ("auto", "the tiny model has no INT4 experts"),
    "--host": ("127.0.0.1", "nobody else is to reach it"),
}
ADDED: dict[str, tuple[str, str]] = {
    "--dtype": ("float32", "the kit's exact models"),
    "--sampling-backend": ("pytorch", "FlashInfer's would be compiled first"),
    "--grammar-backend": ("none", "XGrammar is not carried"),
    "--cuda-graph-max-bs-decode": ("8", "few graphs to capture"),
    "--max-total-tokens": ("65536", "a small pool is made at once"),
    "--cuda-graph-backend-prefill": ("disabled", "the same"),
}
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


def overridden(flags: list[str], models: str) -> list[str]:
    """Return the recipe's flags with the overrides; every override must meet a flag."""
    out, words, met = [], iter(flags), set()
    for word in words:
        if word not in OVERRIDES:
            out.append(word)
            continue
        met.add(word)
        next(words)
        value = OVERRIDES[word][0]
        out += [] if value is None else [word, value.format(models=models)]
    assert met == OVERRIDES.keys(), OVERRIDES.keys() - met
    return out + [part for flag, (value, _) in ADDED.items() for part in (flag, value)]


def pack(folder: Path) -> None:
    """Write the recipe's flags and the image's plan."""
    from imagebuild.catalog import project_root
    from imagebuild.plan import to_text
    from imagebuild.resolve import resolve
    from imagebuild.serving.service import read_model_recipes, resolve_service

    root = project_root()
    serving = resolve_service(read_model_recipes(root / "compose", root / "images", "k26"), SERVICE, ARCH)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flags.json").write_text(json.dumps(serving.flags))
    (folder / "plan.json").write_text(to_text(resolve(root / "images", ARCH)))


def write_tokenizer(folder: Path) -> None:
    """Give a tiny model of 512 tokens a tokenizer: one token a byte, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"<|{number}|>" for number in range(512 - len(letters)))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|255|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def prepare(folder: Path, models: Path) -> dict[str, str]:
    """Make the machine look like a container of the image; return the server's environment."""
    for place in ("/etc/imagebuild", "/cache", "/run/secrets"):
        Path(place).mkdir(parents=True, exist_ok=True)
    Path("/etc/imagebuild/plan.json").write_bytes((folder / "plan.json").read_bytes())
    Path("/run/secrets/api_key").write_text(KEY + "\n")
    write_tokenizer(models / TARGET)
    bin_folder = Path("/cache/bin")
    bin_folder.mkdir(exist_ok=True)
    start = "from sglang.cli.main import main\n\nif __name__ == '__main__':\n    main()\n"
    (bin_folder / "sglang").write_text(f"#!{sys.executable}\n{start}")
    (bin_folder / "sglang").chmod(0o755)
    return {
        **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "IMAGEBUILD_BIND": "0.0.0.0",
        "TRITON_F32_DEFAULT": "ieee", "IMAGEBUILD_ACCEPT": "ulimits",
    }  # fmt: skip


def ask(path: str, body: dict[str, Any] | None = None, key: str = KEY) -> Any:
    """Return the server's JSON answer. Raises HTTPError and URLError."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers)
    return urllib.request.urlopen(request, timeout=60)


def chat(tokens: int, **more: Any) -> dict[str, Any]:
    """Return the body of a chat request that gives exactly so many tokens."""
    messages = [{"role": "user", "content": "What is the meaning of this?"}]
    return {
        "model": "Kimi-K2.6", "messages": messages, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, **more,
    }  # fmt: skip


def wait_until_healthy(server: subprocess.Popen[bytes], seconds: float) -> float:
    """Return how long it took until the server generated a token."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        try:
            with ask("/health_generate"):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"no answer after {seconds:.0f} s")


def events(answer: Any) -> Iterator[dict[str, Any]]:
    """Yield a stream's chunks."""
    for line in answer:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def drain(server: subprocess.Popen[bytes], found: dict[str, Any]) -> None:
    """Stop the server in the middle of a stream; note how the stream and the server ended."""
    chunks: list[dict[str, Any]] = []
    begun = threading.Event()

    def read() -> None:
        with ask("/v1/chat/completions", chat(2500, stream=True)) as answer:
            for chunk in events(answer):
                chunks.append(chunk)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    found["chunks_before_sigterm"] = len(chunks)
    server.send_signal(signal.SIGTERM)
    reader.join(60)
    ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0].get("finish_reason")]
    found |= {"chunks": len(chunks), "finish_reason": ends[-1] if ends else None}
    found["exit"] = server.wait(30)


def talk(server: subprocess.Popen[bytes], result: dict[str, Any]) -> None:
    """Ask everything; `result` holds what is known so far, whatever happens."""
    result["healthy_after_s"] = round(wait_until_healthy(server, 100), 1)
    try:
        with ask("/v1/chat/completions", chat(8), key="wrong"):
            result["wrong_key"] = 200
    except urllib.error.HTTPError as error:
        result["wrong_key"] = error.code
    with ask("/v1/chat/completions", chat(96)) as answer:
        found = json.load(answer)
    message = found["choices"][0]["message"]
    result["chat"] = {"usage": found["usage"], "finish_reason": found["choices"][0]["finish_reason"]}
    result["chat"]["characters"] = len((message["content"] or "") + (message.get("reasoning_content") or ""))
    body = {
        "text": "Once upon a time",
        "sampling_params": {"max_new_tokens": 128, "temperature": 0, "ignore_eos": True},
    }
    with ask("/generate", body) as answer:
        facts = json.load(answer)["meta_info"]
    result["generate"] = {
        k: facts.get(k) for k in ("completion_tokens", "spec_verify_ct", "spec_accept_length")
    }
    drain(server, result.setdefault("drain", {}))


def run(folder: Path, models: Path, out: Path) -> None:
    """Start the server, ask, stop it; write what was found even if something fails."""
    flags = overridden(json.loads((folder / "flags.json").read_text()), str(models))
    env = prepare(folder, models)
    result: dict[str, Any] = {"flags": flags, "overrides": OVERRIDES | ADDED}
    log = out / "server.log"
    command = [sys.executable, "-m", "imagebuild.preflight", "serve", *flags]
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            talk(server, result)
            result["key_in_command_line"] = KEY in " ".join(flags)
            result["passed"] = _passed(result)
        except Exception as error:
            result["failed"] = f"{type(error).__name__}: {error}"
        finally:
            if server.poll() is None:
                server.kill()
            (out / "serve_chat.json").write_text(json.dumps(result, indent=1) + "\n")
    text = log.read_text(errors="replace").splitlines()
    print(
        "\n".join(
            line for line in text if line.split(" ")[0] in ("ok", "warning", "missing", "failed", "serve:")
        )
    )
    print("\n".join(text[-12:]))
    print(json.dumps({k: v for k, v in result.items() if k not in ("flags", "overrides")}, indent=1))
    sys.exit(0 if result.get("passed") else 1)


def _passed(result: dict[str, Any]) -> bool:
    speculated = result["generate"]["spec_verify_ct"]
    return bool(
        result["wrong_key"] == 401
        and result["chat"]["usage"]["completion_tokens"] == 96
        and result["chat"]["characters"] > 0
        and 0 < speculated < result["generate"]["completion_tokens"]
        and result["drain"]["finish_reason"] == "length"
        and result["drain"]["chunks"] > result["drain"]["chunks_before_sigterm"]
    )


def main(words: list[str]) -> None:
    """Run one of the two commands."""
    if words[:1] == ["pack"] and len(words) == 2:
        pack(Path(words[1]))
    elif words[:1] == ["run"] and len(words) == 4:
        run(*(Path(word) for word in words[1:]))
    else:
        sys.exit(str(__doc__))


if __name__ == "__main__":
    main(sys.argv[1:])
