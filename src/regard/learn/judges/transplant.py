"""Lesson 12: the learner's attention with the weights of a trained layer, beside what that layer computed.

Each part is judged with the others made by us, and all of them together at the end. A mistake is named by
the edit of the solution that gives the same on a layer.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import TOLERANCE, is_equal, largest_difference
from regard.learn.judges.common.verdicts import Variant, is_right, named_mistake, reject_variants
from regard.learn.judges.own_projections import NAN, wrong_weights
from regard.learn.judges.trained_heads import block_of, encode, load_model
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.learn.wrong_ways import define, wrong_ways
from regard.recorder import capture

TEXT = "the king of the city and the king of"
SHOWN = (4, 0)  # the layer and head of the picture
LAYER = 3  # for judging the parts
FREQUENCIES = "frequencies = 10000.0 ** (-torch.arange(0, D, 2) / D), which is 1 for the first pair"
WEIGHTS = "q, k = rotate(q), rotate(k) after the heads are split; scores = q @ k.mT / self.head_dim**0.5"
TURNED = "a cos − b sin, b cos + a sin"
MIXED = "self.W_o((weights @ v).transpose(1, 2).reshape(B, T, d_model))"
COPY = "W_q, W_k, W_v = attention.qkv.weight.chunk(3), by rows; W_o takes attention.out.weight"


class LayerCall(NamedTuple):
    """What one layer's attention got and gave when the model read TEXT."""

    x: Tensor  # (1, T, d_model)
    out: Tensor  # (1, T, d_model)
    block_input: Tensor  # (1, T, d_model), before the norm


@cache
def token_ids() -> Tensor:
    """Return TEXT as ids after a start token, (1, T)."""
    return torch.tensor([encode(TEXT)[0]])


@cache
def layer_call(layer: int) -> LayerCall:
    """Return what the attention of a layer got and gave."""
    block, calls, inputs = block_of(layer), [], []
    hooks = (
        block.attention.register_forward_hook(lambda _, args, out: calls.append((args[0], out))),
        block.register_forward_pre_hook(lambda _, args: inputs.append(args[0])),
    )
    with torch.no_grad():
        load_model()(token_ids())
    for hook in hooks:
        hook.remove()
    return LayerCall(*calls[0], inputs[0])


ROTATE = FunctionTask(
    "transplant",
    "rotate",
    lambda: (Case("on random vectors", (draw(2, 3, 5, 8),)),),
)


def judge_rotate(function: Any, module: ModuleType) -> Outcome:
    """Compare the learner's rotation with the right one and with the usual wrong ones."""
    (result,) = ROTATE.results
    outcome = ROTATE.judge(function, module)
    if outcome.status != "wrong" or outcome.mistake or outcome.hint != result.hint:
        return outcome
    ((x,),) = (case.arguments for case in ROTATE.cases())
    try:
        answer, right = function(x.clone()), ROTATE.right(x)
    except Exception:
        return outcome  # any error of the learner's function; the outcome explains it already
    if answer.shape != x.shape:
        return outcome
    half = x.shape[-1] // 2
    if is_equal(answer[..., ::half], right[..., ::half]):
        said = "the first pair turns rightly, by 1 for each position, and others by another angle than theirs"
        raise NotDoneError(said, hint=FREQUENCIES)
    if not is_equal(answer[..., 0, :], x[..., 0, :]):
        said = "the first token is changed: at position 0 every angle is 0, its cosine 1 and its sine 0"
        raise NotDoneError(said, hint=f"{TURNED}, with positions from 0")
    said = "this does not turn the pairs of channel i and channel i + D/2"
    return replace(outcome, message=said)


class _Projections(nn.Module):
    """The projections of the learner's module, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(256, 256, bias=False) for _ in range(4))


def _layer_projections(layer: int) -> SimpleNamespace:
    """The projections of a layer as modules, by the names of the lesson."""
    attention = block_of(layer).attention
    projections = SimpleNamespace()
    for role, weight in zip("qkv", attention.qkv.weight.detach().chunk(3), strict=True):
        setattr(projections, f"W_{role}", partial(F.linear, weight=weight))
    return projections


def _wrong_answers(layer: int) -> tuple[list[Variant], list[Variant]]:
    """The weights that each mistake gives for a layer, and the outputs."""
    weights, outputs = [], []
    for way in wrong_ways("transplant", "TrainedAttention"):
        answer = _run(define("transplant", "TrainedAttention", way.right, way.wrong), layer)
        weights.append(Variant(answer[1].nan_to_num(NAN), way.mistake, way.said, way.hint))
        outputs.append(Variant(answer[0], way.mistake, way.said, way.hint))
    return weights, outputs


@cache
def _exact(layer: int) -> Tensor:
    """The weights (1, H, T, T) of a layer in float64, computed by the solution."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        weights: Tensor = _run(define("transplant", "TrainedAttention"), layer)[1]
    finally:
        torch.set_default_dtype(before)
    return weights


def judge_attention(attention_class: Any, module: ModuleType) -> Outcome:
    """Judge the module on one layer with weights copied by us, then on every layer: the certificate."""
    if not is_right(judge_rotate, module.rotate, module):
        raise NotDoneError("it is compared once `rotate` is right", status="unfinished")
    for layer in (LAYER, *range(load_model().config.num_layers)):
        answer = _run(attention_class, layer)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise NotDoneError("expected two tensors, the output and the weights")
        _compare(layer, *answer)
    return _certify(attention_class)


def _run(attention_class: Any, layer: int) -> Any:
    """Run the learner's module on a layer's input, with that layer's weights."""
    attention = block_of(layer).attention
    mine = attention_class(load_model().config.d_model, load_model().config.num_heads)
    weights = (*attention.qkv.weight.detach().chunk(3), attention.out.weight.detach())
    with torch.no_grad():
        for role, weight in zip(("W_q", "W_k", "W_v", "W_o"), weights, strict=True):
            getattr(mine, role).weight.copy_(weight)
        return mine(layer_call(layer).x.to(torch.get_default_dtype()))


def _compare(layer: int, out: Tensor, weights: Tensor) -> None:
    """Raise what is wrong with the answer for a layer."""
    expected = _exact(layer)
    if weights.shape != expected.shape:
        raise NotDoneError(f"expected the weights {tuple(expected.shape)}, got {tuple(weights.shape)}")
    if not is_equal(weights, expected):
        difference = largest_difference(weights, expected)
        said = f"in layer {layer} a weight differs from the model's by {difference:.2g}"
        projections, x = _layer_projections(layer), layer_call(layer).x
        heads = load_model().config.num_heads
        known: Iterable[Variant] = itertools.chain(
            _wrong_answers(layer)[0],
            *(wrong_weights(projections, x, heads, turn) for turn in (ROTATE.right, lambda t: t)),
        )
        reject_variants(weights.nan_to_num(NAN), known)
        if weights.isnan().any():
            said = "some weights are NaN: is there a row in which nothing is visible?"
        elif not is_equal(weights.sum(dim=-1), torch.ones(weights.shape[:-1])):
            said = "the rows of what you return do not sum to 1. Are these the scores?"
            raise NotDoneError(said, hint="return out, weights: the weights are softmax of the scores")
        raise NotDoneError(said, hint=WEIGHTS)
    call = layer_call(layer)
    # Relative, since outputs have other sizes than weights.
    if out.shape != call.out.shape or largest_difference(out, call.out) > TOLERANCE * call.out.abs().max():
        reject_variants(out, _wrong_answers(layer)[1])
        raise NotDoneError("the weights are the model's, and the output is not", hint=f"out = {MIXED}")


def _certify(attention_class: Any) -> Outcome:
    """Compare the learner's maps and outputs with the model's in every layer, and both with float64."""
    seen = capture(load_model(), inputs={"input_ids": token_ids()})
    mine, outputs, exact = [], [], []
    for layer in range(load_model().config.num_layers):
        out, weights = _run(attention_class, layer)
        mine.append(weights)
        outputs.append(largest_difference(out, layer_call(layer).out))
        exact.append(_exact(layer))
    maps = [seen[layer].to_dense() for layer in range(len(mine))]
    between, yours, models = (
        max(largest_difference(a, b) for a, b in zip(first, second, strict=True))
        for first, second in ((mine, maps), (mine, exact), (maps, exact))
    )
    message = (
        f"certified in {len(mine)} layers: no weight differs from the model's by more than {between:.0e}, no "
        f"output by more than {max(outputs):.0e}. Against float64, your weights are off by at most "
        f"{yours:.0e} and the model's by {models:.0e}."
    )
    layer, head = SHOWN
    words = encode(TEXT)[1]
    shown = [mine[layer][0, head].tolist(), maps[layer][0, head].tolist()]
    titles = [f"your map, layer {layer}, head {head}", "the model's"]
    return Outcome("TrainedAttention", "done", message, picture=WeightPicture(titles, words, words, shown))


def judge_weights(function: Any, module: ModuleType) -> Outcome:
    """Compare the copied weights with those of the layer."""
    attention = block_of(LAYER).attention
    mine = module.TrainedAttention(load_model().config.d_model, load_model().config.num_heads)
    function(mine, attention)
    copied = [getattr(mine, role).weight for role in ("W_q", "W_k", "W_v", "W_o")]
    rows = attention.qkv.weight.chunk(3)
    expected = [*rows, attention.out.weight]
    if all(torch.equal(a, b) for a, b in zip(copied, expected, strict=True)):
        return Outcome("take_weights", "done", "your module holds the weights of the layer.")
    for order in itertools.permutations(range(3)):
        if order != (0, 1, 2) and all(
            torch.equal(copied[role], rows[part]) for role, part in enumerate(order)
        ):
            raise named_mistake("roles-shuffled", hint=COPY)
    at = next(n for n, (a, b) in enumerate(zip(copied, expected, strict=True)) if not torch.equal(a, b))
    others = {
        "they are transposed": expected[at].mT,
        "it holds those of the queries": rows[0],
        "it holds those of the values": rows[2],
        "it holds every third row": attention.qkv.weight[at % 3 :: 3],
    }
    reason = next((said for said, other in others.items() if torch.equal(copied[at], other)), "")
    said = f"W_{'qkvo'[at]} does not hold the layer's weights{reason and f': {reason}'}"
    raise NotDoneError(said, hint=COPY)


def judge_input(function: Any, module: ModuleType) -> Outcome:
    """Compare the vectors with those that the layer's attention got."""
    call = layer_call(LAYER)
    # Of a copy: a hook that is never removed stays in it.
    model = copy.deepcopy(load_model())
    x = function(model, token_ids(), LAYER)
    if isinstance(x, tuple):
        raise NotDoneError(
            "this is the tuple of all inputs of the module; its first entry is the tensor",
            hint="seen.append(inputs[0])",
        )
    if isinstance(x, list):
        raise NotDoneError("this is the whole list; its first entry is the tensor", hint="return seen[0]")
    if not isinstance(x, Tensor) or x.shape != call.x.shape:
        raise NotDoneError(f"expected a tensor {tuple(call.x.shape)}", hint="seen.append(inputs[0])")
    if any(part._forward_pre_hooks or part._forward_hooks for part in model.modules()):
        said = "the hook is still there: whenever the model runs again, it is called again"
        raise NotDoneError(said, hint="hook.remove(), once the model has run")
    if largest_difference(x, call.x) == 0:
        return Outcome("layer_input", "done", "these are the vectors that the layer's attention got.")
    said = "these are not the vectors that the layer's attention got"
    if largest_difference(x, call.out) == 0:
        said = "this is what the attention gave, its output; asked for is its input"
    if largest_difference(x, call.block_input) == 0:
        said = "this is what the block got; its attention gets that normalised"
    for other in range(load_model().config.num_layers):
        if other != LAYER and torch.equal(x, layer_call(other).x):
            said = f"this is what layer {other} got; asked for is layer {LAYER}, the argument `layer`"
    hint = "model.blocks[layer].attention.register_forward_pre_hook(keep)"
    raise NotDoneError(said, hint=hint)


def difference_from_capture(module: ModuleType) -> float:
    """The largest difference of a weight, over all layers, with the learner's parts alone."""
    seen = capture(load_model(), inputs={"input_ids": token_ids()})
    exact = 0.0
    for layer in range(load_model().config.num_layers):
        mine = module.TrainedAttention(load_model().config.d_model, load_model().config.num_heads)
        module.take_weights(mine, block_of(layer).attention)
        with torch.no_grad():
            _, weights = mine(module.layer_input(load_model(), token_ids(), layer))
        exact = max(exact, largest_difference(weights, seen[layer].to_dense()))
    # `not <`, so that NaN raises as well.
    if not exact < TOLERANCE:
        raise ValueError("the learner's weights are not the model's")
    return exact


TASKS: tuple[Task, ...] = (
    Task("rotate", judge_rotate, trials=(Trial((draw(2, 3, 5, 8),)),)),
    Task(
        "TrainedAttention",
        judge_attention,
        trials=(Trial((draw(1, 9, 64),), {"d_model": 64, "num_heads": 4}),),
    ),
    Task(
        "take_weights",
        judge_weights,
        trials=(
            Trial(
                lambda: (_Projections(), block_of(LAYER).attention),
                then=lambda _, mine, attention: torch.cat([weight.detach() for weight in mine.parameters()]),
            ),
        ),
    ),
    Task("layer_input", judge_input, trials=(Trial(lambda: (load_model(), token_ids(), LAYER)),)),
    guess_task("transplant", "largest_difference", difference_from_capture),
)
