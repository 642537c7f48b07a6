"""Ring attention as an attention call: `regard.attend(…, group=)` in a model whose rows several ranks hold.

Each rank hears its own rows, with the keys of all ranks, which pass by it anyway: its evidence is made from
them. It keeps its own rows and its own keys, and a folder of all ranks joins them. A call goes to those who
listen to `scaled_dot_product_attention`, which it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from regard.attention.context_parallel.ring import RingCall, ring_listeners
from regard.attention.masks.views import Positions
from regard.recorder.attention_call import AttentionCall
from regard.recorder.placement import Placement
from regard.recorder.sources.call_listeners import Listening, current_listeners, notify
from regard.recorder.storage.layer_file import storable_mask


@contextmanager
def intercepted() -> Iterator[None]:
    """Inside the block, calls on a ring go to the listeners of the context that makes them."""
    with ring_listeners.added(_pass_on):
        yield


def _pass_on(call: RingCall) -> None:
    listeners = current_listeners()
    if any(listener.is_editor for listener in listeners):
        raise ValueError(
            "regard.intervene cannot edit attention whose rows several processes hold: run the model in one"
        )
    with Listening():
        notify(listeners, attention_call(call))


def attention_call(call: RingCall) -> AttentionCall:
    """Return a call on a ring as an `AttentionCall` of this rank's rows on all keys."""
    settings = call.scale, call.softcap, call.sinks
    tensors = call.q, call.k, call.v, call.output, call.lse
    whole = AttentionCall(*tensors, call.mask, *settings, own_lse=True)
    H, (G, S) = call.q.shape[1], call.k.shape[1:3]
    rows = torch.cat([torch.arange(run.start, run.stop, device="cpu") for run in call.q_runs])
    # A ring of one process has all rows.
    if len(rows) == call.T:
        return whole
    runs = (tuple((run.start, run.stop) for run in of_rank if run) for of_rank in (call.q_runs, call.k_runs))
    return whole._replace(
        mask=Positions(call.mask, rows, torch.arange(S, device="cpu"), call.T, S),
        placement=Placement(H, tuple(range(G)), *runs),
        # A user's function cannot be written to the folder of all ranks, so that it is stored as a tensor.
        whole_mask=storable_mask(call.mask, (len(call.q), H, call.T, S), call.q.device),
    )
