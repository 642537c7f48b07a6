"""`capture`: see inside a model while it runs, without giving up its fused attention.

It finds the sources that fit a model, attaches them, listens for where a forward pass begins and which tokens
it reads, and puts everything back. How attention is seen is the sources' business; what becomes of it the
recording's.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from types import TracebackType
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from regard.override import override_attribute
from regard.recorder.recording import Recording, Tokens
from regard.recorder.result import Capture
from regard.recorder.sources import adapters, listener, torch_mha
from regard.recorder.sources import gpt as gpt_source
from regard.recorder.sources.token_mixers import TokenMixers, compiled
from regard.recorder.storage.stores import store_for
from regard.recorder.tokens import encoded, spelled

Attach = Callable[[nn.Module, Recording], AbstractContextManager[None]]


class CaptureBlock:
    """The block `with regard.capture(model) as seen: …`."""

    def __init__(
        self, model: nn.Module, recording: Recording, sources: Sequence[Attach], warn: bool = True
    ) -> None:
        self.model, self.recording, self.sources = model, recording, sources
        self.mixers, self.warn = TokenMixers(model), warn
        self._put_back = ExitStack()

    def __enter__(self) -> Capture:
        with ExitStack() as undo:
            for module in self.model.modules():
                if module is self.model or listener.is_pretrained(module):
                    # Covered, not hooked: PyTorch's encoder layers run otherwise where they find a hook.
                    undo.enter_context(override_attribute(module, "forward", self._counting(module.forward)))
            undo.enter_context(self.mixers.watched())
            for attach in self.sources:
                undo.enter_context(attach(self.model, self.recording))
            self._put_back = undo.pop_all()
        return self.recording.seen

    def _counting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A model's `forward`, which also says where a forward pass begins."""

        @functools.wraps(forward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self.recording.running:
                self.recording.begin(_tokens(args, kwargs))
            with self.recording.forward_pass():
                return forward(*args, **kwargs)

        return counted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back.__exit__(kind, error, trace)
        if kind is not None:
            return
        missing = self.mixers.missing(self.recording.heard) | self.recording.unreadable
        self.recording.close(missing)
        if missing and self.recording.seen.layers and self.warn:
            warnings.warn(missing_message(self.model, missing), stacklevel=2)
        if self.recording.forwards and not self.recording.seen.layers:
            why = "".join(
                f"; {name}: {reason}" for name, reason in list(self.recording.unreadable.items())[:1]
            )
            if any(map(compiled, self.model.modules())):
                why = "; it is compiled: capture the model that torch.compile was given" + why
            raise RuntimeError(
                f"{type(self.model).__name__} ran, but no attention call was heard: it called neither "
                "scaled_dot_product_attention nor Transformers' AttentionInterface (some models call the "
                "first only with attn_implementation='sdpa' and without output_attentions=True); "
                f"regard.capture(model, at={{name: adapter}}) serves any softmax attention{why}"
            )


def missing_message(model: nn.Module, missing: Mapping[str, str]) -> str:
    """What a warning says of the modules that are missing, by their classes."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in missing.items():
        by_kind.setdefault(kind, []).append(name)
    listed = "; ".join(
        f"{kind} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
        for kind, names in by_kind.items()
    )
    modules, are = ("modules that mix", "are") if len(missing) > 1 else ("module that mixes", "is")
    return (
        f"{type(model).__name__}: {len(missing)} {modules} tokens could not be captured and {are} missing: "
        f"{listed}. seen.missing names them all; regard.capture(model, at={{name: adapter}}) serves any "
        "softmax attention"
    )


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tokens:
    """What a forward pass reads, as far as its arguments say."""
    first = args[0] if args else kwargs.get("input_ids", kwargs.get("ids"))
    real = kwargs.get("attention_mask")
    if isinstance(real, Tensor) and real.ndim == 2 and not real.dtype.is_floating_point:
        real = real.detach().cpu().to(torch.bool, copy=True)
    else:
        real = None
    return Tokens(_ids(first), _ids(kwargs.get("decoder_input_ids")), real)


def _ids(x: Any) -> Tensor | None:
    """A table of token ids (B, T), if that is what it is."""
    if isinstance(x, Tensor) and x.ndim == 2 and x.dtype in (torch.int64, torch.int32):
        return x.detach().cpu().clone()  # the caller may use the tensor again
    return None


@overload
def capture(
    model: nn.Module,
    *,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    to: str | PathLike[str] | None = None,
    budget: int | str | None = None,
    at: Mapping[str, Callable[..., Any]] | None = None,
    values: bool = False,
    verify: bool = False,
    keep: Literal["maps", "statistics"] = "maps",
    text: None = None,
    tokenizer: Any = None,
) -> CaptureBlock: ...


@overload
def capture(
    model: nn.Module,
    *,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    to: str | PathLike[str] | None = None,
    budget: int | str | None = None,
    at: Mapping[str, Callable[..., Any]] | None = None,
    values: bool = False,
    verify: bool = False,
    keep: Literal["maps", "statistics"] = "maps",
    text: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    **inputs: Any,
) -> Capture: ...


def capture(
    model: nn.Module,
    *,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    to: str | PathLike[str] | None = None,
    budget: int | str | None = None,
    at: Mapping[str, Callable[..., Any]] | None = None,
    values: bool = False,
    verify: bool = False,
    keep: Literal["maps", "statistics"] = "maps",
    text: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    **inputs: Any,
) -> CaptureBlock | Capture:
    """Record the attention of a model while it runs: as a block, or as a plain call that runs it once.

        with regard.capture(model) as seen:
            model(**inputs)                                         # or model.generate(…)
        seen = regard.capture(model, text="The cat sat", tokenizer=tokenizer)
        seen = regard.capture(model, input_ids=ids)                 # the model's own arguments

    `seen[layer]` is then an `AttentionMap`, `seen[layer, head]` one head, `seen.certificate` the evidence for
    them. The model computes as before, on its own kernels, and is left as it was found.

    - `layers`: numbers, or keys as "decoder.3"; `heads`: numbers; `dtype`: what q and k are kept in;
      `values`: keep the values, too.
    - `to`: a folder that layers are written to as they run; `budget`: the most memory to use, as "4GiB",
      after which they go to a temporary folder; `keep="statistics"`: overviews and row statistics only.
    - `verify`: compare every row with what the model computed, not 64 of them.
    - `at`: `{name of a module: adapter}` for attention that is not found by itself.
    - `tokenizer`: gives `seen.tokens`; with `text` also the model's inputs.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if tokenizer is None:
        tokenizer = getattr(model, "tokenizer", None)
    recording = Recording(
        layers=layers,
        heads=heads,
        dtype=dtype,
        values=values,
        verify=verify,
        store=store_for(to, budget, keep),
        stitch=keep == "maps",
        model=name_of(model),
        spell=None if tokenizer is None else functools.partial(spelled, tokenizer),
    )
    # Whoever names the modules to look at has chosen what is left out.
    block = CaptureBlock(model, recording, sources(model, at), warn=at is None)
    if text is None and not inputs:
        return block
    if text is not None:
        if tokenizer is None:
            raise ValueError(
                "text: expected a tokenizer beside it: tokenizer=AutoTokenizer.from_pretrained(…)"
            )
        inputs = model_inputs(model, encoded(tokenizer, text)) | inputs
    with torch.no_grad(), block as seen:
        model(**inputs)
    return seen


def sources(model: nn.Module, at: Mapping[str, Callable[..., Any]] | None) -> list[Attach]:
    """Everything that can see some of the model's attention; where adapters are given, those alone."""
    if at is not None:
        adapters.places(model, at)  # names that are not there are refused at once
        return [functools.partial(adapters.attach, at=at)]
    every = (listener, torch_mha, gpt_source)
    found: list[Attach] = [source.attach for source in every if source.fits(model)]
    if not found:
        raise ValueError(
            f"model: expected one with attention that capture knows (Transformers' interface, "
            f"torch.nn.MultiheadAttention, regard.layers.Attention), got {type(model).__name__}: "
            "name its attention modules with at={name: adapter}"
        )
    return found


def name_of(model: nn.Module) -> str:
    """What the model calls itself: the name that it was loaded by, or its class."""
    return getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__


def model_inputs(model: nn.Module, read: dict[str, Tensor]) -> dict[str, Any]:
    """The tensors of a tokenizer as this model's arguments, on the model's device."""
    taken = inspect.signature(model.forward).parameters
    open_ended = any(x.kind is x.VAR_KEYWORD for x in taken.values())
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    if "input_ids" not in taken and not open_ended:
        first = next(iter(taken))
        return {first: read["input_ids"].to(device)}
    inputs = {name: x.to(device) for name, x in read.items() if open_ended or name in taken}
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    if "decoder_input_ids" in taken and start is not None:
        inputs["decoder_input_ids"] = torch.full((len(read["input_ids"]), 1), start, device=device)
    return inputs
