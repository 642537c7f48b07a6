"""Training speed of Regard's GPT, a plain PyTorch GPT and Transformers' GPT-2 of the same sizes, in one run.

    PYTHONPATH=src python benchmarks/training.py --device cpu
    PYTHONPATH=src python benchmarks/training.py --device cuda --compile

Each model takes the same steps (forward, loss, backward, clipping, fused AdamW) on the same tokens, in turns,
so that other load on the machine slows all of them alike. Prints JSON: tokens per second, and the ratio of
Regard's speed to each of the others'.
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
    "cpu": {"num_layers": 4, "num_heads": 4, "d_model": 128, "context_length": 64, "batch_size": 12},
    "cuda": {"num_layers": 6, "num_heads": 6, "d_model": 384, "context_length": 256, "batch_size": 64},
}
VOCAB_SIZE = 65


class PlainBlock(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, d_model = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, d_model))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """A GPT written with `F.scaled_dot_product_attention` and nothing else."""

    def __init__(self, num_layers: int, num_heads: int, d_model: int, context_length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB_SIZE, d_model), nn.Embedding(context_length, d_model)
        self.blocks = nn.Sequential(*(PlainBlock(d_model, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.positions(positions))
        return F.linear(self.norm(x), self.tokens.weight)


def make_models(num_layers: int, num_heads: int, d_model: int, context_length: int) -> dict[str, nn.Module]:
    """The models by name; Transformers' only if it is installed."""
    sizes = {
        "num_layers": num_layers,
        "num_heads": num_heads,
        "d_model": d_model,
        "context_length": context_length,
    }
    models: dict[str, nn.Module] = {
        "regard": GPT(Config(vocab_size=VOCAB_SIZE, **sizes)),
        "plain": PlainGPT(**sizes),
    }
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return models
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=context_length,
        n_embd=d_model,
        n_layer=num_layers,
        n_head=num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return models | {"transformers": GPT2LMHeadModel(config)}


def make_step(model: nn.Module, device: str, compiled: bool) -> Callable[[Tensor], None]:
    """A function that takes one training step of a model on windows (B, context_length + 1)."""
    model.to(device).train()
    optimizer = adamw(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))

    def loss(ids: Tensor) -> Tensor:
        output = model(ids[:, :-1])
        logits = output if isinstance(output, Tensor) else output.logits
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
    """The seconds of a step of each model, as speeds and ratios, over `rounds` of `steps` steps."""
    shape = dict(SHAPES[device])
    batch_size, context_length = shape.pop("batch_size"), shape["context_length"]
    ids = torch.randint(0, VOCAB_SIZE, (batch_size, context_length + 1), device=device)
    step_functions = {
        name: make_step(model, device, compiled) for name, model in make_models(**shape).items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in step_functions}
    order = list(step_functions)
    for number in range(rounds + 1):
        for name in order:
            start = now(device)
            for _ in range(steps):
                step_functions[name](ids)
            if number > 0:  # the first round is a warm-up
                seconds[name].append((now(device) - start) / steps)
        order = order[1:] + order[:1]  # each model goes first in turn
    # The fastest round has the least of the machine's other load.
    speed = {name: batch_size * context_length / min(times) for name, times in seconds.items()}
    ratios = {
        name: [theirs / ours for theirs, ours in zip(times, seconds["regard"], strict=True)]
        for name, times in seconds.items()
        if name != "regard"
    }
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "compiled": compiled,
        "shape": {**shape, "batch_size": batch_size},
        "rounds": rounds,
        "steps a round": steps,
        "tokens_per_second": {name: round(value) for name, value in speed.items()},
        "regard_to_others": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        "regard_to_others, each round": {name: [round(x, 3) for x in each] for name, each in ratios.items()},
    }


def now(device: str) -> float:
    """Seconds. On one CPU thread its own CPU time, so that other processes do not count."""
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
        "--steps", type=int, default=5, help="steps per round (30 for a GPU, which runs asynchronously)"
    )
    arguments = parser.parse_args()
    result = measure(arguments.device, arguments.compile, arguments.rounds, arguments.steps)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
