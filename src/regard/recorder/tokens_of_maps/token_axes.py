"""Decides whether the rows and keys of a captured map are the tokens that the model was given.

A map has four axes, and only its own code says what they are. In the models of Transformers and Regard they
are texts, heads and tokens. In any other code they have to agree with the token ids in number, and nothing
may have put the tokens in another order on the way (`sources.token_order`); otherwise the map is that of a
call, and no tokens are attached to it. This file knows shapes; it does not know models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from regard.recorder.attention_call import AttentionCall
from regard.recorder.certificates.certificate import BY_NUMBER, CHANGED, KNOWN_CODE, Evidence
from regard.recorder.layer import Layer
from regard.recorder.sources.token_order import TokenOrder

SECOND_TEXT = "it is named as attention to another text, and nothing shows which tokens its queries are"
TURNED = "its queries are as wide as the text is long, and lie in memory as if they were channels"
AS_MANY = "it has as many heads as tokens, and nothing shows which axis counts which"
MOVED = "changing a token moved the rows or keys of other tokens, or not its own"


def place(
    layer: Layer,
    is_known: bool,
    ids: Tensor | None,
    target_ids: Tensor | None,
    probed: Mapping[str, str | None],
) -> Evidence:
    """Return the evidence of a layer with what shows that its axes are tokens, or why they may not be.

    - `is_known`: whether its model's code keeps tokens in order.
    - `ids`, `target_ids` (B, T): what the model read.
    - `probed`: by layer name, why changed tokens moved other rows than their own, or None where they did not.
    """
    evidence = layer.evidence
    ids = target_ids if layer.stack == "decoder" and target_ids is not None else ids
    if ids is None or layer.stack == "cross":
        reason = None if ids is None or is_known else SECOND_TEXT
        return replace(evidence, unplaced=evidence.unplaced or reason)
    if probed.get(layer.name, MOVED) is None and layer.shape[2] == layer.shape[3]:
        return replace(evidence, unplaced=None, tokens=CHANGED)
    if evidence.unplaced is not None:
        return evidence
    if is_known:
        return replace(evidence, tokens=KNOWN_CODE)
    reason = _other_shape(layer.shape, tuple(ids.shape)) or probed.get(layer.name)
    return replace(evidence, unplaced=reason, tokens="" if reason is not None else BY_NUMBER)


def _other_shape(shape: tuple[int, int, int, int], ids: tuple[int, ...]) -> str | None:
    """Return why a map (B, H, T, S) is not one of these ids (B, T), or None if it may be."""
    B, _, T, S = shape
    if ids[0] != B:
        return other_batch(B, ids[0])
    if not T == S == ids[1]:
        return f"it has {T} queries and {S} keys, and the model was given {ids[1]} tokens"
    return None


def other_batch(B: int, texts: int) -> str:
    """Say that a map has other texts than the model was given."""
    return (
        f"it has {B} batch entries, and the model was given {texts}: heads, windows or a part of the batch "
        "may stand there; pass queries as (B, H, T, D), or give an adapter"
    )


def why_unplaced(
    call: AttentionCall, is_known: bool, order: TokenOrder | None, batch: tuple[int, ...]
) -> str | None:
    """Return why the axes of a call are not known to be texts, heads and tokens; None if they may be.

    - `is_known`: whether its model's code keeps tokens in order.
    - `order`: what was watched of the order of tokens on their way to the call; None if nothing was.
    - `batch`: the batch sizes that the model was given.
    """
    if call.recurrence is not None:  # its function's signature says which axes these are
        return None if order is None or is_known else order.explain()
    B, H, T, D = call.q.shape
    if call.unplaced is None and order is not None:
        # XCiT attends between channels; its queries are transposed views.
        is_turned = T == D == order.T > 1 and call.q.stride(3) > call.q.stride(2)
        # (B, T, H, D) without a transpose looks like this; heads that were cut from channels do not.
        is_either = T == H == order.T > 1 and call.q.stride(1) >= call.q.stride(2)
        if is_known:  # inside of which nothing is watched
            return order.reason
        return order.explain() or (TURNED if is_turned else AS_MANY if is_either else None)
    if call.unplaced is None and batch and B not in (1, *batch) and not is_known:
        return other_batch(B, batch[0])
    return call.unplaced
