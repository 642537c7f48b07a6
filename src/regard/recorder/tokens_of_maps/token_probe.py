"""Establishes which tokens the rows and keys of a map are: change some, run the model again, see what moves.

While the changed text runs, every attention hands on the output that it had for the unchanged one, so that
nothing travels from one token to another through attention. In a layer whose rows and keys are the tokens,
the queries and keys of the changed tokens then move, and no others do, whatever the layers in between. Tokens
are changed by the bits of a code, so that a handful of runs tells almost all of them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.recorder.attention_call import Call, UnreadableCall
from regard.recorder.call_receiver import CallReceiver, ModelArguments
from regard.recorder.layer import LayerId
from regard.recorder.observation import observed
from regard.recorder.tokens_of_maps.token_axes import MOVED

MAX_RUNS = 6  # codes of six bits: a token that stands in another's place goes unnoticed in 1 of 64 cases
PLAIN = Tensor | int | float | str | bool | None


class _Inputs(NamedTuple):
    """What an attention call got, and its output."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    output: Tensor  # (B, H, T, E)


class _Held(CallReceiver):
    """Records the calls of a run; or hands on the outputs of an earlier run, and notes what has moved."""

    is_editor = True

    def __init__(self, held: Sequence[_Inputs] | None = None) -> None:
        super().__init__()
        self.held = held
        self.calls: list[_Inputs] = []
        self.moved: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        """By layer name: which queries and which keys of its calls have moved, each (B, n)."""

    def record(self, layer_id: LayerId, call: Call) -> Call:
        if isinstance(call, UnreadableCall):
            return call
        _, layer_id = self._locate(layer_id, call)
        # The model may write to its tensors before the next run is compared with them.
        inputs = _Inputs(*(x.detach().clone() for x in (call.q, call.k, call.output)))
        self.calls.append(inputs)
        if self.held is None:
            return call
        if len(self.calls) > len(self.held):
            raise ValueError("it made more attention calls for other tokens")
        before = self.held[len(self.calls) - 1]
        if any(x.shape != old.shape for x, old in zip(inputs, before, strict=True)):
            raise ValueError("its attention had other sizes for other tokens")
        queries, keys = self.moved.setdefault(layer_id.name, ([], []))
        if not call.again:
            queries.append(_moved(inputs.q, before.q))
        if not call.again and call.part != "rows":  # the next queries have the same keys
            keys.append(_moved(inputs.k, before.k))
        return call._replace(edited=before.output)


def _moved(x: Tensor, before: Tensor) -> Tensor:
    """Which entries (B, n) of x (B, H, n, D) differ in any head."""
    return (x != before).any(-1).any(1).cpu()


def probe_tokens(
    model: nn.Module,
    arguments: ModelArguments,
    ids: Tensor,
    adapters: Mapping[str, Callable[..., Any]] | None,
    captured: Sequence[Tensor],
    mixes_otherwise: bool,
) -> Mapping[str, str | None] | str:
    """Return for each layer, by its name, why its axes are not the tokens; None where they are.

    - `arguments`: those of the forward pass that was captured, and `ids` (B, T) its token ids.
    - `adapters`: those of the capture, which describe the model's attention; None if it is heard.
    - `captured`: the queries that were captured, call by call, as far as they are in memory as they were.
    - `mixes_otherwise`: whether the model also mixes tokens in other ways than by softmax attention, which
      go on mixing them; a layer of which this leaves the tokens open is left out.

    If the model cannot be run again with other ids, the reason is returned instead.
    """
    values = [*arguments.args, *arguments.kwargs.values()]
    if any(not isinstance(x, PLAIN) for x in values):
        return "its arguments hold more than tensors and numbers: a cache, say, which a second run changes"
    texts = _changed_texts(ids)
    if not texts:
        return "its text has no second token id to change a token to"
    try:
        held = _run(model, arguments, ids, adapters, None)
        if not all(_is_close(q, x.q) for q, x in zip(captured, held.calls, strict=False)):
            return "it computed other queries when it was run again with the same tokens"
        runs = [(text != ids, _run(model, arguments, text, adapters, held.calls)) for text in texts]
    except Exception as error:  # whatever the model's own code raises for another text
        return f"it could not be run again with other tokens ({type(error).__name__}: {error})"
    found: dict[str, str | None] = {}
    for name in runs[0][1].moved:
        pairs = [(_joined(parts), changed) for changed, run in runs for parts in run.moved[name]]
        if all(moved is not None and torch.equal(moved, changed) for moved, changed in pairs):
            found[name] = None
        elif not mixes_otherwise or not all(_may_be_mixed(moved, changed) for moved, changed in pairs):
            found[name] = MOVED
    return found


def _is_close(q: Tensor, other: Tensor) -> bool:
    """Whether two calls had the same queries, but for rounding: an edited run may be on other kernels."""
    return q.shape == other.shape and bool(((q - other).abs() <= 1e-2 * q.abs().amax()).all())


def _joined(parts: list[Tensor]) -> Tensor | None:
    """What has moved (B, T) in all calls of a layer; None if they are not of the same texts."""
    return torch.cat(parts, 1) if parts and len({len(part) for part in parts}) == 1 else None


def _may_be_mixed(moved: Tensor | None, changed: Tensor) -> bool:
    """Whether tokens may have moved since a convolution or a recurrence carried the change on to them.

    Then every token that was changed has moved, and nothing has in texts without any.
    """
    if moved is None or moved.shape != changed.shape:
        return False
    return bool((moved | ~changed).all()) and not bool((moved & ~changed.any(1, keepdim=True)).any())


def _changed_texts(ids: Tensor) -> list[Tensor]:
    """Return texts in which tokens are other ids where a bit of their code is set; [] without other ids."""
    known = torch.tensor(sorted(set(ids.flatten().tolist())), device="cpu")
    if len(known) < 2:
        known = torch.arange(int(ids.max()) + 1, device="cpu")
    if len(known) < 2:
        return []
    at = torch.searchsorted(known, ids)
    other = known[(at + 1) % len(known)]
    count = ids.numel()
    bits = max(1, math.ceil(math.log2(count)))
    # Consecutive numbers where the codes are long enough; random ones tell neighbours apart otherwise.
    codes = torch.arange(count, device="cpu")
    if bits > MAX_RUNS:
        generator = torch.Generator().manual_seed(count)
        codes = torch.randint(0, 2**MAX_RUNS, (count,), generator=generator, device="cpu")
    runs = [(codes >> bit & 1).bool().view(ids.shape) for bit in range(min(bits, MAX_RUNS))]
    first = torch.zeros(count, dtype=torch.bool, device="cpu")
    first[0] = True
    # The token with code 0 is changed in a run of its own, which a text of one token needs, too.
    return [torch.where(changed, other, ids) for changed in (first.view(ids.shape), *runs) if changed.any()]


def _run(
    model: nn.Module,
    arguments: ModelArguments,
    ids: Tensor,
    adapters: Mapping[str, Callable[..., Any]] | None,
    held: Sequence[_Inputs] | None,
) -> _Held:
    """Run a model on a text, with the outputs that its attention had before, if they are `held`."""
    receiver = _Held(held)
    args, kwargs = arguments.with_ids(ids)
    # `fork_rng` would save the state of every GPU of the machine.
    devices = list({x.device for x in model.parameters() if x.device.type == "cuda"})
    with torch.no_grad(), torch.random.fork_rng(devices):
        # So that dropout is the same in every run.
        torch.manual_seed(0)
        with observed(model, receiver, adapters):
            model(*args, **kwargs)
    return receiver
