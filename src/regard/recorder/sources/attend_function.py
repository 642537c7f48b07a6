"""`regard.attend` as an attention call: in modules of your own, of any model.

While a capture is open, `attend` computes by `observed_attend`, which returns the same bits: it runs the same
kernel, takes the row log-sum-exp as well, and passes the call to those who listen to
`scaled_dot_product_attention`, which it stands for. Of Regard's own code its layers are heard.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.backends.plan import attend_by_plan
from regard.attention.backends.problem import prepare
from regard.attention.inputs import as_batch_mask
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.map_preparation import without_autocast
from regard.recorder.sources import sdpa
from regard.recorder.sources.call_listeners import (
    Listening,
    current_listeners,
    notify,
    read_or_explain,
    reading_mode,
    wants_overview,
)
from regard.recorder.sources.gpt import with_evicted_keys
from regard.recorder.sources.sdpa_call import attention_call
from regard.support.override import SharedOverride
from regard.support.torch_internals import current_transform

_override = SharedOverride()


@contextmanager
def intercepted() -> Iterator[None]:
    """While any such block is open, calls of `attend` go to the listeners of the context that makes them."""
    with _override.opened():
        _override.replace(sys.modules[attend.__module__], attend_by_plan.__name__, lambda _: observed_attend)
        yield


def observed_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    backend: str,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute a call of `attend` and pass it to the listeners of this context."""
    plain = functools.partial(attend_by_plan, q, k, v, mask, scale, softcap, sinks, dropout, backend)
    listeners = current_listeners()
    # Of the code that called `attend`, two frames up.
    caller = sys._getframe(2).f_globals.get("__name__", "")
    # Its attention for Transformers is heard by the interface.
    is_own = caller.startswith("regard.") and not caller.startswith("regard.layers.")
    if not listeners or sdpa.is_computing() or is_own:
        return plain(return_lse)
    with sdpa.Computing():
        # Without a width there is no output to compare; the model is to go on all the same.
        unreadable = "its values have a width of 0" if v.shape[-1] == 0 else None
        if current_transform() is not None:
            unreadable = "it runs inside a transform of torch.func, which hides its numbers"
        if unreadable is not None:
            notify(listeners, UnreadableCall(unreadable))
            return plain(return_lse)
        problem = prepare(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
        device, results = q.device.type, None
        # Autocast lowers some kernels, and not those that return the lse: to ask for it would change the
        # output.
        lowers = torch.is_autocast_enabled(device)
        if backend == "auto" and not dropout and not lowers and wants_overview(listeners):
            results = sdpa.attend_with_overview(problem)
        output, lse, kept = (*plain(return_lse or not lowers), None) if results is None else results
        called_q, called_k, called_v = (x.to(output.dtype) for x in (problem.q, problem.k, problem.v))
        heads = output.reshape(*problem.q.shape[:-1], v.shape[-1])
        # Under autocast the kernel has rounded its inputs to the dtype of its output.
        tensors = called_q, called_k, called_v, heads
        own_lse = None if lse is None or lowers else lse.reshape(problem.q.shape[:-1])
        # The caller may write to the one that it is given.
        if return_lse and own_lse is not None:
            own_lse = own_lse.clone()
        with reading_mode(listeners), Listening(), without_autocast(q.device):
            call: Call
            # A tensor may be one of Regard's masks as a matrix, and is read as that mask.
            if isinstance(mask, Tensor) and q.ndim == 4:
                call = read_or_explain(attention_call, *tensors, mask, False, problem.scale, own_lse)
            else:
                rule, has_lse = as_batch_mask(mask, q), own_lse is not None
                call = AttentionCall(*tensors, own_lse, rule, problem.scale, own_lse=has_lse)
            if isinstance(call, AttentionCall):
                reason = dropout_problem(dropout)
                call = call._replace(softcap=softcap, sinks=sinks, problem=reason, kept=kept)
                call = with_evicted_keys(call)
            call = notify(listeners, call)
    output = output.reshape(*q.shape[:-1], v.shape[-1])
    if isinstance(call, AttentionCall) and call.used is not None:
        output = call.used.reshape(output.shape)
    return output, lse.reshape(q.shape[:-1]) if return_lse and lse is not None else None
