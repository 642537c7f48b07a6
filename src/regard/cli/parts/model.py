"""A model by its name, as the commands use it: it reads texts, gives the maps of tokens, and generates.

The page and the head table know no models; this file hands them functions. It knows no pictures.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.gpt import GPT
from regard.gpt.files.folder import CONFIG
from regard.gpt.files.loader import INCLUDED_MODEL, locate, open_tensors
from regard.gpt.training.history import has_history
from regard.support.characters import MOST_PIECES
from regard.support.files import ModelFileError, converting_errors, read_json
from regard.support.imports import MissingExtraError, extra

if TYPE_CHECKING:
    from regard.maps import AttentionMap, LinearAttentionMap
    from regard.recorder import Capture
    from regard.show.data.cuts import Cut
    from regard.show.server.jobs import ReportProgress

WIDTHS = ("d_model", "hidden_size", "n_embd")  # how configurations call the width of the residual stream
DEPTHS = ("num_layers", "num_hidden_layers", "n_layer")  # and the number of layers
STREAM_BYTES = 16  # of the residual stream for each token, layer and channel: what heads and MLPs add
MOST_STREAM = 1 << 30  # bytes of the residual stream that a page may take
PACKED = 8  # the most weights that a quantised model packs into one stored number


@dataclass
class Model:
    """A model with its tokenizer."""

    title: str
    module: nn.Module
    tokenizer: Any
    vocab_size: int
    context: int | None
    """The most tokens that it can read, if there is a limit."""
    run: Path | None = None
    """The folder of the training run that made it, if that is there."""
    predicts: bool = False
    """Whether it gives the logits of the next token at each position."""

    @classmethod
    def open(cls, name: str, *, to_generate: bool = False) -> Model:
        """The included model, smollm2, a folder, a .gguf file or a name on the hub.

        A model that `regard.gpt` does not know is opened with Transformers, unless it is `to_generate`.
        """
        try:
            model = GPT.from_pretrained(name)
        except ValueError as error:
            # A folder of another model type is the only failure that Transformers could do better with.
            if to_generate or "model_type: expected one of" not in str(error):
                raise
            return cls._open_with_transformers(name, error)
        return cls.of(model, "The included model" if name == "default" else Path(name).name, _run_of(name))

    @classmethod
    def of(cls, model: GPT, title: str, run: Path | None = None) -> Model:
        """A GPT that is open already."""
        if model.tokenizer is None:
            raise ValueError(f"model: {title} came without a tokenizer, so that it cannot read a text")
        vocab_size, context = model.config.vocab_size, model.config.context_length
        return cls(title, model, model.tokenizer, vocab_size, context, run, predicts=True)

    @classmethod
    def _open_with_transformers(cls, name: str, reason: ValueError) -> Model:
        try:
            with extra("transformers", "a model type that Regard's GPT does not have"):
                from transformers import AutoTokenizer
        except MissingExtraError as error:
            raise ValueError(f"{reason}; {error}") from None

        folder = locate(name)
        with _opening(folder):
            tokenizer = AutoTokenizer.from_pretrained(name)
            auto, predicts = _model_kind(folder)
            # use_safetensors: a pickle runs any code in it when it is opened.
            model = auto.from_pretrained(name, use_safetensors=True).eval()
        context = getattr(model.config, "max_position_embeddings", None)
        return cls(Path(name).name, model, tokenizer, len(tokenizer), context, predicts=predicts)

    def to(self, device: torch.device) -> Model:
        self.module.to(device)
        return self

    def encode(self, text: str, *, whole: bool = False) -> list[int]:
        """The tokens of a text; if it is `whole`, with the special tokens around it."""
        from regard.recorder.tokens_of_maps.tokens import encode_ids

        return encode_ids(self.tokenizer, text, special=whole)

    @cached_property
    def start(self) -> int | None:
        """The token that the tokenizer puts before a text, if it does."""
        from regard.recorder.tokens_of_maps.tokens import start_tokens

        return next(iter(start_tokens(self.tokenizer)), None)

    @property
    def boundary(self) -> int | None:
        """The token to put before random tokens: the start, or else the token that ends a text."""
        if self.start is not None:
            return self.start
        # `tokenizers.Tokenizer` has no eos_token_id; Transformers' tokenizers have, and no token_to_id.
        if hasattr(self.tokenizer, "token_to_id"):
            end: int | None = self.tokenizer.token_to_id("<|endoftext|>")
        else:
            end = getattr(self.tokenizer, "eos_token_id", None)
        return end

    def read(
        self,
        text: str,
        tell: ReportProgress = lambda doing, done, of: None,
        *,
        first: int | None = None,
        continuation: Sequence[int] = (),
    ) -> Capture:
        """Capture the model while it reads a text; `tell` is called after each layer.

        The text is tokenised once: a long one takes seconds.

        - `first`: how many tokens to read; all by default.
        - `continuation`: the ids of tokens that the model generated, which are read after the text.
        """
        from regard.recorder.tokens_of_maps.tokens import TextTooLongError, encode_text

        encoding = {name: ids[:, :first] for name, ids in encode_text(self.tokenizer, text).items()}
        prompt = encoding["input_ids"].shape[1]
        if continuation:
            if not all(0 <= number < self.vocab_size for number in continuation):
                raise ValueError(f"continuation: expected ids from 0 to {self.vocab_size - 1}, got another")
            ids = encoding["input_ids"]
            encoding = {"input_ids": torch.cat([ids, ids.new_tensor([continuation])], 1)}
        tokens = prompt + len(continuation)
        if self.context is not None and tokens > self.context:
            raise TextTooLongError(tokens, self.context)
        seen = self._capture(encoding, tell)
        if continuation:
            seen.boundary = prompt
            seen.seal()
        return seen

    def run_cut(
        self, seen: Capture, cuts: Sequence[Cut], tell: ReportProgress = lambda doing, done, of: None
    ) -> Capture:
        """Capture the model while it reads the same tokens again with some of it cut.

        `cuts` are heads and edges, as the page names them; `tell` is called after each layer.
        """
        from regard.interventions import ablate, block, intervene
        from regard.show.data.cuts import HeadCut

        if seen.ids is None:
            raise ValueError("text: expected one whose tokens are known, got one without: read it again")
        edits = []
        for cut in cuts:
            layer = seen.layer(cut.layer)
            if isinstance(cut, HeadCut):
                edits.append(ablate(layer.key, cut.head))
            else:
                T, S = layer.shape[2:]
                edges = (_positions(cut.queries, T), _positions(cut.keys, S))
                edits.append(block(layer.key, cut.head, edges=edges))
        is_token = seen.attention_mask if seen.attention_mask is not None else torch.ones_like(seen.ids)
        try:
            with intervene(self.module, *edits):
                return self._capture({"input_ids": seen.ids, "attention_mask": is_token.long()}, tell)
        except RuntimeError as error:  # such as an edit that did not act: a sentence for the reader
            raise ValueError(str(error)) from error

    def _capture(self, encoding: dict[str, Tensor], tell: ReportProgress) -> Capture:
        """Capture the model while it reads tokens, with its predictions if it makes any."""
        from regard.recorder import capture
        from regard.recorder.model_inputs import model_inputs

        inputs: dict[str, Any] = model_inputs(self.module, encoding)
        with _telling_layers(self.module, tell):
            seen: Capture = capture(
                self.module,
                inputs=inputs,
                tokenizer=self.tokenizer,
                values=True,
                contributions=self._records_stream(encoding["input_ids"].shape[1]),
                predictions=self.predicts,
            )
        seen.model = self.title
        return seen

    def _records_stream(self, tokens: int) -> bool:
        """Whether memory allows to record what heads and MLPs add while the model reads so many tokens."""
        config = getattr(self.module, "config", None)
        # Multimodal configs (Gemma 3, Qwen-VL) keep the sizes of their text model in text_config.
        config = getattr(config, "text_config", None) or config
        width, layers = (
            next((n for name in names if isinstance(n := getattr(config, name, None), int)), None)
            for names in (WIDTHS, DEPTHS)
        )
        if width is None or layers is None:
            return False
        return tokens * width * layers * STREAM_BYTES <= MOST_STREAM

    def maps(
        self, ids: Tensor, check: Callable[[Capture], None] = lambda capture: None
    ) -> list[AttentionMap | LinearAttentionMap]:
        """The map of every layer for tokens (B, T); `check` gets the capture, with its certificate."""
        from regard.recorder import capture
        from regard.recorder.model_inputs import model_inputs

        inputs: dict[str, Any] = model_inputs(self.module, {"input_ids": ids})
        # Nobody reads the logits: over a vocabulary of 128,256, those of 8,192 tokens take 2.1 GB.
        if "logits_to_keep" in inspect.signature(self.module.forward).parameters:
            inputs["logits_to_keep"] = 1
        seen: Capture = capture(self.module, inputs=inputs)
        check(seen)
        return seen.maps

    @property
    def can_generate(self) -> bool:
        return isinstance(self.module, GPT)

    @property
    def _gpt(self) -> GPT:
        if not isinstance(self.module, GPT):
            raise ValueError(f"model: {self.title} can be read with, but Regard cannot generate with it")
        return self.module

    def stream(self, prompt: str, *, stop: list[str], **options: Any) -> Iterator[str]:
        """Continue a prompt, piece by piece. Options are those of `GPT.stream`."""
        model = self._gpt
        return model.stream(prompt, stop=[*model.config.eos_token_id, *stop], **options)

    def generate(self, text: str, *, tokens: int, temperature: float = 0.0) -> Iterator[dict[str, object]]:
        """Continue a text for the page, which shows what a cache saves.

        The lines are {"start": …}, a {"step": …} for each token, and {"end": …}.
        """
        from regard.gpt.cache_demo import CacheTiming, compare_with_and_without_cache
        from regard.recorder.tokens_of_maps.tokens import decode_tokens, encode_text

        model = self._gpt
        ids = encode_text(self.tokenizer, text)["input_ids"]
        steps = compare_with_and_without_cache(model, ids[0].tolist(), tokens=tokens, temperature=temperature)
        config = model.config
        yield {
            "start": {
                "tokens": decode_tokens(self.tokenizer, ids)[0],
                "layers": config.num_layers,
                "heads": config.num_heads,
                "kv_heads": config.num_kv_heads,
                "context": config.context_length,
            }
        }
        written: list[int] = []
        for step in steps:
            written.append(step.token_id)
            line = {k: v._asdict() if isinstance(v, CacheTiming) else v for k, v in step._asdict().items()}
            # With the tokens before it, since a character of Chinese or an emoji may be cut into up to four
            # tokens.
            token = decode_tokens(self.tokenizer, ids.new_tensor([written[-MOST_PIECES:]]))[0][-1]
            yield {"step": {"token": token, **line}}
        ended = bool(written) and written[-1] in config.eos_token_id
        why = "end" if ended else "tokens" if len(written) == tokens else "context"
        yield {"end": {"why": why, "text": self.tokenizer.decode(written)}}

    def digest(self) -> str:
        """SHA-256 of the weights."""
        sha256 = hashlib.sha256()
        for name, weight in self.module.state_dict().items():
            sha256.update(name.encode())
            # view(uint8): NumPy has no bfloat16.
            sha256.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return sha256.hexdigest()


def open_module(name: str) -> nn.Module:
    """Open a model by its name, without a tokenizer: as Transformers runs it, since users train it so.

    The included model, a .gguf file, and any model where Transformers is missing, are Regard's GPT.
    """
    from importlib.util import find_spec

    folder = locate(name)
    config = read_json(folder / CONFIG, ModelFileError) if folder.is_dir() else {}
    # A .gguf file has no config here, and `regard` is the type of our own folders: both are read by GPT
    # alone.
    if find_spec("transformers") is None or config.get("model_type", "regard") == "regard":
        return GPT.from_pretrained(name)
    with _opening(folder):
        auto, _ = _model_kind(folder)
        model: nn.Module = auto.from_pretrained(folder, use_safetensors=True).eval()
        return model


@contextmanager
def _opening(folder: Path) -> Iterator[None]:
    """Inside the block, a model is opened with Transformers, which is quiet; its errors name the folder."""
    from transformers import logging

    words: Any = logging
    level, bar = words.get_verbosity(), words.is_progress_bar_enabled()
    words.set_verbosity_error()
    words.disable_progress_bar()
    try:
        with converting_errors(folder, ModelFileError, "a model that Transformers can open"):
            _check_sizes(folder)
            yield
    finally:
        words.set_verbosity(level)
        if bar:
            words.enable_progress_bar()


def _check_sizes(folder: Path) -> None:
    """Raise an error if the config of a model of Transformers asks for more than its weights can fill.

    Building a million layers would take minutes, and weights that are not in the files any memory.
    """
    from transformers import AutoConfig, AutoModel

    tensors = open_tensors(folder)
    for name, value in _numbers(read_json(folder / CONFIG, ModelFileError)):
        if "layer" in name and value > len(tensors):
            raise ModelFileError(
                f"{folder / CONFIG}: {name}: expected at most {len(tensors)}, the number of tensors "
                f"in its files, got {value}"
            )
    build: Any = AutoModel.from_config
    with torch.device("meta"):
        model = build(AutoConfig.from_pretrained(folder))
    parameters = sum(weight.numel() for weight in model.parameters())
    stored = sum(math.prod(tensor.shape) for tensor in tensors.values())
    if parameters > PACKED * stored:
        raise ModelFileError(
            f"{folder / CONFIG}: expected sizes of a model whose weights are in its files, which hold "
            f"{stored:,} numbers, got sizes of {parameters:,} parameters"
        )


def _model_kind(folder: Path) -> tuple[Any, bool]:
    """Return the class of Transformers that opens a model, and whether it gives the next token's logits.

    It does if it was saved as the causal language model of its type: BERT can be opened as one, too, but its
    weights predict the masked token.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    types: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    predicts = type(config) in types and types[type(config)].__name__ in (config.architectures or [])
    return (AutoModelForCausalLM if predicts else AutoModel), predicts


def _positions(span: tuple[int, int], size: int) -> int | slice:
    """Return a span of `size` positions as an edit takes it, in the form that reads best."""
    if span == (0, size):
        return slice(None)
    return span[0] if span[1] - span[0] == 1 else slice(*span)


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers in a config, with their names, at any level."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        # type, not isinstance: true is an int to Python.
        elif type(value) is int:
            yield name, value


@contextmanager
def _telling_layers(model: nn.Module, tell: ReportProgress) -> Iterator[None]:
    """Call `tell` after each layer. The longest list of modules in a model holds its layers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    layers = max(lists, key=len, default=nn.ModuleList())
    tell("reading", 0, len(layers))
    hooks = [
        # done=number binds the number now; a closure would see the last one in every hook.
        layer.register_forward_hook(lambda *_, done=number: tell("reading", done, len(layers)))
        for number, layer in enumerate(layers, start=1)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run_of(name: str) -> Path | None:
    folder = INCLUDED_MODEL if name == "default" else Path(name)
    return folder if has_history(folder) else None
