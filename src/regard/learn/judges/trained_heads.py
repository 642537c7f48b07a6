"""Lesson 11: scores of heads, heads that are named by them, and a head that is cut.

A score is compared with that of the solution on a random map; a named head counts if its score is clearly
above that of uniform attention; a cut is judged by what reaches the output projection.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.gpt import GPT
from regard.gpt.block import Block
from regard.heads import repeated
from regard.heads.labels import MARGIN, MIN_SCORES
from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import largest_difference
from regard.learn.judges.common.verdicts import named_mistake
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture

DRAWS, TOKENS = 10, 25  # random tokens, said twice after a start token
TEXT = " river army east light river army east light"
IDS = torch.tensor([2, 0, 1, 1, 3, 0, 1, 2, 2, 0, 3, 1])  # tokens of a random map


@cache
def load_model() -> GPT:
    """Return the included model."""
    return GPT.from_pretrained("default")


def block_of(layer: int) -> Block:
    """Return the block of a layer of the model."""
    block = load_model().blocks[layer]
    assert isinstance(block, Block)
    return block


def encode(text: str) -> tuple[list[int], list[str]]:
    """Return the tokens of a text after a start token: as ids, and as words to print."""
    tokenizer = load_model().tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text).ids
    return ids, ["start", *(tokenizer.decode([token]).strip() for token in ids[1:])]


def repeats(seed: int = 0) -> Tensor:
    """Return random tokens said twice after a start token, (10, 51)."""
    vocabulary = load_model().config.vocab_size
    return repeated(vocabulary, start=0, tokens=TOKENS, times=2, draws=DRAWS, seed=seed)


def _random_map(seed: int = 0) -> Tensor:
    scores = draw(12, 12, seed=seed)
    return scores.masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf).softmax(-1)


def _score_task(kind: str, reason: str, *arguments: Tensor) -> FunctionTask:
    """The task to write a score of this kind, tried on random maps."""
    return FunctionTask(
        "trained_heads",
        f"{kind}_score",
        lambda: (
            Case("on a random map of 12 tokens", (_random_map(), *arguments), reason),
            # One number may be right by chance.
            Case("on another map", (_random_map(1), *arguments)),
        ),
    )


SCORES = {
    "previous_token": _score_task(
        "previous_token", "It is the mean of A[q, q − 1] over the queries q from 1 on."
    ),
    "sink": _score_task(
        "sink", "It is the mean of A[q, 0] over all queries q, the first included, which reads itself."
    ),
    "induction": _score_task(
        "induction",
        "A key counts if it stands before the query and the token before it equals the query's token.",
        IDS,
    ),
}


def score(kind: str, A: Tensor, ids: Tensor) -> float:
    """Return the score of a map A (T, T) over tokens ids (T,)."""
    return float(SCORES[kind].right(*((A, ids) if kind == "induction" else (A,))))


@cache
def scores_of_all(kind: str) -> Tensor:
    """Return a score of every head of the model on random repeats, (layers, heads)."""
    ids = repeats()
    maps = [m.to_dense() for m in load_model().maps(ids)]  # (B, H, T, T) each
    return torch.tensor(
        [[_mean_score(kind, heads[:, head], ids) for head in range(heads.shape[1])] for heads in maps]
    )


def _mean_score(kind: str, maps: Tensor, ids: Tensor) -> float:
    """The mean of a score over texts ids (B, T) with maps (B, T, T)."""
    return sum(score(kind, A, text) for A, text in zip(maps, ids, strict=True)) / len(ids)


def baseline(kind: str) -> float:
    """Return the score of uniform attention over the visible keys, on one of the texts."""
    ids = repeats()[0]
    visible = torch.ones(len(ids), len(ids)).tril()
    return score(kind, visible / visible.sum(-1, keepdim=True), ids)


LEAST = MIN_SCORES | {"sink": 0.5}  # the file asks for a head that gives *most* of its attention there
WHAT = {
    "previous_token": "to the token before",
    "sink": "to the first token",
    "induction": "to what followed the earlier copy",
}


def judge_head(kind: str) -> Callable[[Any, ModuleType], Outcome]:
    """Return a judge of the head that the learner has named for this kind."""

    def judge(answer: Any, module: ModuleType) -> Outcome:
        scores, null = scores_of_all(kind), baseline(kind)
        place = _place(answer, scores)
        if place is None:
            layers, heads = scores.shape
            raise NotDoneError(
                f"expected (layer, head), a layer from 0 to {layers - 1} and a head from 0 to {heads - 1}, "
                f"got {answer!r}",
                hint="the layer comes first, then the head, both counted from 0: (4, 1) is head 1 of layer 4",
            )
        own, best = scores[place].item(), scores.max().item()
        said = f"head {place[1]} of layer {place[0]} gives {own:.2f} of its attention {WHAT[kind]}; uniform "
        said += f"attention would give {null:.2f}"
        if own < max(LEAST[kind], null + MARGIN):
            layer = int(scores.max(1).values.argmax())
            raise NotDoneError(
                f"{said}, and the clearest head gives {best:.2f}",
                hint=f"python lesson11.py prints the scores of every head: look in layer {layer}",
            )
        rank = int((scores > own).sum())
        said += ", and no other head gives more" if rank == 0 else f"; the clearest gives {best:.2f}"
        picture = _picture(module) if kind == "induction" else None
        return Outcome(f"{kind}_head", "done", f"{said}.", picture=picture)

    return judge


def _place(answer: Any, scores: Tensor) -> tuple[int, int] | None:
    """The learner's answer as a layer and a head of the model; None if it is no such thing."""
    whole = isinstance(answer, tuple | list) and len(answer) == 2
    if not whole or not all(isinstance(number, int) for number in answer):
        return None
    layer, head = answer
    return (layer, head) if 0 <= layer < scores.shape[0] and 0 <= head < scores.shape[1] else None


def _picture(module: ModuleType) -> WeightPicture:
    """The learner's two heads on four words said twice: the rows of the second time."""
    model, scores = load_model(), scores_of_all("induction")
    ids, words = encode(TEXT)
    places = {
        "induction head": _place(module.induction_head, scores),
        "previous-token head": _place(module.previous_token_head, scores),
    }
    maps = model.maps(torch.tensor([ids]))
    titles, weights = [], []
    half = 1 + len(words) // 2  # the start token, and four words
    for title, place in places.items():
        if place is not None:
            titles.append(f"your {title}, {place}")
            weights.append(maps[place[0]].to_dense()[0, place[1], half:].tolist())
    return WeightPicture(titles, words[half:], words, weights)


def judge_cut(function: Any, module: ModuleType) -> Outcome:
    """Judge what reaches the output projection, then cut the learner's induction head and its neighbours."""
    # A copy: a hook that is never removed, or sits in another place, stays in it.
    model = copy.deepcopy(load_model())
    _check_cut_inputs(function, model)
    # (4, 0): a head to cut even if the learner has not named one yet.
    place = _place(getattr(module, "induction_head", None), scores_of_all("induction")) or (4, 0)
    whole = loss_of_second_half(model)
    rises = {}
    for head in range(model.config.num_heads):
        with removed_after(function(model, place[0], head)):
            rises[head] = loss_of_second_half(model) - whole
    own = rises.pop(place[1])
    others = ", ".join(f"{rise:+.2f}" for rise in rises.values())
    message = (
        f"the loss on the second half is {whole:.2f} nats a token. Without head {place[1]} of layer "
        f"{place[0]} it is {whole + own:.2f} ({own:+.2f}); without one of the other heads of "
        f"that layer it changes by {others}."
    )
    return Outcome("cut_head", "done", message)


def _check_cut_inputs(function: Any, model: GPT) -> None:
    """Raise what is wrong with what the output projection gets after a cut."""
    layer, head, ids = 2, 1, repeats()[:1]
    D = model.config.head_dim
    before, out_before = _projection(model, layer, ids)
    attention: Any = model.blocks[layer].attention
    hook = function(model, layer, head)
    if not hasattr(hook, "remove"):
        raise NotDoneError(
            f"expected the hook, which has remove(), got {type(hook).__name__}",
            hint="return attention.out.register_forward_pre_hook(zero)",
        )
    if attention._forward_pre_hooks:
        said = "the hook is on the attention, which gets tokens; heads side by side are what its `out` gets"
        raise NotDoneError(said, hint="return attention.out.register_forward_pre_hook(zero)")
    blocks: Any = model.blocks
    for other, block in enumerate(blocks):
        if other != layer and block.attention.out._forward_pre_hooks:
            said = f"the hook is in layer {other}, and asked for is layer {layer}, the argument `layer`"
            raise NotDoneError(said, hint="attention = model.blocks[layer].attention")
    own_hook = attention.out._forward_pre_hooks.get(getattr(hook, "id", -1))
    answered = own_hook is not None and own_hook(None, (before.clone(),)) is not None
    with removed_after(hook):
        after, out_after = _projection(model, layer, ids)
    if largest_difference(_projection(model, layer, ids)[0], before) > 0:
        raise NotDoneError("after hook.remove() the head is still cut", hint="return the hook itself")
    expected = before.clone()
    expected[..., head * D : (head + 1) * D] = 0
    if largest_difference(after, expected) == 0:
        return
    if largest_difference(after, before) == 0:
        if largest_difference(out_after, out_before) > 0:
            raise named_mistake("head-cut-after-mixing")
        if answered:
            said = "nothing is cut: the slice that is set to 0 holds no numbers"
            raise NotDoneError(said, hint="merged[..., head * D : (head + 1) * D] = 0, on the last axis")
        raise named_mistake("hook-without-return")
    if not after.any():
        raise named_mistake("whole-layer-cut")
    raise NotDoneError(
        _describe_cut(before, after, head, D), hint="merged[..., head * D : (head + 1) * D] = 0"
    )


def _describe_cut(before: Tensor, after: Tensor, head: int, D: int) -> str:
    """Say which numbers were changed instead of those of the head."""
    changed = (before != after)[0]  # (T, H · D)
    tokens, channels = (changed.any(dim).nonzero()[:, 0] for dim in (1, 0))
    if len(tokens) < before.shape[1]:
        some = f"{len(tokens)} of {before.shape[1]} tokens"
        return f"{some} changed: a head is a slice of the last axis, in every token"
    return (
        f"expected channels {head * D} to {(head + 1) * D - 1} to be 0 for head {head}, and no other; "
        f"of {changed.shape[1]} channels {len(channels)} changed, the first of them {int(channels[0])}"
    )


def _projection(model: GPT, layer: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What the output projection of a layer gets (B, T, H · D), and its block gives (B, T, d_model)."""
    merged: list[Tensor] = []
    residual: list[Tensor] = []
    block: Any = model.blocks[layer]
    watching = block.attention.out.register_forward_hook(
        lambda _, inputs, out: merged.append(inputs[0].clone())
    )
    after_block = block.register_forward_hook(lambda _, inputs, out: residual.append(out))
    with removed_after(watching), removed_after(after_block), torch.no_grad():
        model(ids)
    return merged[0], residual[0]


def loss_of_second_half(model: GPT) -> float:
    """Return the mean loss of the second saying of random tokens, after its first token."""
    ids = repeats(seed=1)
    with torch.no_grad():
        losses = F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return losses[:, TOKENS + 1 :].mean().item()  # places that predict the second to the last repeated token


@contextmanager
def removed_after(hook: Any) -> Iterator[None]:
    """Remove a hook after the block, whatever happens in it."""
    try:
        yield
    finally:
        hook.remove()


def rise_without_induction(module: ModuleType) -> float:
    """Return by how much the loss rises without the clearest induction head."""
    model, scores = load_model(), scores_of_all("induction")
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    attention, D = block_of(layer).attention, model.config.head_dim

    def zero(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        merged = inputs[0].clone()
        merged[..., head * D : (head + 1) * D] = 0
        return (merged,)

    whole = loss_of_second_half(model)
    with removed_after(attention.out.register_forward_pre_hook(zero)):
        return loss_of_second_half(model) - whole


TASKS = (
    *(function.task() for function in SCORES.values()),
    Task("previous_token_head", judge_head("previous_token")),
    Task("sink_head", judge_head("sink")),
    Task("induction_head", judge_head("induction")),
    Task(
        "cut_head",
        judge_cut,
        # Of a copy: the trial leaves its hook there, and the other tasks measure the model.
        trials=(
            Trial(
                lambda: (copy.deepcopy(load_model()), 2, 1), then=lambda hook, model, *_: model(repeats()[:1])
            ),
        ),
    ),
    guess_task("trained_heads", "rise_of_the_loss", rise_without_induction),
)
