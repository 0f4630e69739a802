# SPDX-License-Identifier: Apache-2.0
"""Train a tiny target on a random order-2 language and a DFlash drafter for it, in about a minute.

    python3 train.py OUT [--target-steps N] [--draft-steps N]

Writes pair-{bf16,fp32} and pair-draft-{bf16,fp32}. The language has SYMBOLS symbols; each pair of
symbols has four successors with the probabilities ODDS. At temperature 1 a chain of first choices
is therefore right about 0.65 times per position, and the other branches matter.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import models
import torch
import torch.nn.functional as F
from torch import nn

SYMBOLS = 32
ODDS = (0.65, 0.2, 0.1, 0.05)
LENGTH = 192
BLOCK = models.BLOCK
EPS = 1e-6


def language(seed: int, device: str) -> torch.Tensor:
    """Successors of every pair of symbols: [SYMBOLS, SYMBOLS, 4]."""
    gen = torch.Generator().manual_seed(seed)
    table = torch.rand(SYMBOLS, SYMBOLS, SYMBOLS, generator=gen).topk(len(ODDS)).indices
    return table.to(device)


def corpus(table: torch.Tensor, count: int) -> torch.Tensor:
    """Texts of the language: [count, LENGTH]."""
    device = table.device
    odds = torch.tensor(ODDS, device=device)
    text = torch.empty((count, LENGTH), dtype=torch.long, device=device)
    text[:, :2] = torch.randint(SYMBOLS, (count, 2), device=device)
    for at in range(2, LENGTH):
        choice = torch.multinomial(odds, count, replacement=True)
        text[:, at] = table[text[:, at - 2], text[:, at - 1], choice]
    return text


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, EPS)


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding in the two-halves layout. x: [batch, heads, length, size]; positions: […, length]."""
    half = x.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions.float()[..., None] * inverse
    while angle.dim() < x.dim():
        angle = angle.unsqueeze(-3)
    first, second = x.float().split(half, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden, self.size = config["hidden_size"], config["head_dim"]
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.theta = float(config["rope_theta"])
        self.q_proj = nn.Linear(hidden, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(self.size), Norm(self.size)

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)

    def keys(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key = rotate(self.k_norm(self.split(self.k_proj(x), self.kv)), positions, self.theta)
        return key, self.split(self.v_proj(x), self.kv)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        query = rotate(self.q_norm(self.split(self.q_proj(x), self.heads)), positions, self.theta)
        key, value = self.keys(x, positions)
        if context is not None:
            at = torch.arange(context.shape[1], device=x.device).expand(context.shape[:2])
            earlier, values = self.keys(context, at)
            key, value = torch.cat((earlier, key), 2), torch.cat((values, value), 2)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.input_layernorm = Norm(config["hidden_size"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config["hidden_size"])
        self.mlp = Mlp(config)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, mask, context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    """Qwen3 as SGLang loads it."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.model.norm = Norm(config["hidden_size"])
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and the hidden states that feed the drafter."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        x, features = self.model.embed_tokens(ids), []
        for number, layer in enumerate(self.model.layers):
            x = layer(x, positions, None, None)
            if number in models.TARGET_LAYER_IDS:
                features.append(x)
        return self.lm_head(self.model.norm(x)), torch.cat(features, -1)


class Drafter(nn.Module):
    """DFlash's block-parallel drafter."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm, self.hidden_norm = Norm(hidden), Norm(hidden)
        self.fc = nn.Linear(len(models.TARGET_LAYER_IDS) * hidden, hidden, bias=False)

    def forward(self, embeds: torch.Tensor, anchors: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """embeds: [batch, blocks * BLOCK, hidden]; anchors: [batch, blocks]; features: [batch, length, …]."""
        context = self.hidden_norm(self.fc(features))
        steps = torch.arange(BLOCK, device=embeds.device)
        positions = (anchors[:, :, None] + steps).flatten(1)
        block = torch.arange(positions.shape[1], device=embeds.device) // BLOCK
        own = (block[:, None] == block[None, :]).expand(len(anchors), -1, -1)
        past = (
            torch.arange(features.shape[1], device=embeds.device)
            < anchors.repeat_interleave(BLOCK, 1)[..., None]
        )
        mask = torch.cat((past, own), -1)[:, None]
        x = embeds
        for layer in self.layers:
            x = layer(x, positions, mask, context)
        return self.norm(x)


def blocks(target: Target, text: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random blocks of texts: the drafter's embeddings, anchors and the right tokens."""
    batch = len(text)
    anchors = torch.randint(4, LENGTH - BLOCK, (batch, count), device=text.device)
    at = anchors[:, :, None] + torch.arange(BLOCK, device=text.device)
    tokens = text.gather(1, at.flatten(1)).view(batch, count, BLOCK)
    seen = torch.full_like(tokens, models.MASK)
    seen[:, :, 0] = tokens[:, :, 0]
    return target.model.embed_tokens(seen.flatten(1)), anchors, tokens[:, :, 1:]


def optimizer(parameters: Any, steps: int, rate: float) -> tuple[Any, Any]:
    opt = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    return opt, torch.optim.lr_scheduler.OneCycleLR(opt, rate, total_steps=steps, pct_start=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--target-steps", type=int, default=700)
    parser.add_argument("--draft-steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    clock = time.perf_counter()
    texts = corpus(language(args.seed, args.device), 8192)
    config, _ = models.qwen3_target(args.seed, 0.0)
    draft_config, _ = models.drafter(args.seed, 1.0)
    target, drafter = Target(config).to(args.device), Drafter(draft_config).to(args.device)

    opt, schedule = optimizer(target.parameters(), args.target_steps, 2e-3)
    for step in range(args.target_steps):
        text = texts[torch.randint(len(texts), (args.batch,), device=args.device)]
        with torch.autocast(args.device, torch.bfloat16):
            logits, _ = target(text)
        loss = F.cross_entropy(logits[:, 1:-1].flatten(0, 1).float(), text[:, 2:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        if step % 100 == 99:
            print(
                f"target {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - clock:.0f} s", flush=True
            )
    entropy = -sum(p * torch.log(torch.tensor(p)).item() for p in ODDS)
    print(f"target: entropy of the language {entropy:.3f}", flush=True)

    target.requires_grad_(False)
    opt, schedule = optimizer(drafter.parameters(), args.draft_steps, 1e-3)
    for step in range(args.draft_steps):
        text = texts[torch.randint(len(texts), (args.batch,), device=args.device)]
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                _, features = target(text)
                embeds, anchors, right = blocks(target, text, 12)
            hidden = drafter(embeds, anchors, features).view(*right.shape[:2], BLOCK, -1)[:, :, 1:]
            logits = target.lm_head(hidden)
        loss = F.cross_entropy(logits.flatten(0, 2).float(), right.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        if step % 250 == 249:
            hit = (logits.argmax(-1) == right).float().mean((0, 1)).tolist()
            print(
                f"drafter {step + 1}: loss {loss.item():.3f}, right per position",
                [round(h, 2) for h in hit],
                flush=True,
            )

    for dtype in ("bf16", "fp32"):
        for name, settings, module in (("pair", config, target), ("pair-draft", draft_config, drafter)):
            tensors = {key: value.detach().cpu() for key, value in module.state_dict().items()}
            models.write(args.out / f"{name}-{dtype}", settings, tensors, dtype)
    (args.out / "language.json").write_text(json.dumps(language(args.seed, "cpu").tolist()))
    print(f"trained in {time.perf_counter() - clock:.0f} s", flush=True)


if __name__ == "__main__":
    main()
