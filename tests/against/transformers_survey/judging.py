"""One run judged: plain, captured and plain again are compared; capture's own word does not count."""

import re
import traceback
import warnings

import torch

import regard
from tests.against.transformers_survey.cases import TOKENS, tensors
from tests.against.transformers_survey.verdict import CHANGED, CRASH, PARTLY, REFUSED, UNNAMED, WRONG, Verdict
from tests.against.transformers_survey.weights import Weights, as_maps, steps_joined

MAPS_AGREE = 5e-4  # weights of float32 models whose scores run into the hundreds
OUTPUTS_AGREE = 1e-3  # of the largest number in the output


def judge(model, case, implementation, token_mixers):
    """Run a case plainly, captured and plainly again, and say what capture made of it."""
    verdict = Verdict(case.name, implementation)
    before, settings = case.run(model), implementations(model)
    weights, rows = plain_weights(model, case)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with regard.capture(model) as seen:
                inside = case.run(model)
    except Exception as error:
        _judge_exception(verdict, model, error)
    else:
        verdict.output = compare(before, inside, case.real)
        if verdict.output == "different":
            verdict.add(WRONG, "the output under capture is another one than without")
        _judge_layers(verdict, seen, weights, rows)
        _judge_missing(verdict, model, seen, token_mixers, [str(w.message) for w in said])
    if implementations(model) != settings:
        verdict.add(CHANGED, f"attention was {settings}, is {implementations(model)}")
    elif compare(before, case.run(model), None) != "bitwise":
        verdict.add(CHANGED, "the plain run after capture gives another output than the one before")
    return verdict


def plain_weights(model, case):
    """The weights of a plain run by module, and the rows (B, T) of them that are text."""
    with Weights(model).watching() as plain:
        case.run(model)
    if case.name != "generate" or case.real is None:
        return plain.found, case.real
    return steps_joined(plain.found), torch.cat(
        [case.real, case.real.new_ones(len(case.real), TOKENS - 1)], 1
    )


def implementations(model):
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [str(getattr(config, "_attn_implementation", None)) for config in configs.values()]


def compare(first, second, real):
    """Whether two outputs are "bitwise" the same, the same to "rounding" on rows of text, or "different"."""
    ours, theirs = tensors(first), tensors(second)
    if ours.keys() != theirs.keys() or any(ours[k].shape != theirs[k].shape for k in ours):
        return "different"
    found = "bitwise"
    for key, a in ours.items():
        b = theirs[key]
        if torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()):
            continue
        if not a.dtype.is_floating_point:
            return "different"
        found = "rounding"
        if real is not None and a.shape[:2] == real.shape:
            a, b = a[real], b[real]
        if not bool((a - b).abs().max() <= OUTPUTS_AGREE * a.abs().max()):
            return "different"
    return found


def _judge_exception(verdict, model, error):
    kinds = {type(module).__name__ for module in model.modules()}
    if isinstance(error, (ValueError, RuntimeError)) and _names(str(error), kinds) and "captur" in str(error):
        verdict.add(REFUSED, str(error)[:300])
        return
    last = [line.strip() for line in traceback.format_exc().strip().splitlines() if "File " in line][-3:]
    verdict.add(CRASH, f"{type(error).__name__}: {str(error)[:200]} | {' | '.join(last)}")


def _judge_layers(verdict, seen, weights, rows):
    """Certified layers against the weights of the plain run; what is not certified must say why."""
    waiting = list(weights)
    for layer in seen.layers:
        verdict.layers += 1
        if not layer.evidence.certified:
            verdict.add(PARTLY, f"{layer.name}: {layer.evidence}")
            continue
        verdict.certified += 1
        name = layer.name.partition("#")[0]
        fitting = [
            (index, theirs)
            for index, (place, found) in enumerate(waiting)
            if _inside(place, name) and (theirs := as_maps(found, layer.shape)) is not None
        ]
        if not fitting:
            continue
        verdict.compared += 1
        dense = layer.map.to_dense()
        if layer.map.sinks is not None:  # some models scale the output by the sink's share, not the weights
            dense, fitting = _shares(dense), [(index, _shares(theirs)) for index, theirs in fitting]
        index, difference = min(
            ((index, _difference(dense, theirs, rows)) for index, theirs in fitting), key=lambda x: x[1]
        )
        waiting.pop(index)
        if not difference <= MAPS_AGREE:
            verdict.add(WRONG, f"{layer.name}: certified, and {difference:.1e} off the plain run's weights")


def _shares(weights):
    """Rows that sum to 1, without what a sink takes of them."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def _difference(ours, theirs, real):
    off = (ours.to(theirs.dtype) - theirs).abs()  # (B, H, T, S)
    # A row that may look at nothing is empty in a map; in the model it is spread evenly, or not a number.
    some = theirs > 0
    even = (theirs.amax(-1) - theirs.masked_fill(~some, torch.inf).amin(-1) < 1e-6) & (some.sum(-1) > 1)
    nothing = (ours.sum(-1) == 0) & (even | theirs.isnan().any(-1))
    off = off.masked_fill(nothing[..., None], 0.0).transpose(1, 2)  # (B, T, H, S)
    if real is not None and off.shape[:2] == real.shape:
        off = off[real]
    return float(off.max()) if off.numel() else 0.0


def _judge_missing(verdict, model, seen, token_mixers, said):
    """Every module that mixes tokens is captured or named."""
    passes = [seen, *seen.passes]
    captured = [layer.name.partition("#")[0] for x in passes for layer in x.layers]
    named = [name for x in passes for name in x.missing]
    modules = dict(model.named_modules())
    for x in passes:  # a part of a module may have been captured, and another not
        for name, reason in x.missing.items():
            if ", as " in reason and name in captured:
                verdict.add(PARTLY, f"{reason}; it is named")
    for mixer in token_mixers:
        if mixer.convolution or any(_related(mixer.name, name) for name in captured):
            continue
        family = [n for n in modules if _related(n, mixer.name) and n.count(".") >= mixer.name.count(".") - 1]
        kinds = {type(modules[n]).__name__ for n in family}
        if any(_related(mixer.name, name) for name in named) or any(_names(text, kinds) for text in said):
            verdict.add(PARTLY, f"{mixer.kind} is missing, and named")
        else:
            verdict.add(UNNAMED, f"{mixer.name} ({mixer.kind}) mixes tokens")


def _inside(name, outer):
    return f"{name}.".startswith(f"{outer}.") or outer == ""


def _related(first, second):
    """Whether one of two modules is, or contains, the other."""
    return _inside(first, second) or _inside(second, first)


def _names(text, kinds):
    return bool(set(re.findall(r"\w+", text)) & kinds)
