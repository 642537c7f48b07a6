"""A model by its name, as the commands about heads need it: its tokens, and maps of what it looks at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    from regard.maps import AttentionMap
    from regard.recorder import Capture


class Model(NamedTuple):
    name: str
    module: nn.Module
    tokenizer: Any
    vocab_size: int
    context: int | None

    def encode(self, text: str, *, whole: bool = False) -> list[int]:
        """The tokens of a text; of a `whole` one with what the tokenizer puts around it."""
        if hasattr(self.tokenizer, "encode_batch"):  # of `tokenizers`
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=whole).ids
        else:
            ids = self.tokenizer(text, add_special_tokens=whole)["input_ids"]
        return ids

    @property
    def start(self) -> int | None:
        """What the tokenizer puts before a text, if it does."""
        lead = self.encode("", whole=True)
        return lead[0] if lead else None

    @property
    def boundary(self) -> int | None:
        """What may stand before random tokens: the start, or else the token that ends a text."""
        if self.start is not None:
            return self.start
        if hasattr(self.tokenizer, "token_to_id"):
            found: int | None = self.tokenizer.token_to_id("<|endoftext|>")
        else:
            found = getattr(self.tokenizer, "eos_token_id", None)
        return found

    def to(self, where: device) -> Model:
        return self._replace(module=self.module.to(where))

    def runs(
        self, heard: Callable[[Any], None] = lambda seen: None
    ) -> Callable[[Tensor], list[AttentionMap]]:
        """Reads tokens and gives the map of every layer; `heard` gets the capture, with its certificate."""
        from regard.gpt import GPT
        from regard.recorder import capture

        name = "ids" if isinstance(self.module, GPT) else "input_ids"

        def run(ids: Tensor) -> list[AttentionMap]:
            inputs: dict[str, Any] = {name: ids}
            seen: Capture = capture(self.module, inputs=inputs)
            heard(seen)
            return seen.maps

        return run

    def digest(self) -> str:
        """What the weights are recognised by."""
        import torch

        found = hashlib.sha256()
        for name, weight in self.module.state_dict().items():
            found.update(name.encode())
            found.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return found.hexdigest()


def open_model(name: str) -> Model:
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
    return Model(title, model, model.tokenizer, model.config.vocab_size, model.config.context)


def _by_transformers(name: str, reason: ValueError) -> Model:
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
    context = getattr(model.config, "max_position_embeddings", None)
    return Model(Path(name).name, model, tokenizer, len(tokenizer), context)
