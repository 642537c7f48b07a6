"""Whether a whole model lets tokens see later ones, and whether it should."""

from __future__ import annotations

import inspect
import itertools
import re
import sys

import torch
from torch import Tensor

from regard.checker.reports.report import Check, Report
from regard.checker.subject import vocabulary
from regard.checker.whole_models.differences import add_mistake, differ
from regard.checker.whole_models.hidden_tokens import meanings, padding_argument
from regard.checker.whole_models.model_run import TARGETS, ModelRun, attention_unit, token_count, with_targets
from regard.recorder.attention_call import AttentionCall


def check_window(report: Report, run: ModelRun, window: int | None) -> None:
    """Check that some layer has the window that the caller promised."""
    if window is None:
        return
    found = [call.mask.window_size() for _, call in run.calls if isinstance(call, AttentionCall)]
    if window in found:
        report.checks.append(Check("window", "passed"))
    else:
        add_mistake(report, "window", f"no layer has a window of {window} keys", "window-dropped")


def check_causality(report: Report, run: ModelRun, causal: bool | None) -> None:
    """Change later tokens: no earlier output of a model that is causal may change."""
    masks = [call.mask for _, call in run.calls if isinstance(call, AttentionCall)]
    hidden = [mask.is_causal for mask in masks]
    expected = causal
    # nn.TransformerDecoderLayer gets its causal mask from the caller.
    is_given_masks = run.draw(0).is_floating_point() and any(
        "mask" in name for name in inspect.signature(run.module.forward).parameters
    )
    is_named_so = any(
        vocabulary.predicts_next_token(n) or vocabulary.says_causal(n) for n in _class_names(run)
    )
    names = inspect.signature(run.module.forward).parameters
    # A decoder that is trained on its input ids must not see the later ones, unless the caller masks them.
    is_decoder = "decoder_input_ids" in names
    given = [n for n in names if n != "attention_mask" and vocabulary.argument(n) == "mask"]
    if causal is None and (is_named_so or (is_decoder and not given)) and not is_given_masks:
        expected = True
    stacked, mixed = _mixed_stack(run), ""
    if causal is None and is_decoder and given:
        mixed = f"`{given[0]}` was not passed"
    elif causal is None and stacked is not None:
        mixed = f"{list_paths(stacked[True])} causal, {list_paths(stacked[False])} not"
        expected = expected or _predicts_tokens(run)
    leak = find_leak(run)
    if leak is None:
        detail = "it gives no output for every token, or none that depends on another token"
        report.checks.append(Check("causality", "skipped", detail))
        _add_mixed(report, mixed)
        return
    if not leak:
        report.assumptions.append("causal, as measured")
        report.checks.append(Check("causality", "passed", "no output depends on a later token"))
        _check_causality_under_padding(report, run)
        return
    detail = f"output {leak[0]} depends on token {leak[1]}"
    if expected or (hidden and all(hidden)):
        through = "" if not hidden or not all(hidden) else ", though every attention layer's mask is causal"
        mistake = "no-mask" if masks and not any(mask.hides for mask in masks) else ""
        through += f": of its layers {mixed}" if mixed else ""
        add_mistake(report, "causality", detail + through, mistake)
    else:
        report.assumptions.append("not causal, as measured")
        _add_mixed(report, mixed)


def _class_names(run: ModelRun) -> list[str]:
    """Return the name of a model's class and its other names in its file: `GPT = TinyTransformer`."""
    kind = type(run.module)
    file = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    return [run.name, *(name for name, value in list(file.items()) if value is kind)]


def _add_mixed(report: Report, mixed: str) -> None:
    if mixed:
        how = "say causal=True or causal=False, which the model should be"
        report.checks.append(Check(f"one answer on causality ({mixed})", "untried", how))


def _mixed_stack(run: ModelRun) -> dict[bool, list[str]] | None:
    """Return the self-attention layers of a stack, `h.0.attn`, `h.1.attn` …, with and without a causal mask.

    None if every stack has layers of one kind only. An encoder and a decoder are two stacks, and so are the
    two attentions of a decoder's blocks.
    """
    stacks: dict[tuple[str, torch.Size], dict[bool, list[str]]] = {}
    for name, call in run.calls:
        if isinstance(call, AttentionCall) and call.q.shape[-2] == call.k.shape[-2]:
            unit = attention_unit(run.module, name)
            # The first number is that of the block; a later one tells its attentions apart.
            key = (re.sub(r"\d+", "#", unit, count=1), call.q.shape)
            layers = stacks.setdefault(key, {True: [], False: []})[call.mask.is_causal]
            layers.append(unit) if unit not in layers else None
    return next((stack for stack in stacks.values() if stack[True] and stack[False]), None)


def list_paths(units: list[str]) -> str:
    return ", ".join(units if len(units) < 4 else [*units[:2], "…", units[-1]])


def _predicts_tokens(run: ModelRun) -> bool:
    """Return whether a model has a head of the vocabulary's size and says that it is a language model's.

    Masked language models have both as well (`labels` and `lm_head` of RoBERTa): it is a sign only for those
    that have causal layers.
    """
    x = run.draw(1)
    more = None if x.is_floating_point() else with_targets(run, x)
    y = None if more is None else run.outputs(x, **more)
    names = (*inspect.signature(run.module.forward).parameters, *dict(run.module.named_children()))
    is_said = any(name in (*TARGETS, "lm_head") for name in names)
    return y is not None and is_said and y.shape[-1] >= token_count(run.module)


def _check_causality_under_padding(report: Report, run: ModelRun) -> None:
    """Check that a causal model is causal with its padding mask, which may replace the causal one."""
    name = padding_argument(run)
    if name is None:
        return
    visible = torch.ones_like(run.draw(1))
    # The mask is that of the encoder's text, if there is one.
    text = {"input_ids": run.draw(9)} if run.memory else {}
    padded = visible.clone()
    padded[:, visible.shape[1] // 2] = 0
    leaks = [
        [find_leak(run, **text, **{name: meaning(mask)}) for mask in (visible, padded)]
        for meaning in meanings(name)
    ]
    if [(), ()] in leaks:
        report.checks.append(Check("causality with padding", "passed", f"with `{name}`, too"))
    elif leak := next((leak for leak in itertools.chain(*leaks) if leak), None):
        detail = f"output {leak[0]} depends on token {leak[1]} with `{name}`, though not without"
        add_mistake(report, "causality with padding", detail, "no-mask")


def find_leak(run: ModelRun, **options: Tensor) -> tuple[int, int] | tuple[()] | None:
    """Return the first output that depends on a later token; () if there is none; None if it is unknown.

    `options` are further arguments of the model, the same in every run.
    """
    x, other = run.draw(1), run.draw(2)
    more = with_targets(run, x)
    more = None if more is None else more | options
    before = None if more is None else run.outputs(x, **more)
    if before is None or more is None or before.isnan().any():
        return None
    T = x.shape[1]
    first_changed = run.outputs(torch.cat([other[:, :1], x[:, 1:]], 1), **more)
    if first_changed is None or not bool(differ(before, first_changed)[1:].any()):
        return None  # with weights of 0, as some output projections begin, no token depends on another
    for token in range(1, T):
        changed = torch.cat([x[:, :token], other[:, token:]], 1)
        after = run.outputs(changed, **more)
        if after is None:
            return None
        rows = differ(before, after)[:token].nonzero()
        if len(rows):
            return int(rows[0]), token
    return ()
