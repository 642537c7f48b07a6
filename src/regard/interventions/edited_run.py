"""`intervene`: runs a model with some of its heads edited.

The model computes as it does, on its own kernels; then the edited heads' part of the output is replaced. An
edit that never acted is an error, never a silent no-op.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

from torch import Tensor, nn

from regard.interventions.edit import CallPlace, Edit
from regard.recorder.attention_call import AttentionCall, Call, Part, UnreadableCall
from regard.recorder.call_receiver import CallReceiver, Slot
from regard.recorder.layer import LayerId
from regard.recorder.observation import observed
from regard.recorder.sources.structure_of_models.model_parts import original_model
from regard.support.torch_internals import current_graph_task

UNKNOWN_PLACES: dict[Part, str] = {
    "beside": "it cuts its tokens into windows and attends in each",
    "rows": "it cuts its queries into chunks and attends with each",
}
"""Why the rows of a call cannot be told that is not the first of several."""


def intervene(model: nn.Module, *edits: Edit) -> InterventionBlock:
    """Run a model with some of its heads edited, in a `with` block.

        with regard.intervene(model, regard.ablate(5, 3), regard.block(7, edges=regard.prefix(1))):
            logits = model(ids)

    - `model`: any model that `regard.capture` serves. It runs on its own kernels and is restored at the end.
    - `edits`: made by `regard.ablate`, `regard.block` and `regard.patch`. Whatever their order, patched
      patterns come before blocked edges, and both before edits of a head's output.

    It acts in every forward pass inside the block, under `generate` too, and gradients flow through it. A
    capture of the same model shows the edited run, and names the edits in `seen.edits`. The edits act where
    the block is open: in this thread, and in contexts copied from it. An edit that did not act by the end
    of the block, because its layer did not run or because its edges were hidden already, raises a
    RuntimeError.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not edits:
        raise ValueError("edits: expected at least one, such as regard.ablate(layer, head), got none")
    for edit in edits:
        if not isinstance(edit, Edit):
            raise ValueError(
                "edits: expected what regard.ablate, regard.block or regard.patch returns, "
                f"got {type(edit).__name__}"
            )
    model = original_model(model)
    return InterventionBlock(model, [edit.resolved(model) for edit in edits])


class InterventionBlock:
    """The context manager of `with regard.intervene(model, …):`."""

    def __init__(self, model: nn.Module, edits: Sequence[Edit]) -> None:
        self.model, self.edits = model, edits
        self.intervention: Intervention | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Intervention:
        if self.intervention is not None:
            raise RuntimeError("this intervention is open already: write regard.intervene(…) for each block")
        self.intervention = Intervention(self.edits)
        self._undo.enter_context(observed(self.model, self.intervention))
        return self.intervention

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        intervention, self.intervention = self.intervention, None
        self._undo.__exit__(kind, error, trace)
        if kind is None and intervention is not None:
            intervention.check_acted(type(self.model).__name__)


class EarlierPlace(NamedTuple):
    """What is remembered of a layer's last call, to know where the next one is."""

    total: int  # tokens so far
    last_key: Tensor  # (B, G, D)


class Intervention(CallReceiver):
    """The state of one `intervene` block: its edits, and how often each has acted."""

    is_editor = True

    def __init__(self, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.edits = sorted(edits, key=lambda edit: edit.rank)
        self.acted = [0] * len(self.edits)
        """For each edit, the number of attention calls that it has changed."""
        self._expected: list[int | str] = []
        self._earlier: dict[Slot, EarlierPlace] = {}
        self._own_tokens: tuple[int, CallPlace] | None = None
        """The number of queries and the place of the last self-attention call in this forward pass."""

    def descriptions(self) -> list[str]:
        """Return each edit in words."""
        return [str(edit) for edit in self.edits]

    def expect(self, layer_ids: Collection[LayerId]) -> None:
        """Announce the layers whose attention a source is going to see."""
        super().expect(layer_ids)
        self._expected += [layer_id.key for layer_id in layer_ids]

    def record(self, layer_id: LayerId, call: Call) -> Call:
        """Return an attention call as the edits change it."""
        with self._lock:
            if not self._is_alone():
                raise RuntimeError(self.refusal)
            # Gradient checkpointing computes the call again in the backward pass, where the edit has to act
            # as well.
            if current_graph_task() != -1:
                slot = (layer_id.name, 0)
                if self._calls[layer_id.name] > 1:
                    raise RuntimeError(
                        f"layer {layer_id.key}: gradient checkpointing cannot be edited where a module runs "
                        "several times in a pass: switch it off"
                    )
            else:
                slot, layer_id = self._locate(layer_id, call)
            place = self._place(slot, layer_id, call) if isinstance(call, AttentionCall) else None
        for number, edit in enumerate(self.edits):
            if not edit.selection.has_layer(layer_id):
                continue
            if isinstance(call, UnreadableCall) or place is None:
                reason = call.reason if isinstance(call, UnreadableCall) else ""
                raise RuntimeError(f"layer {layer_id.key} cannot be edited: {reason}")
            numbers = edit.selection.heads_in(layer_id, call.total_heads)
            heads = call.local_heads(numbers)
            edited = edit.apply(call, heads, place) if heads else call
            is_elsewhere = len(heads) < len(numbers)  # other ranks edit the heads that they have
            self.acted[number] += edited is not call or is_elsewhere
            call = edited
        return call

    def _place(self, slot: Slot, layer_id: LayerId, call: AttentionCall) -> CallPlace:
        """Return where a call is among the tokens so far, from how many of them came before."""
        T, S = call.q.shape[2], call.k.shape[2]
        key, earlier = layer_id.key, self._earlier.get(slot)
        if call.part is not None:
            return CallPlace(key, 0, 0, T, S, UNKNOWN_PLACES[call.part])
        if layer_id.stack.startswith("cross"):
            return self._cross_place(key, T, S)
        # A static cache, or a workspace of all layers, is written over.
        last_key = call.k[:, :, -1].detach().clone() if S else call.k.new_zeros(0)
        total, unknown, window = S, None, call.mask.window_size()
        if earlier is not None and T < S <= earlier.total + T and _continues(call.k, T, earlier.last_key):
            total = earlier.total + T  # also with a cache that evicts keys
        elif T < S and window is not None:
            unknown = "its cache was filled outside of the intervention, and may have evicted keys"
        place = CallPlace(key, total - T, total - S, total, total, unknown)
        self._earlier[slot] = EarlierPlace(total, last_key)
        if not layer_id.stack.startswith("encoder"):
            self._own_tokens = T, place
        return place

    def _cross_place(self, key: int | str, T: int, S: int) -> CallPlace:
        """Return where a call is whose keys are another text: its queries are where the decoder's own are."""
        if self._own_tokens is not None and self._own_tokens[0] == T:
            own = self._own_tokens[1]
            return CallPlace(key, own.first_row, 0, own.T, S, own.unknown)
        unknown = "nothing shows how many tokens its decoder has read before" if T == 1 else None
        return CallPlace(key, 0, 0, T, S, unknown)

    def _finish_forward(self) -> None:
        """Forget where the last forward pass was."""
        self._own_tokens = None

    def _check_pass(self) -> None:
        """Raise a ValueError if an edit names a layer that the model does not have."""
        known = {str(key) for key in (*self._expected, *self._names)} | set(self._names.values())
        for edit in self.edits:
            for layer, _ in edit.selection.layers:
                if layer not in known:
                    keys = ", ".join(map(repr, self._names))
                    # A hybrid's linear layers ran too, but no edit reaches them.
                    raise ValueError(
                        f"layer: expected one of those that ran softmax attention ({keys}), got {layer}"
                    )

    def check_acted(self, model: str) -> None:
        """Raise a RuntimeError if some edit has not acted."""
        ran = {str(key) for key in self._names} | set(self._names.values())
        for edit in self.edits:
            absent = [layer for layer, _ in edit.selection.layers if layer not in ran]
            if self._names and absent:
                raise RuntimeError(f"the edit did not act in layer {absent[0]}, which did not run ({edit})")
        if all(self.acted):
            return
        if not self._names:
            raise RuntimeError(
                f"{model} did not run its attention inside the block, in this thread: nothing was edited"
            )
        idle = self.edits[self.acted.index(0)]
        raise RuntimeError(
            f"the edit did not act ({idle}): its layers ran, but no edge or query of them was there to change"
        )


def _continues(k: Tensor, T: int, last_key: Tensor) -> bool:
    """Whether keys (B, G, S, D), of which T are new, come after those that ended in `last_key` (B, G, D)."""
    before = k[:, :, k.shape[2] - T - 1].detach()
    if before.shape != last_key.shape:
        return False
    # A beam search may put the batch into another order.
    return bool((before[:1] == last_key).flatten(1).all(1).any())
