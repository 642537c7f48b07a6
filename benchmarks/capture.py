"""The cost of a capture beside the plain forward pass, on models of Transformers with random weights.

    python -m benchmarks.capture [--tokens 4096] [--rounds 5] [--eager] [--out capture.json]
    python -m benchmarks.capture --encoder [--threads 1]
    python -m benchmarks.capture --device cuda [--tokens 131072] [--layers 32] [--out capture.json]
    python -m benchmarks.capture [--device cuda] --lengths 128 1024 16384 65536 --layers 8 [--threads 1]

On a CPU the models are GPT-2 small and PyTorch's encoder on its fused path, on a GPU a Llama of 8B's sizes in
bfloat16; only the logits of the last token are computed. Both sides take turns within each round, and a ratio
is the median over the rounds. `--eager` also runs eager attention with output_attentions=True, which keeps
every matrix: 10 GB at 4,096 tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
import regard.heads
from benchmarks.measure import machine
from regard.recorder import Capture

CELLS = 256


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


def resident_bytes() -> int:
    """The resident memory of this process, after freed memory was returned to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def forward(model: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids, use_cache=False, logits_to_keep=1).logits
    return logits


@torch.no_grad()
def on_cpu(tokens: int, rounds: int, eager: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = gpt2(tokens)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens))
    plain_logits = forward(model, ids)  # a warm-up
    times: list[dict[str, float]] = []
    seen = Capture()
    for _ in range(rounds):
        with Clock("cpu") as plain:
            forward(model, ids)
        del seen
        before = resident_bytes()
        with Clock("cpu") as captured, regard.capture(model) as seen:
            logits = forward(model, ids)
        grown = resident_bytes() - before
        times.append({"plain": plain.seconds, "captured": captured.seconds, "grown": grown})
    q_and_k = sum(m.q.nbytes + m.k.nbytes for m in seen)
    with Clock("cpu") as overviews:
        summaries = [m.summary(CELLS, CELLS) for m in seen]
    with Clock("cpu") as scores:
        regard.heads.describe(list(seen), ids, statistics=summaries, model="GPT-2")
    plain_time = statistics.median(x["plain"] for x in times)
    result: dict[str, Any] = {
        "model": "GPT-2 small, random weights, float32",
        "tokens": tokens,
        "same logits, to the last bit": torch.equal(logits, plain_logits),
        "certified": seen.certificate.certified,
        "plain forward s": round(plain_time, 3),
        "forward with capture, ratio": round(statistics.median(x["captured"] / x["plain"] for x in times), 3),
        "ratio of each round": [round(x["captured"] / x["plain"], 3) for x in times],
        "q and k MB": round(q_and_k / 1e6, 1),
        "resident growth over q and k": round(statistics.median(x["grown"] for x in times) / q_and_k, 3),
        "overviews and statistics of all heads, forwards": round(overviews.seconds / plain_time, 3),
        "scores of all heads, forwards": round(scores.seconds / plain_time, 3),
    }
    result |= on_fused_encoder(rounds)
    if eager:
        model.set_attn_implementation("eager")
        del summaries, seen
        before = resident_bytes()
        with Clock("cpu") as slow:
            weights = model(ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        result["eager with output_attentions, ratio"] = round(slow.seconds / plain_time, 2)
        result["eager with output_attentions, GB kept"] = round((resident_bytes() - before) / 1e9, 2)
        del weights
    return result


@torch.no_grad()
def on_fused_encoder(rounds: int) -> dict[str, Any]:
    """Capture under `nn.TransformerEncoder`, whose layers each run in one fused kernel of PyTorch."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6).eval()
    result: dict[str, Any] = {}
    for batch, tokens in ((8, 128), (1, 512), (1, 2048)):
        x, ratios = torch.randn(batch, tokens, 512), []
        model(x)
        for _ in range(rounds + 1):
            with Clock("cpu") as plain:
                expected = model(x)
            with Clock("cpu") as captured, regard.capture(model) as seen:
                output = model(x)
            ratios.append(round(captured.seconds / plain.seconds, 3))
        ratios = ratios[1:]  # the first one was a warm-up
        result[f"PyTorch's fused encoder, 6 layers of 512, 8 heads, {batch} × {tokens} tokens"] = {
            "forward with capture, ratio": statistics.median(ratios),
            "ratio of each round": ratios,
            "same output, to the last bit": torch.equal(output, expected),
            "certified": seen.certificate.certified,
        }
    return result


@torch.no_grad()
def on_cuda(tokens: int, rounds: int, layers: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = llama(tokens, layers)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device="cuda")
    forward(model, ids[:, : min(tokens, 4096)])
    model_name = f"Llama 8B shape, {layers} layers, random weights, bfloat16"
    result: dict[str, Any] = {"model": model_name, "tokens": tokens}
    times, seen = [], Capture()
    for _ in range(rounds):
        with Clock("cuda") as plain:
            plain_logits = forward(model, ids)
        del seen
        torch.cuda.reset_peak_memory_stats()
        with Clock("cuda") as captured, regard.capture(model) as seen:
            logits = forward(model, ids)
        peak = torch.cuda.max_memory_allocated()
        if len(times) == rounds - 1:
            with Clock("cuda") as overviews:
                for m in seen:
                    m.pool(CELLS, CELLS, "both")
        del seen
        with Clock("cuda") as with_overviews, regard.capture(model, overviews=True) as seen:
            other_logits = forward(model, ids)
        times.append((plain.seconds, captured.seconds, with_overviews.seconds))
        print([round(x, 2) for x in times[-1]], flush=True)
    plain_s = statistics.median(x for x, _, _ in times)
    ratios = [{"captured": y / x, "captured with overviews": z / x} for x, y, z in times]
    from_kernel = sum("Regard's kernel" in evidence.against for evidence in seen.certificate)
    return result | {
        "same logits, to the last bit": torch.equal(logits, plain_logits),
        "largest difference of logits": float((logits - plain_logits).abs().max()),
        "certified": f"{sum(evidence.certified for evidence in seen.certificate)} of {len(seen)}",
        "largest tolerance used": round(max(evidence.tolerance_used for evidence in seen.certificate), 4),
        "plain forward s": round(plain_s, 2),
        "forward with capture, ratio": round(statistics.median(x["captured"] for x in ratios), 3),
        "overviews of every head after a capture without them, forwards, once": round(
            overviews.seconds / plain_s, 3
        ),
        "forward with capture and overviews, ratio": round(
            statistics.median(x["captured with overviews"] for x in ratios), 3
        ),
        "ratios of each round": [{name: round(x, 3) for name, x in of_round.items()} for of_round in ratios],
        "layers whose attention handed out its overview": f"{from_kernel} of {len(seen)}",
        "largest difference of logits with overviews": float((other_logits - plain_logits).abs().max()),
        "kept GiB": round(seen.nbytes / 2**30, 2),
        "peak of the captured forward GiB": round(peak / 2**30, 2),
    }


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


@torch.no_grad()
def by_length(lengths: list[int], rounds: int, layers: int, device: str) -> dict[str, Any]:
    """Capture short and long texts: of Llama 8B's shape on a GPU, of a small Llama on a CPU."""
    torch.manual_seed(0)
    model = llama(max(lengths), layers) if device == "cuda" else small_llama(layers)
    shape = "Llama 8B shape, bfloat16" if device == "cuda" else "Llama of width 64, float32"
    result: dict[str, Any] = {"model": f"{shape}, {layers} layers, random weights"}
    for tokens in lengths:
        ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=device)
        times = []
        for _ in range(rounds + 3):  # the first three are a warm-up
            with Clock(device) as plain:
                expected = forward(model, ids)
            with Clock(device) as captured, regard.capture(model) as seen:
                logits = forward(model, ids)
            times.append((plain.seconds, captured.seconds))
        ratios = sorted(captured / plain for plain, captured in times[3:])
        result[f"{tokens} tokens"] = {
            "plain forward ms": round(statistics.median(x for x, _ in times[3:]) * 1e3, 2),
            "forward with capture ms": round(statistics.median(y for _, y in times[3:]) * 1e3, 2),
            "ratio": round(statistics.median(ratios), 3),
            "least and greatest": [round(ratios[0], 3), round(ratios[-1], 3)],
            "same logits, to the last bit": torch.equal(logits, expected),
            "certified": seen.certificate.certified,
        }
        del seen
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=32, help="of the model on a GPU")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lengths", type=int, nargs="+", help="short and long texts, one after another")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--encoder", action="store_true", help="PyTorch's fused encoder alone, on a CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(args.threads)
    if args.encoder:
        figures = on_fused_encoder(args.rounds)
    elif args.lengths:
        figures = by_length(args.lengths, args.rounds, args.layers, args.device)
    elif args.device == "cuda":
        figures = on_cuda(args.tokens or 131_072, args.rounds, args.layers)
    else:
        figures = on_cpu(args.tokens or 4096, args.rounds, args.eager)
    result = {"machine": machine(args.device)} | figures
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
