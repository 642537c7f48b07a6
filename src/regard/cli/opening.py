"""What a command looks at: a model by its name, or a saved capture, as what the page needs of it.

The page knows no models. This file hands it functions: one that reads a text with a model, one that goes on
with a text and measures what a cache saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from regard.gpt import GPT
    from regard.recorder import Seen
    from regard.show.server import Generate, Read
    from regard.show.streaming import Tell


class Opened(NamedTuple):
    """A model that can be asked."""

    name: str
    read: Read
    generate: Generate | None
    run: Path | None
    """The folder of the training run that made it, if that is there."""


def open_model(name: str) -> Opened:
    """The model in the box, smollm2, a folder, a .gguf file or a name on the hub.

    What `regard.gpt` does not know is opened with Transformers, if that is installed.
    """
    from regard.gpt import GPT

    try:
        model = GPT.from_pretrained(name)
    except ValueError as error:
        if "model_type: expected one of" not in str(error):
            raise
        return _by_transformers(name, error)
    if model.tokenizer is None:
        raise ValueError(f"model: {name} came without a tokenizer, so that it cannot read a text")
    title = "The model in the box" if name == "default" else Path(name).name
    read = reader(model, model.tokenizer, title, model.config.context)
    return Opened(title, read, generator(model), _run_of(name))


def reader(model: nn.Module, tokenizer: Any, title: str, context: int | None) -> Read:
    """Reads a text with a model and says how far it is, layer by layer."""
    from regard.recorder.capture import capture
    from regard.recorder.spelling import encoded

    def read(text: str, tell: Tell) -> Seen:
        tokens = encoded(tokenizer, text)["input_ids"].shape[1]
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
    from regard.gpt.caching import Both, with_and_without
    from regard.recorder.spelling import encoded, spelled

    def generate(text: str, *, tokens: int, window: int, sinks: int) -> Iterator[dict[str, object]]:
        ids = encoded(model.tokenizer, text)["input_ids"]
        steps = with_and_without(model, ids[0].tolist(), tokens=tokens, window=window, sinks=sinks)
        config = model.config
        yield {
            "start": {
                "tokens": spelled(model.tokenizer, ids)[0],
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
            line = {k: v._asdict() if isinstance(v, Both) else v for k, v in step._asdict().items()}
            yield {"step": {"token": spelled(model.tokenizer, ids.new_tensor([[step.id]]))[0][0], **line}}
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


def _by_transformers(name: str, reason: ValueError) -> Opened:
    try:
        from transformers import AutoModel, AutoTokenizer, logging
    except ImportError:
        raise ValueError(f"{reason}; Transformers knows more: pip install 'regard[transformers]'") from None
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModel.from_pretrained(name, use_safetensors=True).eval()
    except Exception as error:  # whatever a folder that somebody else wrote comes up with
        first = str(error).strip().split("\n")[0]
        raise ValueError(f"model: {name} could not be opened ({type(error).__name__}: {first})") from None
    title = Path(name).name
    context = getattr(model.config, "max_position_embeddings", None)
    return Opened(title, reader(model, tokenizer, title, context), None, _run_of(name))


def _run_of(name: str) -> Path | None:
    from regard.gpt.loading import BOX

    folder = BOX if name == "default" else Path(name)
    return folder if (folder / "heads.jsonl").is_file() else None
