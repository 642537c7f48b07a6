"""Lesson 9: a layer with a cache gives the same output in whatever pieces a text arrives."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import is_equal, largest_difference
from regard.learn.judges.common.verdicts import check_attention, example_picture
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial
from regard.stages.example import WK, WQ, X

NAME = "CachedMultiHeadAttention"
D_MODEL, HEADS, LENGTH = 16, 2, 7


def judge_class(layer_class: Any, module: ModuleType) -> Outcome:
    """Compare pieces with the whole, then let the checker say which mistake it is, if any."""
    torch.manual_seed(0)
    layer = layer_class(D_MODEL, HEADS).eval()
    x = torch.randn(3, LENGTH, D_MODEL)
    with torch.no_grad():
        _check_interface(layer, x)
        try:
            differences = {pieces: _difference(layer, x, pieces) for pieces in _pieces(LENGTH)}
        except Exception as error:
            # add_note keeps the learner's own traceback, and the judge's words come with it.
            error.add_note(
                "A whole sequence runs; the second call, which gets a cache, fails. Keys and values of the "
                "cache and of the new tokens are joined along dim=-2, the tokens, and both are kept. The "
                "mask is (T, S), a row for each new token and a column for each key, old ones too."
            )
            raise
    done = (
        f"the output is the same in {len(differences)} ways to cut {LENGTH} tokens into pieces, with a batch "
        f"of {len(x)}; the largest difference is {max(differences.values()):.1g}."
    )
    sizes = {"d_model": D_MODEL, "num_heads": HEADS}
    outcome = check_attention(NAME, layer_class, done, causal=True, init=sizes, cached=_step)
    if outcome.mistake == "one-projection" and _sees_one_key(layer, x):
        said = "W_q has no influence: every token sees one key only, and softmax of one score is 1"
        raise NotDoneError(said, hint="visible.tril(S - T): new token i sees the keys up to S − T + i")
    if outcome.status == "done":
        _check_counts(layer, x)
        return Outcome(NAME, "done", outcome.message, picture=_picture(layer_class))
    if not outcome.mistake:
        _check_contents(layer, x)
    return outcome


def _sees_one_key(layer: Any, x: Tensor) -> bool:
    """Whether W_q is called, and its queries change nothing."""
    called: list[Tensor] = []

    def negate(_: Any, inputs: Any, q: Tensor) -> Tensor:
        called.append(q)
        return -q

    with torch.no_grad():
        before = layer(x)[0]
        hook = layer.W_q.register_forward_hook(negate)
        after = layer(x)[0]
        hook.remove()
    return bool(called) and largest_difference(before, after) == 0


def _step(layer: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
    out, cache = layer(x, cache)
    return out, cache


def _check_interface(layer: nn.Module, x: Tensor) -> None:
    answer = layer(x)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Tensor):
        raise NotDoneError(
            "expected two results, the output and the cache", hint="return self.W_o(heads), cache"
        )
    out, cache = answer
    if out.shape != x.shape:
        raise NotDoneError(f"expected the output {tuple(x.shape)}, got {tuple(out.shape)}")
    if cache is None:
        raise NotDoneError("the cache that comes back is None: nothing is kept", hint="cache = (k, v)")


def _pieces(length: int) -> list[tuple[int, ...]]:
    """Every split in two, token by token, and chunks of two and three."""
    splits = [(at, length - at) for at in range(1, length)]
    chunks = [(size,) * (length // size) + (length % size,) * (length % size > 0) for size in (1, 2, 3)]
    return splits + chunks


def _run(layer: nn.Module, x: Tensor, pieces: tuple[int, ...]) -> tuple[Tensor, Any]:
    outputs, cache = [], None
    for piece in torch.split(x, list(pieces), dim=1):
        out, cache = layer(piece, cache)
        outputs.append(out)
    return torch.cat(outputs, dim=1), cache


def _difference(layer: nn.Module, x: Tensor, pieces: tuple[int, ...]) -> float:
    return largest_difference(_run(layer, x, pieces)[0], layer(x)[0])


def _check_contents(layer: nn.Module, x: Tensor) -> None:
    """Raise what is wrong in the cache itself, where no mistake of the catalogue explains the output."""
    with torch.no_grad():
        _, whole = layer(x)
        _, cache = _run(layer, x, (4, LENGTH - 4))
    # Some keep them in a dictionary, by names of their own, or in a form of which nothing can be said.
    kept_parts, whole_parts = (
        list(each.values()) if isinstance(each, dict) else each for each in (cache, whole)
    )
    if not isinstance(kept_parts, tuple | list) or not all(isinstance(part, Tensor) for part in kept_parts):
        return
    for what, kept, expected in zip(("keys", "values"), kept_parts, whole_parts, strict=False):
        if kept.shape != expected.shape:
            raise NotDoneError(
                f"after 4 tokens and {LENGTH - 4} more, the {what} in the cache are {tuple(kept.shape)}; "
                f"expected {tuple(expected.shape)}, one for each token",
                hint="torch.cat([cache[0], k], dim=-2) for the keys, and the same with v for the values",
            )
        if not is_equal(kept, expected):
            raise NotDoneError(
                f"the {what} in the cache are not those of the tokens in their order, oldest first",
                hint="torch.cat([cache[0], k], dim=-2) for the keys, and the same with v for the values",
            )


def _check_counts(layer: Any, x: Tensor) -> None:
    """Raise what is said of a layer that is exact because it computes earlier keys again."""
    rows: list[int] = []
    # Counted at W_k: the output cannot tell whether keys were computed again.
    counting = layer.W_k.register_forward_hook(lambda _, inputs, out: rows.append(inputs[0].shape[-2]))
    with torch.no_grad():
        _, cache = layer(x[:, :5])
        rows.clear()
        layer(x[:, 5:6], cache)
    counting.remove()
    if sum(rows) != 1:
        raise NotDoneError(
            f"the output is right, but for one new token W_k computes {sum(rows)} keys: nothing is saved",
            hint="keep keys and values in the cache, not the tokens: cache = (k, v)",
        )


def _picture(layer_class: Any) -> Any:
    """The weights of the running example, one token at a time through the learner's cache.

    Token t enters as the t-th unit vector, whose query and key are set to those of the example; the values
    are the unit vectors themselves, so that an output is the row of weights.
    """
    layer, tokens = layer_class(len(X), 1).eval(), torch.eye(len(X))
    width = len(X) - WQ.shape[1]  # zeros that make queries and keys as wide as the unit vectors
    scale = (len(X) / WQ.shape[1]) ** 0.5  # so that the scores are divided by √2, as in the example
    with torch.no_grad():
        layer.W_q.weight.copy_(nn.functional.pad(X @ WQ * scale, (0, width)).T)
        layer.W_k.weight.copy_(nn.functional.pad(X @ WK, (0, width)).T)
        for projection in (layer.W_v, layer.W_o):
            projection.weight.copy_(tokens)
        weights = _run(layer, tokens[None], (1,) * len(X))[0][0]
    return example_picture(["your weights, one token at a time"], [weights])


TASKS = (
    Task(
        NAME,
        judge_class,
        trials=tuple(
            Trial((draw(3, 4, D_MODEL), cache), {"d_model": D_MODEL, "num_heads": HEADS})
            for cache in (None, (draw(3, HEADS, 5, 8), -draw(3, HEADS, 5, 8)))
        ),
    ),
    guess_task("cache", "megabytes_of_a_cache"),
)
