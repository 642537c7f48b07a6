"""A model as the page needs it.

The page knows no models. This file hands it functions: one that reads a text with a model, one that goes on
with a text and measures what a cache saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.cli.models import open_model

if TYPE_CHECKING:
    from torch import nn

    from regard.gpt import GPT
    from regard.recorder import Capture
    from regard.show.server.app import Generate, Read
    from regard.show.server.line_stream import Tell


class Opened(NamedTuple):
    """A model that can be asked."""

    name: str
    read: Read
    generate: Generate | None
    run: Path | None
    """The folder of the training run that made it, if that is there."""


def open_for_page(name: str) -> Opened:
    """A model by its name (see `models`), ready to read and, if it is a GPT of ours, to write."""
    from regard.gpt import GPT

    model = open_model(name)
    read = reader(model.module, model.tokenizer, model.name, model.context)
    generate = generator(model.module) if isinstance(model.module, GPT) else None
    return Opened(model.name, read, generate, _run_of(name))


def reader(model: nn.Module, tokenizer: Any, title: str, context: int | None) -> Read:
    """Reads a text with a model and says how far it is, layer by layer."""
    from regard.recorder import capture
    from regard.recorder.tokens import encode_text

    def read(text: str, tell: Tell) -> Capture:
        tokens = encode_text(tokenizer, text)["input_ids"].shape[1]
        if context is not None and tokens > context:
            raise ValueError(
                f"text: expected at most {context:,} tokens, which is how much this model can read, "
                f"got {tokens:,}: shorten it"
            )
        with _told(model, tell):
            seen = capture(model, text=text, tokenizer=tokenizer, values=True)
        seen.model = title
        return seen

    return read


def generator(model: GPT) -> Generate:
    """Goes on with a text; the lines are {"start": …}, a {"step": …} for each token, {"end": …}."""
    from regard.gpt.cache_demo import CacheTiming, compare_with_and_without_cache
    from regard.recorder.tokens import decode_tokens, encode_text

    def generate(text: str, *, tokens: int, window: int, sinks: int) -> Iterator[dict[str, object]]:
        ids = encode_text(model.tokenizer, text)["input_ids"]
        steps = compare_with_and_without_cache(
            model, ids[0].tolist(), tokens=tokens, window=window, sinks=sinks
        )
        config = model.config
        yield {
            "start": {
                "tokens": decode_tokens(model.tokenizer, ids)[0],
                "layers": config.layers,
                "heads": config.heads,
                "kv_heads": config.kv_heads,
                "context": config.context,
                "window": window,
                "sinks": sinks,
            }
        }
        written: list[int] = []
        for step in steps:
            written.append(step.id)
            line = {k: v._asdict() if isinstance(v, CacheTiming) else v for k, v in step._asdict().items()}
            yield {
                "step": {"token": decode_tokens(model.tokenizer, ids.new_tensor([[step.id]]))[0][0], **line}
            }
        ended = bool(written) and written[-1] in config.end
        why = "end" if ended else "tokens" if len(written) == tokens else "context"
        yield {"end": {"why": why, "text": model.tokenizer.decode(written) if model.tokenizer else ""}}

    return generate


@contextmanager
def _told(model: nn.Module, tell: Tell) -> Iterator[None]:
    """Says after each layer that it is done. The longest list of modules in a model holds its layers."""
    from torch import nn

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    layers = max(lists, key=len, default=nn.ModuleList())
    tell("reading", 0, len(layers))
    hooks = [
        layer.register_forward_hook(lambda *_, done=number: tell("reading", done, len(layers)))
        for number, layer in enumerate(layers, start=1)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run_of(name: str) -> Path | None:
    from regard.gpt.loader import BOX

    folder = BOX if name == "default" else Path(name)
    return folder if (folder / "heads.jsonl").is_file() else None
