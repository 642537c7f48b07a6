"""The cost of a monitor: training steps of a Llama of 8B sizes without one, with one, and on a step it reads.

    python -m benchmarks.monitor --device cuda --out monitor.json
    python -m benchmarks.monitor --tokens 256  # a small model on a CPU

A step is forward, backward and AdamW. The learning rate is 0, so that all steps do the same work on the same
weights and their losses must have the same bits. The three kinds of step take turns, and each time begins and
ends with an idle GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks.measure import machine

EVERY = 50  # steps from one reading to the next, as by default
LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 896,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}
KINDS = ("plain", "not due", "due")


def build(device: str, layers: int, tokens: int, checkpointing: bool) -> nn.Module:
    """A Llama with random weights, ready to train."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = LARGE if device == "cuda" else SMALL
    config = LlamaConfig(num_hidden_layers=layers, max_position_embeddings=tokens, use_cache=False, **sizes)
    config._attn_implementation = "sdpa"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: nn.Module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def watch(kind: str, monitor: regard.Monitor) -> AbstractContextManager[object]:
    """The monitor as a step of this kind has it."""
    if kind == "plain":
        return nullcontext()
    monitor.steps = 0 if kind == "due" else 1
    return monitor


def measure(model: nn.Module, device: str, tokens: int, rows: int, rounds: int) -> dict[str, Any]:
    """Take `rounds` steps of each kind in turn, after one of each that is not counted."""
    torch.manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=device)  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=device == "cuda")
    monitor = regard.Monitor(model, every=EVERY, rows=rows, quiet=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    peaks: dict[str, float] = {}
    losses: set[float] = set()

    def step() -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for number in range(rounds + 1):
        for kind in KINDS:
            with watch(kind, monitor):
                began = now(device)
                loss = step()
                ended = now(device)
            losses.add(loss.item())
            if number:
                seconds[kind].append(ended - began)
            elif device == "cuda":
                peaks[kind] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
                torch.cuda.reset_peak_memory_stats()
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    plain, idle, due = (medians[kind] for kind in KINDS)
    record = monitor.history.records[-1]
    return {
        "seconds of a step": {kind: round(x, 5) for kind, x in medians.items()},
        "all seconds": {kind: [round(x, 5) for x in times] for kind, times in seconds.items()},
        "a due step to a plain one": round(due / plain, 4),
        "a step that is not due to a plain one": round(idle / plain, 4),
        f"cost at every={EVERY}, of training time": round(
            ((EVERY - 1) * idle + due) / (EVERY * plain) - 1, 5
        ),
        "the same without steps that are not due": round((due - plain) / (EVERY * plain), 5),
        "losses have the same bits": len(losses) == 1,
        "loss": sorted(losses),
        "layers certified": [sum(x.certified for x in record.layers.values()), len(record.layers)],
        "readings": len(monitor.history.records),
        "peak GiB": peaks,
    }


def now(device: str) -> float:
    """The time, once the GPU has nothing to do."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=None, help="by default 512, on a GPU 16,384")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations to save memory")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tokens = args.tokens or (16384 if args.device == "cuda" else 512)
    torch.manual_seed(0)
    model = build(args.device, args.layers, tokens, args.checkpointing)
    result = {
        "machine": machine(args.device),
        "model": "Llama, 8B sizes, bfloat16" if args.device == "cuda" else "a small Llama, float32",
        "layers": args.layers,
        "tokens": tokens,
        "rows": args.rows,
        "checkpointing": args.checkpointing,
        **measure(model, args.device, tokens, args.rows, args.rounds),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
