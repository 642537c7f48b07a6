"""Training speed beside a plain PyTorch GPT and Transformers' GPT-2 of the same shape, in one run.

    PYTHONPATH=src python benchmarks/training.py --device cpu
    PYTHONPATH=src python benchmarks/training.py --device cuda --compile

Each model takes the same steps (forward, loss, backward, clipping, fused AdamW) on the same tokens, in turns,
so that a busy machine is as unfair to one as to the others. Prints JSON: tokens a second and ratios to ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.gpt import GPT, Config
from regard.gpt.training.optimizer import adamw

SHAPES = {
    "cpu": {"layers": 4, "heads": 4, "width": 128, "context": 64, "batch": 12},
    "cuda": {"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 64},
}
VOCABULARY = 65


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, width = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """What one writes with `F.scaled_dot_product_attention` and nothing else."""

    def __init__(self, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(PlainBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.places(places))
        return F.linear(self.norm(x), self.tokens.weight)


def models(layers: int, heads: int, width: int, context: int) -> dict[str, nn.Module]:
    sizes = {"layers": layers, "heads": heads, "width": width, "context": context}
    found: dict[str, nn.Module] = {
        "regard": GPT(Config(vocab_size=VOCABULARY, **sizes)),
        "plain": PlainGPT(**sizes),
    }
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return found
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return found | {"transformers": GPT2LMHeadModel(config)}


def stepper(model: nn.Module, device: str, compiled: bool) -> Callable[[Tensor], None]:
    """One training step of a model, on windows (B, context + 1)."""
    model.to(device).train()
    optimizer = adamw(model, weight_decay=0.1, betas=(0.9, 0.99))

    def loss(ids: Tensor) -> Tensor:
        answer = model(ids[:, :-1])
        logits = answer if isinstance(answer, Tensor) else answer.logits
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    forward = torch.compile(loss, dynamic=False) if compiled else loss

    def step(ids: Tensor) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = forward(ids)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(device: str, compiled: bool, rounds: int, steps: int) -> dict[str, object]:
    shape = dict(SHAPES[device])
    batch, context = shape.pop("batch"), shape["context"]
    ids = torch.randint(0, VOCABULARY, (batch, context + 1), device=device)
    steppers = {name: stepper(model, device, compiled) for name, model in models(**shape).items()}
    taken: dict[str, list[float]] = {name: [] for name in steppers}
    order = list(steppers)
    for number in range(rounds + 1):
        for name in order:
            began = now(device)
            for _ in range(steps):
                steppers[name](ids)
            if number > 0:  # the first round warms up
                taken[name].append((now(device) - began) / steps)
        order = order[1:] + order[:1]  # everyone is first in turn
    # The least is what the code costs; the rest is what else the machine was doing.
    speed = {name: batch * context / min(times) for name, times in taken.items()}
    ratios = {
        name: [theirs / ours for theirs, ours in zip(times, taken["regard"], strict=True)]
        for name, times in taken.items()
        if name != "regard"
    }
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "compiled": compiled,
        "shape": {**shape, "batch": batch},
        "rounds": rounds,
        "steps a round": steps,
        "tokens_per_second": {name: round(value) for name, value in speed.items()},
        "regard_to_others": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        "regard_to_others, each round": {name: [round(x, 3) for x in each] for name, each in ratios.items()},
    }


def now(device: str) -> float:
    """Seconds; of one CPU thread its own, so that what else the machine does is not counted."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--steps", type=int, default=5, help="steps a round (30 for a GPU, which runs behind)"
    )
    arguments = parser.parse_args()
    found = measure(arguments.device, arguments.compile, arguments.rounds, arguments.steps)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
