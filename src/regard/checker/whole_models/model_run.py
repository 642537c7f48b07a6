"""A model or a block that runs, and what it must do whatever its layers are: hide what is not to be seen.

Tokens are changed, and no output may change that should not depend on them: later ones, other texts, and
those under its padding mask, whichever way that is written, and in training mode, too. Each promise yields
what a report says of it.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checker.catalogue import get_mistake
from regard.checker.reports.report import Check, Diagnosis
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import in_dtype, tensors_in_result
from regard.checker.subject.inside import collect_calls
from regard.checker.subject.source import attention_unit
from regard.checker.subject.subject import CallMonitor
from regard.support.torch_internals import BatchNorm

if TYPE_CHECKING:
    from regard.recorder.attention_call import AttentionCall, Call


TARGETS = ("targets", "labels", "target")


@dataclass
class ModelRun:
    """A model or a block, and how it is run: `call(x)` on token ids (B, T) or hidden states (B, T, C)."""

    name: str
    module: nn.Module
    call: Callable[..., Any]
    draw: Callable[[int], Tensor]  # inputs, by the seed
    inputs: str  # in words
    dtype: torch.dtype
    training: list[nn.Module] = field(default_factory=list)  # modules to be put back into training mode
    calls: list[tuple[str, Call]] = field(default_factory=list)
    depth: str = ""  # how many of its layers were built, if it has more or may: "2 of 24 layers"
    memory: int = 0  # tokens of the other text that a decoder reads, if it is of another length
    own: bool = False  # whether it is the caller's own instance, whose dtype stays as it is

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments of its forward pass."""
        return list(inspect.signature(self.module.forward).parameters)

    @property
    def reads_tokens(self) -> bool:
        """Whether it is run on token ids."""
        return not self.draw(0).is_floating_point()

    @property
    def attention(self) -> list[tuple[str, AttentionCall]]:
        """Its attention calls that could be read, by the names of the modules that made them."""
        from regard.recorder.attention_call import AttentionCall

        return [(name, call) for name, call in self.calls if isinstance(call, AttentionCall)]

    def restore(self) -> None:
        """Put the caller's own model back into training mode."""
        for part in self.training:
            part.training = True

    def observe(self) -> bool:
        """Run it once and keep its attention calls; returns whether it ran."""
        try:
            self.calls = collect_calls(self.module, lambda: self.call(self.draw(0)))
        except (Exception, SystemExit):  # it does not take such inputs
            return False
        return True

    def outputs(self, x: Tensor, **more: Any) -> Tensor | None:
        """Return an output (B, T, …) of the model, or None if it gives none for every position."""
        # nanoGPT gives the logits of all positions only beside the targets.
        targets = [name for name in TARGETS if name in self.parameters and not x.is_floating_point()]
        for keywords in (more, *({name: x} | more for name in targets)):
            try:
                with torch.no_grad():
                    result = self.call(x, **keywords)
            except (Exception, SystemExit):  # the author's code may raise anything
                continue
            outputs = [y for y in tensors_in_result(result) if y.is_floating_point() and y.ndim >= 3]
            if (output := next((y for y in outputs if y.shape[:2] == x.shape[:2]), None)) is not None:
                return output
        return None


def where_differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (B, T), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    rounding = 1e-9 if a.dtype == torch.float64 else 1e-4
    # Beside −inf, any difference would be small.
    largest = a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1e-30)
    # Logits of forbidden tokens may be -inf in both.
    same = ((a - b).abs() <= rounding * largest) | (a == b)
    return ~same.flatten(2).all(-1)


def mixes_batch(run: ModelRun, x: Tensor) -> bool | None:
    """Return whether the items of a batch depend on each other; None if they cannot be run alone."""
    together = run.outputs(x)
    alone = [run.outputs(item[None]) for item in x]
    parts = [y for y in alone if y is not None]
    if together is None or len(parts) < len(alone):
        return None
    return bool(where_differ(together, torch.cat(parts)).any())


def token_count(model: nn.Module) -> int:
    """Return how many tokens a model knows: the size of its input embedding, or of its first embedding."""
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding))
    # The first embedding may be one of positions or of token types.
    get_embedding = getattr(model, "get_input_embeddings", None)
    try:
        own = get_embedding() if callable(get_embedding) else None
    except NotImplementedError:  # a model of Transformers without one
        own = None
    return int(getattr(own, "num_embeddings", embedding.num_embeddings))


Findings = Iterator[Check | Diagnosis | str]
"""What a report says of a promise: checks, mistakes, and assumptions as text."""


def fail_by(check: str, detail: str, mistake: str, fix: str = "") -> Findings:
    """Yield a check that failed and the mistake that explains it, if one does."""
    yield Check(check, "failed", detail, mistake)
    if mistake:
        entry = get_mistake(mistake)
        yield Diagnosis(mistake, f"In the whole model, {detail}.", entry.effect, fix or entry.fix)


def _padding_argument(run: ModelRun) -> str | None:
    """Return the argument of a model of tokens that hides padding by a mask (B, T); None if it has none."""
    names = (n for n in run.parameters if n == "attention_mask" or vocabulary.argument(n) == "padding")
    name = next(names, None)
    return None if name is None or "len" in name or not run.reads_tokens else name


def _meanings(name: str) -> list[Callable[[Tensor], Tensor]]:
    """Return the ways to write which tokens are visible, given as (B, T) with 1 for a visible token.

    In `attention_mask` 1 is a token. True in `key_padding_mask` hides in PyTorch, and shows in flash-attn.
    """
    if name == "attention_mask":
        return [lambda visible: visible]
    return [lambda visible: visible == 0, lambda visible: visible == 1]


def check_padding(run: ModelRun) -> Findings:
    """Hide a token of each sequence by the model's padding mask, and change it: no other output may change.

    Each sequence hides another token, since a model may use the first one's mask for all. A model that was
    built here runs in float64, where `(1 - mask.float()) * torch.finfo(x.dtype).min` is NaN, and its users do
    not: NaN counts if it is there in float32, too.
    """
    name = _padding_argument(run)
    if name is None:
        return
    problems = [_padding_problem(run, name, meaning) for meaning in _meanings(name)]
    if "" not in problems and any(p and p.endswith("NaN") for p in problems) and not run.own:
        in_dtype(run.module, torch.float32)
        narrow = replace(run, call=partial(run.call, dtype=torch.float32), dtype=torch.float32)
        problems = [_padding_problem(narrow, name, meaning) for meaning in _meanings(name)]
        in_dtype(run.module, run.dtype)
    if "" in problems:
        yield Check("padding", "passed", f"a token that `{name}` hides changes nothing")
    elif detail := next((problem for problem in problems if problem), None):
        yield from fail_by("padding", detail, "" if detail.endswith("NaN") else "padded-keys-leak")
    else:
        yield Check("padding", "skipped", f"`{name}` does not take (B, T) with 1 for a token")


def _padding_problem(run: ModelRun, name: str, meaning: Callable[[Tensor], Tensor]) -> str | None:
    """Return what is wrong with a padding mask; "" if nothing is, None if the model does not take it."""
    x = run.draw(4)
    B, T = x.shape
    hidden = torch.tensor([T // 2, min(T // 2 + 2, T - 1)], device=x.device)
    items = torch.arange(B, device=x.device)
    other, visible = x.clone(), torch.ones_like(x)
    # The other token is one of those that were drawn, which the model takes.
    other[items, hidden] = (x[items, hidden] + 1).where(x[items, hidden] < x.max(), x.min())
    visible[items, hidden] = 0
    if (plain := run.outputs(x)) is None:
        return None
    has_encoder = "decoder_input_ids" in run.parameters  # the mask is that of the encoder's text
    texts = [(x, {"input_ids": y}) if has_encoder else (y, {}) for y in (x, other)]
    unmasked, before, after = (
        run.outputs(y, **text, **{name: meaning(mask)})
        for (y, text), mask in ((texts[0], torch.ones_like(x)), (texts[0], visible), (texts[1], visible))
    )
    if before is None or after is None:
        return None
    own = torch.zeros_like(visible, dtype=torch.bool) if has_encoder else visible == 0
    for outputs, number in ((unmasked, "no token"), (before, "one token")):
        if outputs is not None and bool((outputs.isnan().flatten(2).any(-1) & ~own).any()):
            return None if plain.isnan().any() else f"with `{name}` hiding {number}, its output is NaN"
    places = (where_differ(before, after) & ~own).nonzero()
    if not len(places):
        return ""
    item, row = places[0].tolist()
    return f"token {int(hidden[item])}, hidden by `{name}`, changes output {row}"


def check_causality(run: ModelRun, causal: bool | None) -> Findings:
    """Change later tokens: no earlier output of a model that is causal may change."""
    masks = [call.mask for _, call in run.attention]
    all_causal = bool(masks) and all(mask.is_causal for mask in masks)
    # nn.TransformerDecoderLayer gets its causal mask from the caller.
    is_given_masks = not run.reads_tokens and any("mask" in name for name in run.parameters)
    # The name of its class, and others in its file: `GPT = TinyTransformer`.
    kind = type(run.module)
    file = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    names = [run.name, *(name for name, value in list(file.items()) if value is kind)]
    is_named_so = any(vocabulary.predicts_next_token(n) or vocabulary.says_causal(n) for n in names)
    # A decoder that is trained on its input ids must not see the later ones, unless the caller masks them.
    is_decoder = "decoder_input_ids" in run.parameters
    given = [n for n in run.parameters if n != "attention_mask" and vocabulary.argument(n) == "mask"]
    expected = causal
    if causal is None and (is_named_so or (is_decoder and not given)) and not is_given_masks:
        expected = True
    stacked, mixed = _mixed_stack(run), ""
    if causal is None and is_decoder and given:
        mixed = f"`{given[0]}` was not passed"
    elif causal is None and stacked is not None:
        mixed = f"{_list_paths(stacked[True])} causal, {_list_paths(stacked[False])} not"
        expected = expected or _predicts_tokens(run)
    leak = _find_leak(run)
    if leak == ():
        yield "causal, as measured"
        yield Check("causality", "passed", "no output depends on a later token")
        yield from _check_causality_under_padding(run)
        return
    if leak and (expected or all_causal):
        mistake = "no-mask" if masks and not any(mask.hides for mask in masks) else ""
        detail = f"output {leak[0]} depends on token {leak[1]}"
        detail += ", though every attention layer's mask is causal" if all_causal else ""
        detail += f": of its layers {mixed}" if mixed else ""
        yield from fail_by("causality", detail, mistake)
        return
    if leak:
        yield "not causal, as measured"
    else:
        reason = "it gives no output for every token, or none that depends on another token"
        yield Check("causality", "skipped", reason)
    if mixed:
        how = "say causal=True or causal=False, which the model should be"
        yield Check(f"one answer on causality ({mixed})", "untried", how)


def _mixed_stack(run: ModelRun) -> dict[bool, list[str]] | None:
    """Return the self-attention layers of a stack, `h.0.attn`, `h.1.attn` …, with and without a causal mask.

    None if every stack has layers of one kind only. An encoder and a decoder are two stacks, and so are the
    two attentions of a decoder's blocks.
    """
    stacks: dict[tuple[str, torch.Size], dict[bool, list[str]]] = {}
    for name, call in run.attention:
        if call.q.shape[-2] == call.k.shape[-2]:
            unit = attention_unit(run.module, name)
            layers = stacks.setdefault((stack_of(unit), call.q.shape), {True: [], False: []})
            if unit not in layers[call.mask.is_causal]:
                layers[call.mask.is_causal].append(unit)
    return next((stack for stack in stacks.values() if stack[True] and stack[False]), None)


def stack_of(unit: str) -> str:
    """Return what the layers of one stack have in common: `h.#.attn`."""
    # The first number is that of the block; a later one tells its attentions apart.
    return re.sub(r"\d+", "#", unit, count=1)


def _list_paths(units: list[str]) -> str:
    return ", ".join(units if len(units) < 4 else [*units[:2], "…", units[-1]])


def _predicts_tokens(run: ModelRun) -> bool:
    """Return whether a model has a head of the vocabulary's size and says that it is a language model's.

    Masked language models have both as well (`labels` and `lm_head` of RoBERTa): it is a sign only for those
    that have causal layers.
    """
    y = run.outputs(run.draw(1)) if run.reads_tokens else None
    names = (*run.parameters, *dict(run.module.named_children()))
    is_said = any(name in (*TARGETS, "lm_head") for name in names)
    return y is not None and is_said and y.shape[-1] >= token_count(run.module)


def _check_causality_under_padding(run: ModelRun) -> Findings:
    """Check that a causal model is causal with its padding mask, which may replace the causal one."""
    name = _padding_argument(run)
    if name is None:
        return
    visible = torch.ones_like(run.draw(1))
    # The mask is that of the encoder's text, if there is one.
    text = {"input_ids": run.draw(9)} if run.memory else {}
    padded = visible.clone()
    padded[:, visible.shape[1] // 2] = 0
    leaks = [
        [_find_leak(run, **text, **{name: meaning(mask)}) for mask in (visible, padded)]
        for meaning in _meanings(name)
    ]
    if [(), ()] in leaks:
        yield Check("causality with padding", "passed", f"with `{name}`, too")
    elif leak := next((leak for leak in itertools.chain(*leaks) if leak), None):
        detail = f"output {leak[0]} depends on token {leak[1]} with `{name}`, though not without"
        yield from fail_by("causality with padding", detail, "no-mask")


def _find_leak(run: ModelRun, **options: Tensor) -> tuple[int, int] | tuple[()] | None:
    """Return the first output that depends on a later token; () if there is none; None if it is unknown.

    `options` are further arguments of the model, the same in every run.
    """
    x, other = run.draw(1), run.draw(2)
    before = run.outputs(x, **options)
    if before is None or before.isnan().any():
        return None
    first_changed = run.outputs(torch.cat([other[:, :1], x[:, 1:]], 1), **options)
    if first_changed is None or not bool(where_differ(before, first_changed)[:, 1:].any()):
        return None  # with weights of 0, as some output projections begin, no token depends on another
    for token in range(1, x.shape[1]):
        after = run.outputs(torch.cat([x[:, :token], other[:, token:]], 1), **options)
        if after is None:
            return None
        rows = where_differ(before, after).any(0)[:token].nonzero()
        if len(rows):
            return int(rows[0]), token
    return ()


def check_training(run: ModelRun) -> Findings:
    """Check that a model of tokens that is causal in eval mode is causal in training mode, too.

    Dropout is off, and random numbers are the same in every run. A batch norm takes its statistics over all
    tokens in training, so that the model learns to read later ones. Encoders may do that, and so may blocks
    on hidden states: streaming Conformers have one after a causal convolution.
    """

    def call(x: Tensor, **more: Any) -> Any:
        with torch.random.fork_rng(devices=[]), CallMonitor(dropout=False):
            torch.manual_seed(0)
            return run.call(x, **more)

    if not run.reads_tokens:
        return
    parts = [(part, part.training) for part in run.module.modules()]
    # Running statistics: a batch norm writes into them, other layers replace them.
    buffers = [
        (part, name, x, x.clone()) for part, _ in parts for name, x in part._buffers.items() if x is not None
    ]
    training = replace(run, call=call)
    try:
        run.module.train()
        # The model may draw numbers by other means.
        first, *others = (training.outputs(run.draw(1)) for _ in range(3))
        is_repeatable = first is not None and all(y is not None and torch.equal(first, y) for y in others)
        leak = _find_leak(training) if is_repeatable else None
        mixed = bool(leak) and mixes_batch(training, run.draw(3)) is True
    finally:
        for part, mode in parts:
            part.training = mode
        for part, name, buffer, value in buffers:
            buffer.data.copy_(value)
            part._buffers[name] = buffer
    if leak == ():
        yield Check("causality in training", "passed")
    if not leak:
        return
    detail = f"output {leak[0]} depends on token {leak[1]} in training mode, though not in eval mode"
    modules = run.module.named_modules()
    path, norm = next(((path, part) for path, part in modules if isinstance(part, BatchNorm)), ("", None))
    fix = ""
    if norm is not None:
        kind = type(norm).__name__
        detail += f": `{path}` ({kind}) takes its mean and variance over all tokens of the batch"
        fix = f"nn.LayerNorm or nn.RMSNorm instead of nn.{kind}: they use one token's numbers only"
    mistake = "batch-items-mixed" if mixed and norm is not None else ""
    yield from fail_by("causality in training", detail, mistake, fix)


def check_batch(run: ModelRun) -> Findings:
    """Run each sequence of a batch alone: it must give the same output."""
    mixed = mixes_batch(run, run.draw(3))
    if mixed is None:
        yield Check("batch", "skipped", "it does not take one sequence")
    elif mixed:
        yield from fail_by("batch", "a sequence gives another output in a batch", "batch-items-mixed")
    else:
        yield Check("batch", "passed", "sequences do not depend on each other")
