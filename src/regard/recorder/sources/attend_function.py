"""`regard.attend` as an attention call: in modules of your own, of any model.

While a capture is open, `attend` computes by `observed_attend`, which returns the same bits: it runs the same
kernel, takes the row log-sum-exp as well, and passes the call to those who listen to
`scaled_dot_product_attention`, which it stands for. Of Regard's own code its layers and its
attention for Transformers are heard.

With `group=` it is ring attention, in a model whose rows several ranks hold. Each rank hears its own rows,
with the keys of all ranks, which pass by it anyway: its evidence is made from them. It keeps its own rows and
its own keys, and a folder of all ranks joins them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.backends.plan import CallArguments, attend_by_plan
from regard.attention.backends.problem import prepare
from regard.attention.context_parallel.ring import RingCall
from regard.attention.inputs import as_batch_mask
from regard.attention.masks.views import Positions
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.map_preparation import without_autocast
from regard.recorder.placement import Placement
from regard.recorder.sources import sdpa
from regard.recorder.sources.call_listeners import (
    Listening,
    current_listeners,
    notify,
    open_listeners,
    read_or_explain,
    reading_mode,
    wants_overview,
)
from regard.recorder.sources.sdpa_call import attention_call
from regard.recorder.sources.structure_of_models.calling_modules import calling_module
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.storage.layer_file import storable_mask
from regard.support.override import Replacement
from regard.support.torch_internals import current_transform

HEARD = ("regard.layers.attention", "regard.recorder.sources.transformers_library.transformers_attention")
"""The files of Regard's own code that compute a model's attention."""


def replacements(model: KnownModel) -> Iterator[Replacement]:
    """Yield the function that `attend` computes by."""
    yield Replacement(sys.modules[attend.__module__], attend_by_plan.__name__, lambda _: observed_attend)


def observed_attend(arguments: CallArguments, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Compute a call of `attend` and pass it to the listeners of this context."""
    q, k, v, mask, scale, softcap, sinks, dropout, backend = arguments
    plain = functools.partial(attend_by_plan, arguments)
    listeners = current_listeners()
    # Of the code that called `attend`, two frames up.
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if not listeners or (caller.startswith("regard.") and caller not in HEARD):
        return plain(return_lse)
    with Listening():
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
        with reading_mode(listeners), without_autocast(q.device):
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
    if call.edited is not None:
        output = call.edited.reshape(output.shape)
    return output, lse.reshape(q.shape[:-1]) if return_lse and lse is not None else None


def with_evicted_keys(call: AttentionCall) -> AttentionCall:
    """Return a call of the layer that is running with the keys that its cache has evicted, if any."""
    layer = calling_module()
    watch = next((x.caches[layer] for x in open_listeners.get() if layer in x.caches), None)
    return call if watch is None else watch.restored(call)


def hear_ring(call: RingCall) -> None:
    """Pass a call on a ring to the listeners of this context."""
    listeners = current_listeners()
    if any(listener.is_editor for listener in listeners):
        raise ValueError(
            "regard.intervene cannot edit attention whose rows several processes hold: run the model in one"
        )
    with Listening():
        notify(listeners, ring_call(call))


def ring_call(call: RingCall) -> AttentionCall:
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
