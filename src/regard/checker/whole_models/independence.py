"""What must not matter to a model's output: other texts of the batch, the training step, shared tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.reports.report import Check, Report
from regard.checker.subject.reply import CallMonitor
from regard.checker.whole_models.causality import find_leak
from regard.checker.whole_models.differences import add_mistake, differ
from regard.checker.whole_models.layer_judge import calls_by_unit
from regard.checker.whole_models.model_run import ModelRun, attention_unit, mixes_batch, with_targets
from regard.recorder.attention_call import AttentionCall
from regard.support.torch_internals import BatchNorm


def check_cross_attention(report: Report, run: ModelRun) -> None:
    """Say if a decoder sees the other text under a causal mask, as only simultaneous translation does."""
    calls = [(name, call) for name, call in run.calls if isinstance(call, AttentionCall)]
    crossing = [name for name, call in calls if call.k.shape[-2] == run.memory and call.mask.is_causal]
    if crossing:
        unit = attention_unit(run.module, crossing[0])
        how = "pass it no causal mask, unless the model translates while it reads"
        what = f"cross-attention to the whole of the other text (`{unit}` is causal)"
        report.checks.append(Check(what, "untried", how))


def check_shared_tensors(report: Report, run: ModelRun) -> None:
    """Say if a tensor that every layer of a stack gets, such as rotary angles, is changed on the way.

    Hidden states may be changed in place, and so may what depends on tokens: a pair representation, a cache.
    """
    units = [unit for unit in calls_by_unit(run) if unit]
    first: dict[tuple[str, str, int], tuple[Tensor, Tensor, str]] = {}  # the tensor, its value, its layer
    changed: dict[str, tuple[str, str, str]] = {}

    def watch(unit: str) -> Callable[..., None]:
        stack = re.sub(r"\d+", "#", unit, count=1)

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            names = list(inspect.signature(module.forward).parameters)
            values = [*zip(names[1:], args[1:], strict=False), *kwargs.items()]  # without the hidden states
            for name, value in values:
                for x in value if isinstance(value, tuple | list) else (value,):
                    if not isinstance(x, Tensor) or x.numel() < 2 or _has_batch(x, run):
                        continue
                    # The tensor is kept, too, so that its id is not given to another one.
                    before, copy, layer = first.setdefault((stack, name, id(x)), (x, x.clone(), unit))
                    if before is x and layer != unit and not torch.equal(copy, x):
                        changed.setdefault(stack, (name, layer, unit))

        return look

    hooks = [
        run.module.get_submodule(unit).register_forward_pre_hook(watch(unit), with_kwargs=True)
        for unit in units
    ]
    try:
        run.outputs(run.draw(0))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer, unit in changed.values():
        what = f"comparison of `{name}`, which is changed in place between `{layer}` and `{unit}`"
        report.checks.append(Check(what, "untried", "give every layer its own copy, or change it for none"))


def _has_batch(x: Tensor, run: ModelRun) -> bool:
    """Return whether a tensor has an entry for every sequence: then it may depend on tokens."""
    return x.ndim > 2 and x.shape[0] == run.draw(0).shape[0]


def check_training(report: Report, run: ModelRun) -> None:
    """Check that a model of tokens that is causal in eval mode is causal in training mode, too.

    Dropout is off, and random numbers are the same in every run. A batch norm takes its statistics over all
    tokens in training, so that the model learns to read later ones. Encoders may do that, and so may blocks
    on hidden states: streaming Conformers have one after a causal convolution.
    """
    causal = any(check.name == "causality" and check.status == "passed" for check in report.checks)
    if not causal or run.draw(0).is_floating_point():
        return

    def call(x: Tensor, **more: Any) -> Any:
        with torch.random.fork_rng(devices=[]), CallMonitor(dropout=False):
            torch.manual_seed(0)
            return run.call(x, **more)

    parts = [(part, part.training) for part in run.module.modules()]
    # Running statistics: a batch norm writes into them, other layers replace them.
    buffers = [
        (part, name, x, x.clone()) for part, _ in parts for name, x in part._buffers.items() if x is not None
    ]
    training = replace(run, call=call)
    try:
        run.module.train()
        leak = find_leak(training) if _is_repeatable(training) else None
        mixed = bool(leak) and mixes_batch(training, run.draw(3)) is True
    finally:
        for part, mode in parts:
            part.training = mode
        for part, name, buffer, value in buffers:
            buffer.data.copy_(value)
            part._buffers[name] = buffer
    if not leak:
        if leak is not None:
            report.checks.append(Check("causality in training", "passed"))
        return
    detail = f"output {leak[0]} depends on token {leak[1]} in training mode, though not in eval mode"
    modules = run.module.named_modules()
    norm = next(((name, part) for name, part in modules if isinstance(part, BatchNorm)), None)
    if norm is None:
        add_mistake(report, "causality in training", detail, "")
        return
    kind = type(norm[1]).__name__
    detail += f": `{norm[0]}` ({kind}) takes its mean and variance over all tokens of the batch"
    fix = f"nn.LayerNorm or nn.RMSNorm instead of nn.{kind}: they use one token's numbers only"
    add_mistake(report, "causality in training", detail, "batch-items-mixed" if mixed else "", fix)


def _is_repeatable(run: ModelRun) -> bool:
    """Return whether a model gives the same output three times: it may draw numbers by other means."""
    x = run.draw(1)
    more = with_targets(run, x) or {}
    first, *others = (run.outputs(x, **more) for _ in range(3))
    return first is not None and all(y is not None and torch.equal(first, y) for y in others)


def check_batch(report: Report, run: ModelRun) -> None:
    """Run each sequence of a batch alone: it must give the same output."""
    x = run.draw(3)
    more = with_targets(run, x)
    together = None if more is None else run.outputs(x, **more)
    if together is None or more is None:
        return
    alone = [run.outputs(item, **dict.fromkeys(more, item)) for item in (x[:1], x[1:])]
    if any(y is None for y in alone):
        report.checks.append(Check("batch", "skipped", "it does not take one sequence"))
    elif bool(differ(together, torch.cat([y for y in alone if y is not None])).any()):
        add_mistake(report, "batch", "a sequence gives another output in a batch", "batch-items-mixed")
    else:
        report.checks.append(Check("batch", "passed", "sequences do not depend on each other"))
