"""Captures in many threads at once, nested, of copies, in abandoned generators and around exceptions.

Whatever the others do, a capture holds its own text and exactly the weights that a capture alone holds; a
model that nobody captures any more is as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.gpt import GPT, Config
from regard.recorder import Capture
from tests.attack.progress import counted

DRAWS = 300
LAYERS, VOCABULARY = 3, 97


class Encoder(nn.Module):
    """PyTorch's own encoder over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.embedding(ids))


def llama(implementation: str) -> nn.Module:
    """A small model of Transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(implementation)
    return model


def gpt() -> nn.Module:
    """A small GPT of ours."""
    sizes = {"context_length": 128, "num_layers": LAYERS, "d_model": 32, "num_heads": 4}
    return GPT(Config(vocab_size=VOCABULARY, **sizes))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama, sdpa": lambda: llama("sdpa"),
    "Llama, eager": lambda: llama("eager"),
    "Llama, regard": lambda: llama("regard"),
    "GPT": gpt,
    "torch.nn.TransformerEncoder": Encoder,
}


def state(model: nn.Module) -> list[Any]:
    """Everything that a capture might leave in a model and its classes."""
    return [
        (name, sorted(vars(module)), len(module._forward_hooks), type(module).forward)
        for name, module in model.named_modules()
    ] + [getattr(type(model), "states", None), torch.nn.functional.scaled_dot_product_attention]


class Attack:
    """One model, some texts with the weights that a capture alone gives, and threads that capture at once."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self.name, self.draw = name, draw
        torch.manual_seed(draw.getrandbits(32))
        self.model = MODELS[name]().eval()
        self.before = state(self.model)
        self.texts = [torch.randint(0, VOCABULARY, (1, draw.randint(2, 24))) for _ in range(4)]
        self.expected = [self.weights(regard.capture(self.model, inputs=(ids,))) for ids in self.texts]
        self.captures, self.errors = 0, []
        self.lock = threading.Lock()

    def weights(self, seen: Capture) -> list[Tensor]:
        """The dense weights of every layer."""
        return [attention_map.to_dense() for attention_map in seen]

    def check(self, seen: Capture, text: int, way: str) -> None:
        """Compare a capture with that of the same text alone."""
        with self.lock:
            self.captures += 1
        assert len(seen.layers) == LAYERS, f"{way}: {len(seen.layers)} layers"
        assert not seen.passes, f"{way}: {len(seen.passes)} more passes"
        assert seen.ids is not None, f"{way}: no text"
        assert torch.equal(seen.ids, self.texts[text]), f"{way}: another text"
        assert seen.certificate.certified, f"{way}: {seen.certificate}"
        assert not seen.missing, f"{way}: missing {seen.missing}"
        for weights, expected in zip(self.weights(seen), self.expected[text], strict=True):
            assert weights.shape == expected.shape, f"{way}: {weights.shape}"
            assert torch.allclose(weights, expected, atol=1e-5), f"{way}: other weights"

    # The ways to capture. Each takes the number of a text.

    def call(self, text: int) -> None:
        """Run the model once."""
        self.check(regard.capture(self.model, inputs=(self.texts[text],)), text, "call")

    def block(self, text: int) -> None:
        """Run the model inside a block."""
        with torch.no_grad(), regard.capture(self.model) as seen:
            self.model(self.texts[text])
        self.check(seen, text, "block")

    def nested(self, text: int) -> None:
        """Capture inside a capture: both hear the call."""
        with torch.no_grad(), regard.capture(self.model) as outer, regard.capture(self.model) as inner:
            self.model(self.texts[text])
        self.check(outer, text, "nested, outer")
        self.check(inner, text, "nested, inner")

    def uncaptured(self, text: int) -> None:
        """Run the model and capture nothing."""
        with torch.no_grad():
            self.model(self.texts[text])

    def copied(self, text: int) -> None:
        """Copy the model inside a capture and run the copy, which the capture does not hear."""
        with torch.no_grad(), regard.capture(self.model) as seen:
            twin = copy.deepcopy(self.model)
            twin(self.texts[0])
            self.model(self.texts[text])
        self.check(seen, text, "beside a copy")
        seen = regard.capture(twin, inputs=(self.texts[text],))
        self.check(seen, text, "of a copy")

    def failing(self, text: int) -> None:
        """Raise inside a capture."""
        with contextlib.suppress(KeyError), torch.no_grad(), regard.capture(self.model):
            self.model(self.texts[text])
            raise KeyError("mine")

    def abandoned(self, text: int) -> None:
        """Leave a generator inside a capture, capture meanwhile, and give the generator up."""

        def generator() -> Iterator[None]:
            with torch.no_grad(), regard.capture(self.model):
                self.model(self.texts[0])
                yield
                raise AssertionError("nobody asks for more")

        first = generator()
        next(first)
        self.block(text)
        first.close()
        self.block(text)
        second = generator()
        next(second)
        # It is closed in another thread, and so in another context.
        closing = threading.Thread(target=second.close)
        closing.start()
        closing.join()
        self.block(text)

    def two_models(self, text: int) -> None:
        """Capture two models in one block each, and run them in turn."""
        other = copy.deepcopy(self.model)
        with torch.no_grad(), regard.capture(other) as second, regard.capture(self.model) as first:
            other(self.texts[text])
            self.model(self.texts[-1])
        self.check(first, len(self.texts) - 1, "the first of two models")
        self.check(second, text, "the second of two models")

    def tasks(self, text: int) -> None:
        """Two asynchronous tasks that capture and give way to each other."""

        async def task(number: int) -> None:
            with torch.no_grad(), regard.capture(self.model) as seen:
                await asyncio.sleep(0)
                self.model(self.texts[number])
                await asyncio.sleep(0)
            self.check(seen, number, "task")

        async def both() -> None:
            await asyncio.gather(task(text), task(0))

        asyncio.run(both())

    WAYS = (call, block, nested, uncaptured, copied, failing, abandoned, two_models, tasks)

    def run(self, threads: int) -> None:
        """Let threads capture in drawn ways at once, and compare the model with what it was."""
        plans = [
            [(self.draw.choice(self.WAYS), self.draw.randrange(len(self.texts))) for _ in range(3)]
            for _ in range(threads)
        ]
        start = threading.Barrier(threads)

        def work(plan: list[tuple[Callable[[Attack, int], None], int]]) -> None:
            start.wait()
            for way, text in plan:
                try:
                    way(self, text)
                except Exception as error:
                    self.errors.append(f"{self.name}, {way.__name__}: {type(error).__name__}: {error}")

        workers = [threading.Thread(target=work, args=(plan,)) for plan in plans]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        gc.collect()
        if state(self.model) != self.before:
            self.errors.append(f"{self.name}: the model is not as it was")


def attack(draws: int, seed: int) -> dict[str, int | float]:
    """Draw models, threads and what each thread does."""
    captures = 0
    most = 0
    for number in counted(draws, "captures"):
        draw = random.Random(f"{seed} {number}")
        one = Attack(draw.choice(list(MODELS)), draw)
        threads = draw.randint(1, 6)
        one.run(threads)
        assert not one.errors, f"seed {seed}, draw {number}: {one.errors}"
        captures, most = captures + one.captures, max(most, threads)
    return {"captures": captures, "most threads at once": most, "wrong captures": 0}
