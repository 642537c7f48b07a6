"""Generation speed beside Transformers' `generate`, with the same weights and threads; and without a cache.

    python -m benchmarks.generation [--threads 1] [--rounds 5] [--out generation.json] [MODEL …]

Both sides take turns within each round, and a ratio is the median over the rounds, so that other load on the
machine slows both alike. Decoding is greedy, from one prompt, and from four of different lengths, padded on
the left. MODEL is `smollm2`, `default` or `small` (random weights, 6 layers, d_model 256).
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.gpt import GPT, Config
from regard.gpt.files import loader
from regard.gpt.files.families import FAMILIES, add_head

PROMPT, NEW = 16, 64
PADDED = (16, 13, 9, 4)
LENGTHS = (256, 1024)


def open_model(name: str) -> GPT:
    if name != "small":
        return GPT.from_pretrained(name)
    torch.manual_seed(0)
    shape = {"vocab_size": 4096, "context_length": 2048, "num_layers": 6, "num_heads": 8, "d_model": 256}
    return GPT(Config(**shape, norm="rms", positions="rotary", activation="swiglu")).eval()


def to_transformers(model: GPT) -> nn.Module:
    """A Llama of Transformers with the same weights."""
    import transformers

    c = model.config
    if (c.norm, c.positions, c.activation, c.qk_norm) != ("rms", "rotary", "swiglu", False):
        raise SystemExit(f"expected a model of the Llama family, got {c}")
    other = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=c.vocab_size,
            max_position_embeddings=c.context_length,
            num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads,
            num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            hidden_size=c.d_model,
            intermediate_size=c.intermediate_size,
            rms_norm_eps=c.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rotary_base},
            attention_bias=c.qkv_bias,
            mlp_bias=c.mlp_bias,
            tie_word_embeddings=c.tie_word_embeddings,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    theirs, ours = other.state_dict(), model.state_dict()
    family = FAMILIES["llama"]
    for name, part in add_head(family.parts(c), family.prefix, c).items():
        rows = [theirs[their].shape[0] for their in part.names]
        for their, piece in zip(part.names, ours[name].split(rows), strict=True):
            theirs[their].copy_(piece)
    return other.to(model.token_embedding.weight.dtype).eval()


def seconds(run: Callable[[], object]) -> float:
    """The seconds of a call. With one thread its own CPU time, so that other processes do not count."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def beside_transformers(model: GPT, lengths: tuple[int, ...], rounds: int) -> dict[str, object]:
    """The tokens per second of both after prompts of these lengths, and whether the tokens are equal."""
    other = to_transformers(model)
    random = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, model.config.vocab_size, (n,), generator=random) for n in lengths]
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    attention_mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, -len(prompt) :], attention_mask[row, -len(prompt) :] = prompt, 1

    def theirs() -> list[Tensor]:
        output: Tensor = other.generate(
            ids, attention_mask=attention_mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        return [row[-NEW:] for row in output]

    def ours() -> list[Tensor]:
        return [row[-NEW:] for row in model.generate(prompts, max_new_tokens=NEW)]

    same = all(torch.equal(a, b) for a, b in zip(ours(), theirs(), strict=True))  # a warm-up of both
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    tokens = NEW * len(lengths)
    return {
        "same tokens": same,
        "regard tokens/s": round(statistics.median(tokens / a for a, _ in times), 2),
        "transformers tokens/s": round(statistics.median(tokens / b for _, b in times), 2),
        "ratio": round(statistics.median(b / a for a, b in times), 3),
        "ratio of each round": [round(b / a, 3) for a, b in times],
    }


@torch.inference_mode()
def beside_no_cache(model: GPT, length: int, rounds: int) -> dict[str, object]:
    """The milliseconds of the next token after `length` others, with a KV cache and without."""
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(rounds):
        cache = model.caches(length + 16)
        model.states(ids[:, :-1], cache=cache)

        def cached(cache: list = cache) -> None:
            for _ in range(8):
                model.logits(model.states(ids[:, -1:], cache=cache)[:, -1])

        times.append((seconds(cached) / 8, seconds(lambda: model.logits(model.states(ids)[:, -1]))))
    return {
        "cached ms/token": round(statistics.median(a for a, _ in times) * 1e3, 2),
        "uncached ms/token": round(statistics.median(b for _, b in times) * 1e3, 2),
        "ratio": round(statistics.median(b / a for a, b in times), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    result: dict[str, object] = {
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        "threads": arguments.threads,
        "prompt": PROMPT,
        "padded prompts": PADDED,
        "new tokens": NEW,
    }
    names = arguments.models or ["small", "smollm2", *(["default"] if loader.INCLUDED_MODEL.is_dir() else [])]
    for name in names:
        model = open_model(name)
        figures = {
            "parameters": model.num_parameters,
            "decoding": beside_transformers(model, (PROMPT,), arguments.rounds),
            "decoding, padded": beside_transformers(model, PADDED, arguments.rounds),
        }
        for length in LENGTHS:
            if length + 16 <= model.config.context_length:
                figures[f"no cache, {length} tokens"] = beside_no_cache(
                    model, length, min(arguments.rounds, 3)
                )
        result[name] = figures
        print(name, json.dumps(figures, indent=2, ensure_ascii=False), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
