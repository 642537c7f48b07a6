"""`capture`: record the attention of a model while it runs, on the model's own fused attention.

It checks the arguments, opens the block and reports what could not be captured. How the model's calls are
observed is in `observation`; how they become a `Capture` is in `recording`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from regard.pictures.patches import Patches
from regard.recorder.capture_result import Capture
from regard.recorder.contributions.stream_recorder import StreamRecorder
from regard.recorder.model_inputs import Inputs, model_arguments, model_name
from regard.recorder.observation import as_ids, observed
from regard.recorder.picture_reader import PictureReader
from regard.recorder.rank_group import find_group
from regard.recorder.recording import Recording
from regard.recorder.sources.compilation import compiled_methods
from regard.recorder.sources.structure_of_models.model_parts import (
    adapted_layers,
    attention_names,
    check_recognised,
    look_at,
    original_model,
    recall_parts,
)
from regard.recorder.sources.structure_of_models.module_kinds import CONVOLUTIONS
from regard.recorder.sources.structure_of_models.token_mixers import TokenMixers
from regard.recorder.storage.capture_folder import store_for
from regard.recorder.tokens_of_maps.predictions import predictions_from
from regard.recorder.tokens_of_maps.token_probe import probe_tokens
from regard.recorder.tokens_of_maps.tokens import decode_tokens, decode_vocabulary, token_id
from regard.support.characters import escape


class CaptureBlock:
    """The context manager of `with regard.capture(model) as seen: …`.

    The sources that fit the model, or the `adapters`, are attached for as long as the block is open. Modules
    that mix tokens and were not captured are reported by a warning if `warn` is set, as it is unless the user
    has chosen adapters; `seen.missing` and `seen.other_mixers` always list them.
    """

    mixers: TokenMixers

    def __init__(
        self, model: nn.Module, recording: Recording, adapters: Mapping[str, Callable[..., Any]] | None
    ) -> None:
        # A model that cannot be captured, or has no such modules, is refused here.
        check_recognised(model, recall_parts(model)) if adapters is None else adapted_layers(model, adapters)
        self.model, self.recording, self.adapters = model, recording, adapters
        self.warn = adapters is None
        self._undo = ExitStack()
        self._opened = False

    def __enter__(self) -> Capture:
        if self._opened:
            raise RuntimeError(
                "this capture has been opened before, and a second text would be mixed with the first: write "
                "`with regard.capture(model) as seen:` for each"
            )
        self._opened = True
        with ExitStack() as undo:
            self.mixers = TokenMixers(look_at(self.model))
            if self.recording.stream is not None:
                undo.enter_context(self.recording.stream.attached())
            undo.enter_context(observed(self.model, self.recording, self.adapters, self.mixers))
            # If one of them cannot be opened, those before it are undone.
            self._undo = undo.pop_all()
        return self.recording.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._undo.__exit__(kind, error, trace)
            if self.recording.ranks is not None:
                self.recording.ranks.explain(error)
            if kind is not None:
                return
            missing, others = self.mixers.unheard(self.recording.heard)
            missing |= self.recording.unreadable
            self._verify_tokens(bool(missing or others))
            self.recording.close(missing, others)
        finally:
            self.recording.store.release()
        if self.recording.seen.layers and self.warn:
            for sentence in not_captured_messages(self.model, missing, others):
                warnings.warn(escape(sentence), stacklevel=2)
        if self.recording.seen.layers or self.recording.seen.elsewhere:
            return
        if self.recording.forwards:
            raise RuntimeError(nothing_heard_message(self.model, self.recording.unreadable))
        if self.recording.seen.shard is not None:  # its layers may all be on other ranks
            return
        if self.mixers.ran_only_elsewhere:
            raise RuntimeError(
                f"{type(self.model).__name__} ran only in other threads than the one that opened the "
                "capture: open a capture in the thread that runs the model, or run it there by "
                "contextvars.copy_context().run(model, …)"
            )
        raise RuntimeError(
            f"{type(self.model).__name__} did not run inside the block, so nothing was captured: run the "
            "model that was given to capture there, not a copy of it (copy.deepcopy), a compiled function "
            "that calls it, or another process"
        )

    def _verify_tokens(self, is_mixed: bool) -> None:
        """With `verify=True`, establish which tokens the rows and keys are by changing some of them.

        `is_mixed` says that the model mixes tokens in ways that were not captured.
        """
        recording = self.recording
        ids = None if recording.arguments is None else as_ids(recording.arguments.ids)
        if not recording.verify or recording.arguments is None or ids is None or recording.ranks is not None:
            return
        if recording.forwards > 1 and all(map(recording.is_known, recording.heard)):
            return  # generation by a model whose code keeps tokens in order
        if recording.forwards > 1:
            warnings.warn(
                f"verify: no token was changed, since the block ran the model {recording.forwards} times: "
                "regard.capture(model, inputs=…, verify=True) runs it once",
                stacklevel=3,
            )
            return
        is_mixed = is_mixed or any(layer.is_linear for layer in recording.seen.layers)
        # Convolutions outside of the blocks are not reported, and carry a change on to other tokens, too.
        is_mixed = is_mixed or any(isinstance(x, (*CONVOLUTIONS, nn.RNNBase)) for x in self.model.modules())
        captured = recording.first_queries()
        probed = probe_tokens(self.model, recording.arguments, ids, self.adapters, captured, is_mixed)
        if isinstance(probed, str):
            warnings.warn(escape(f"verify: no token was changed, since {probed}"), stacklevel=3)
        else:
            recording.probed = probed


class CaptureOptions(TypedDict, total=False):
    """The options of `capture` that say nothing about what the model reads."""

    tokenizer: Any
    layers: Collection[int | str] | None
    heads: Collection[int] | None
    values: bool
    contributions: bool
    dtype: torch.dtype | None
    store: Literal["maps", "statistics"]
    folder: str | PathLike[str] | None
    budget: int | str | None
    adapters: Mapping[str, Callable[..., Any]] | None
    verify: bool
    overviews: bool
    predictions: bool
    patches: Patches | None
    group: Any


@overload
def capture(
    model: nn.Module, *, inputs: None = None, text: None = None, **options: Unpack[CaptureOptions]
) -> CaptureBlock: ...


@overload
def capture(
    model: nn.Module,
    *,
    inputs: Inputs | None = None,
    text: str | Sequence[str] | None = None,
    **options: Unpack[CaptureOptions],
) -> Capture: ...


def capture(
    model: nn.Module,
    *args: Any,
    inputs: Inputs | None = None,
    text: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    values: bool = False,
    contributions: bool = False,
    dtype: torch.dtype | None = None,
    store: Literal["maps", "statistics"] = "maps",
    folder: str | PathLike[str] | None = None,
    budget: int | str | None = None,
    adapters: Mapping[str, Callable[..., Any]] | None = None,
    verify: bool = False,
    overviews: bool = False,
    predictions: bool = False,
    patches: Patches | None = None,
    group: Any = None,
    **kwargs: Any,
) -> CaptureBlock | Capture:
    """Record the attention of a model while it runs: in a `with` block, or by running the model once.

        with regard.capture(model) as seen:  # a block: run the model as you like
            model(**inputs)
        seen = regard.capture(model, inputs={"input_ids": ids})  # a call: runs it once, without gradients
        seen = regard.capture(model, text="The cat sat", tokenizer=tokenizer)

    `seen` is a `Capture`: `seen[layer]` is an `AttentionMap`, `seen[layer, head]` that of one head, and
    `seen.certificate` the evidence that they are what the model used. The model computes as it does without
    capture, on its own kernels, and is restored at the end.

    - `inputs`: the model's own inputs: a dict of keyword arguments, a tuple of positional ones, or one
      tensor.
    - `text`: a text, or a list of texts, to tokenise and read. `inputs` may add keyword arguments to it.
      Texts of several lengths are padded, on the left for a model that generates, and `seen.attention_mask`
      shows the padding; each text has the maps that it has alone.
    - `tokenizer`: makes the inputs for `text`, and gives `seen.tokens`; by default `model.tokenizer`.
    - `layers`: the layers to capture: numbers, keys such as "decoder.3", or module names.
    - `heads`: the numbers of the heads to capture.
    - `values`: whether to store the values too; the page needs them to show each step up to the output.
    - `contributions`: whether to record also what the residual stream is made of, for
      `seen.value_weighted`, `seen.attribution` and `seen.rollout(by="value")`. It implies `values`. It is
      stored in memory only, with what each MLP adds: as much as the hidden states of every layer. The
      outputs of the model carry no gradients then.
    - `dtype`: the dtype to store queries and keys in, such as torch.bfloat16.
    - `store`: "maps", or "statistics" for overviews and row statistics only, which are smaller for long
      texts; weights can then not be looked at.
    - `folder`: a folder that each layer is written to as soon as it has run.
    - `budget`: the memory to use, such as "4GiB"; further layers go to a temporary folder.
    - `adapters`: `{module name: adapter}` for attention that is not recognised; see `docs/capture.md`.
    - `verify`: whether to compare every row with the model's output, and not a sample of 64, and to establish
      which tokens the rows and keys of each layer are: the model is run a few times more, with some token ids
      changed, to see which of them move.
    - `overviews`: whether to keep with each map an overview of at most 256 × 256 cells, from which `pool` and
      the page then answer at once. On a GPU the attention of long texts is then computed by Regard's kernel,
      which hands out the overview with the output; the model goes on with that output, which differs from its
      own kernel's by rounding, and the certificate says so. Any other attention runs as it does, and its
      overview is computed after it. Maps of fewer than 4,096 queries keep none.
    - `predictions`: whether to keep the ten likeliest next tokens at each position, and the loss and rank of
      the token that follows, in `seen.predictions`: of a causal language model that is run by `text` or
      `inputs`.
    - `patches`: how the model cuts a picture into patches, a `regard.pictures.Patches`, where its config and
      its patch embedding do not show it. The pictures that a vision model reads are kept in `seen.pictures`.
    - `group`: the `torch.distributed` processes that run the model together, each a part of its heads,
      layers or rows, and all open the capture. By default they are found, under tensor parallelism and
      Transformers' pipeline parallelism, but not those of ring attention. Each rank has its own part;
      `folder` is then one folder for all, and `regard.load(folder)` the whole capture.

    Any other argument raises a TypeError that says what to write instead.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if args or kwargs:
        raise TypeError(_unexpected_message(model, args, kwargs))
    model = original_model(model)
    if tokenizer is None:
        tokenizer = getattr(model, "tokenizer", None)
    if contributions and store == "statistics":
        raise ValueError('contributions: expected store="maps" beside it, got "statistics", without any map')
    if patches is not None and not isinstance(patches, Patches):
        raise ValueError(
            f"patches: expected a regard.pictures.Patches(rows=…, cols=…), got {type(patches).__name__}"
        )
    ranks = find_group(model, group)
    if contributions and ranks is not None:
        raise ValueError(
            f"contributions: expected a model in one process, got one that {ranks.size} run together, each "
            "with a part of its projections"
        )
    shard = None if ranks is None else ranks.new_shard()
    find_names = functools.partial(attention_names, model, adapters)
    stream = None
    if contributions:
        one_token = None if tokenizer is None else functools.partial(token_id, tokenizer)
        stream = StreamRecorder(model, find_names, one_token)
    recording = Recording(
        layers=layers,
        heads=heads,
        dtype=dtype,
        values=values or contributions,
        verify=verify,
        overviews=overviews,
        store=store_for(folder, budget, store, shard),
        model=model_name(model),
        decode=None if tokenizer is None else functools.partial(decode_tokens, tokenizer),
        stream=stream,
        picture_reader=PictureReader(model, find_names, patches),
        shard=shard,
        ranks=ranks,
    )
    block = CaptureBlock(model, recording, adapters)
    if text is None and inputs is None:
        if predictions:
            raise ValueError(
                "predictions: expected text= or inputs= beside it, since a block may run it several times"
            )
        return block
    model_args, model_kwargs = model_arguments(model, inputs, text, tokenizer)
    with torch.no_grad(), block as seen:
        output = model(*model_args, **model_kwargs)
    if predictions:
        decode = None if tokenizer is None else functools.partial(decode_vocabulary, tokenizer)
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or seen.ids is None:
            raise ValueError(
                "predictions: expected a language model, which reads token ids and gives logits, got "
                "another: capture it without predictions=True"
            )
        seen.predictions = predictions_from(
            logits, seen.ids, attention_mask=seen.attention_mask, decode=decode
        )
    return seen


OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(capture).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)


def _unexpected_message(model: nn.Module, positional: Sequence[Any], unknown: Mapping[str, Any]) -> str:
    """Say what to write instead of arguments that `capture` does not take."""
    if positional:
        return (
            f"capture() takes the model and keyword arguments, got {len(positional)} more by position: pass "
            "the model's inputs as inputs=(x,) or inputs={name: x}, or run the model inside "
            "`with regard.capture(model) as seen:`"
        )
    name = next(iter(unknown))
    message = f"capture() got an unexpected argument {name!r}"
    similar = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.75)
    if similar and name not in inspect.signature(model.forward).parameters:
        return f"{message}: did you mean {similar[0]}=?"
    written = ", ".join(f'"{name}": …' for name in unknown if name not in OPTIONS)
    return f"{message}: write inputs={{{written}}} for what the model itself takes"


ADAPTERS = "regard.capture(model, adapters={name: adapter}) serves any softmax attention"


def nothing_heard_message(model: nn.Module, unreadable: Mapping[str, str]) -> str:
    """Explain why a model that ran has no captured layer, the cause first."""
    name = type(model).__name__
    if unreadable:
        module, reason = next(iter(unreadable.items()))
        more = f"; and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        return f"{name} ran, but its attention could not be read ({module}: {reason}{more}). {ADAPTERS}"
    if compiled := next(compiled_methods(model), None):
        return (
            f"{name} ran, but {compiled} is compiled, and nothing can be heard inside compiled code: open "
            'the capture inside `with torch.compiler.set_stance("force_eager"):`'
        )
    return (
        f"{name} ran, but no attention call was heard. Heard are scaled_dot_product_attention, "
        "regard.attend, Transformers' AttentionInterface and a softmax between two matrix products, unless "
        f"compiled code calls them. {ADAPTERS}"
    )


def not_captured_messages(
    model: nn.Module, missing: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[str]:
    """Yield the warnings about modules that mix tokens and were not captured, grouped by their classes.

    `missing` maps the name of each module to its class, or to the reason why it could not be read; `others`
    are not attention.
    """
    name = type(model).__name__
    if missing:
        modules, are = ("modules that mix", "are") if len(missing) > 1 else ("module that mixes", "is")
        yield (
            f"{name}: {len(missing)} {modules} tokens could not be captured and {are} missing: "
            f"{_by_kind(missing)}. seen.missing names them all. {ADAPTERS}"
        )
    if others:
        modules, have = ("modules mix", "have") if len(others) > 1 else ("module mixes", "has")
        yield (
            f"{name}: {len(others)} {modules} tokens in another way than by attention and {have} no map: "
            f"{_by_kind(others)}. seen.other_mixers names them all"
        )


def _by_kind(modules: Mapping[str, str]) -> str:
    """Return the classes of modules, with the names of the first ones of each."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in modules.items():
        by_kind.setdefault(kind, []).append(name)
    return "; ".join(
        f"{kind} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
        for kind, names in by_kind.items()
    )
