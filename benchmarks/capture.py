"""The cost of a capture beside the plain forward pass, on models with random weights.

    python -m benchmarks.capture [--lengths 4096] [--rounds 5] [--afterwards] [--eager] [--out capture.json]
    python -m benchmarks.capture --model small --lengths 64 1024 [--layers 8] [--threads 1]
    python -m benchmarks.capture --model encoder [--threads 1]
    python -m benchmarks.capture --device cuda --lengths 128 1024 16384 65536 --layers 8
    python -m benchmarks.capture --device cuda --lengths 131072 --overviews --afterwards

On a CPU the model is GPT-2 small, a Llama of width 64 or PyTorch's fused encoder, on a GPU a Llama
of 8B's sizes in bfloat16; only the logits of the last token are computed. Both sides take turns within each
round, and a ratio is the median over the rounds. `--overviews` captures with overviews, too, `--afterwards`
measures overviews and head scores of the capture, and `--eager` runs eager attention with
output_attentions=True, which keeps every matrix: 10 GB at 4,096 tokens.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
import regard.heads
from benchmarks.measure import machine
from regard.recorder import Capture

CELLS = 256
WARM_UP = 3  # rounds
ENCODER_SIZES = ((8, 128), (1, 512), (1, 2048))  # texts and tokens


def gpt2(tokens: int) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(n_positions=tokens, attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config).eval()


def llama(tokens: int, layers: int = 32) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=tokens,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def small_llama(layers: int) -> nn.Module:
    """A Llama of width 64: what people begin with, where every operation costs more than it computes."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Clock:
    """The seconds of a block, the GPU's work included. With one CPU thread, its own CPU time."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, 0.0

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        elif torch.get_num_threads() == 1:
            return time.process_time()
        return time.perf_counter()

    def __enter__(self) -> Clock:
        self._start = self._now()
        return self

    def __exit__(self, *_: Any) -> None:
        self.seconds = self._now() - self._start


def forward(model: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids, use_cache=False, logits_to_keep=1).logits
    return logits


@torch.no_grad()
def measure(
    model: nn.Module, run: Callable[[], Tensor], device: str, rounds: int, overviews: bool = False
) -> tuple[dict[str, Any], Capture, float]:
    """Capture `run`, which runs the model, in turn with plain runs.

    Returns figures, the last capture and the seconds of a plain run.
    """
    kinds = {"captured": {}, "captured with overviews": {"overviews": True}}
    if not overviews:
        del kinds["captured with overviews"]
    times: list[dict[str, float]] = []
    result: dict[str, Any] = {}
    seen = Capture()
    for _ in range(rounds + WARM_UP):
        with Clock(device) as plain:
            expected = run()
        seconds = {"plain": plain.seconds}
        for name, options in kinds.items():
            del seen
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            with Clock(device) as clock, regard.capture(model, **options) as seen:
                logits = run()
            seconds[name] = clock.seconds
            if device == "cuda":
                result[f"{name}: peak MiB"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
            result[f"{name}: same logits, to the last bit"] = torch.equal(logits, expected)
            result[f"{name}: certified"] = f"{sum(x.certified for x in seen.certificate)} of {len(seen)}"
            used = max(evidence.tolerance_used for evidence in seen.certificate)
            result[f"{name}: largest tolerance used"] = round(used, 4)
        times.append(seconds)
    times = times[WARM_UP:]
    plain_s = statistics.median(x["plain"] for x in times)
    result["plain forward ms"] = round(plain_s * 1e3, 2)
    for name in kinds:
        ratios = sorted(x[name] / x["plain"] for x in times)
        result[f"{name}: ms"] = round(statistics.median(x[name] for x in times) * 1e3, 2)
        result[f"{name}: ratio"] = round(statistics.median(ratios), 3)
        result[f"{name}: least and greatest ratio"] = [round(ratios[0], 3), round(ratios[-1], 3)]
    return result | {"kept MiB": round(seen.nbytes / 2**20, 1)}, seen, plain_s


@torch.no_grad()
def afterwards(seen: Capture, ids: Tensor, device: str, plain_s: float) -> dict[str, Any]:
    """What overviews and scores of every head of a capture take, in forward passes."""
    with Clock(device) as overviews:
        summaries = [m.summary(CELLS, CELLS) for m in seen]
    with Clock(device) as scores:
        regard.heads.describe(list(seen), ids, statistics=summaries, model="")
    return {
        "overviews and statistics of all heads, forwards": round(overviews.seconds / plain_s, 3),
        "scores of all heads, forwards": round(scores.seconds / plain_s, 3),
    }


@torch.no_grad()
def eager(model: nn.Module, ids: Tensor, plain_s: float) -> dict[str, Any]:
    """What eager attention takes that returns every matrix of weights."""
    model.set_attn_implementation("eager")
    with Clock("cpu") as slow:
        weights = model(ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
    return {
        "eager with output_attentions, ratio": round(slow.seconds / plain_s, 2),
        "eager with output_attentions, GB kept": round(sum(x.nbytes for x in weights) / 1e9, 2),
    }


def on_fused_encoder(rounds: int) -> dict[str, Any]:
    """Capture under `nn.TransformerEncoder`, whose layers each run in one fused kernel of PyTorch."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6).eval()
    result: dict[str, Any] = {"model": "PyTorch's fused encoder, 6 layers of 512, 8 heads"}
    for batch, tokens in ENCODER_SIZES:
        x = torch.randn(batch, tokens, 512)
        figures, _, _ = measure(model, lambda x=x: model(x), "cpu", rounds)
        result[f"{batch} × {tokens} tokens"] = figures
    return result


def by_length(args: argparse.Namespace) -> dict[str, Any]:
    """Capture texts of one length after another."""
    longest = max(args.lengths)
    model = {
        "gpt2": lambda: gpt2(longest),
        "small": lambda: small_llama(args.layers),
        "llama": lambda: llama(longest, args.layers),
    }[args.model]()
    layers = model.config.num_hidden_layers
    result: dict[str, Any] = {"model": f"{args.model}, {layers} layers, random weights"}
    for tokens in args.lengths:
        ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=args.device)
        run = functools.partial(forward, model, ids)
        figures, seen, plain_s = measure(model, run, args.device, args.rounds, args.overviews)
        if args.afterwards:
            figures |= afterwards(seen, ids, args.device, plain_s)
        del seen
        if args.eager:
            figures |= eager(model, ids, plain_s)
        result[f"{tokens} tokens"] = figures
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=["gpt2", "small", "encoder", "llama"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8, help="of a Llama")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096], help="texts, one after another")
    parser.add_argument("--overviews", action="store_true", help="capture with overviews, too")
    parser.add_argument("--afterwards", action="store_true", help="overviews and scores of the capture")
    parser.add_argument("--eager", action="store_true", help="eager attention with output_attentions=True")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.model = args.model or ("llama" if args.device == "cuda" else "gpt2")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    figures = on_fused_encoder(args.rounds) if args.model == "encoder" else by_length(args)
    text = json.dumps({"machine": machine(args.device)} | figures, indent=2, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
