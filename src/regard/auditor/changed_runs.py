"""Runs of a model with other tokens, and whether an output has moved by more than rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.auditor.batch import TextBatch
from regard.auditor.ranks import Ranks, find_lockstep
from regard.interventions.effects import evaluating
from regard.recorder.rank_group import is_dtensor

RUNNING = "runs"  # what a rank tells those that run in step with it
# Relative to the largest output. Experts compute with other sizes when other tokens change, which rounds.
# In float64 too, Transformers computes rotary positions, and eager attention its softmax, in float32.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@dataclass
class OutsideReading:
    """What changing tokens showed: for each question whether it passed, and the first position that moved."""

    answers: dict[str, bool] = field(default_factory=dict)
    """By question ("texts", "documents", "padding", "future", "both ways", "alone", "eager"): whether it is
    right."""
    evidence: dict[str, str] = field(default_factory=dict)
    """By question: what was seen, in a sentence."""
    runs: int = 0
    why: str = ""
    """Why nothing could be tried; "" if something was."""


class ChangedRuns:
    """Runs a model on changed batches and compares its outputs, on all ranks in step."""

    def __init__(self, model: nn.Module, batch: TextBatch, ranks: Ranks) -> None:
        self.model, self.batch, self.ranks = model, batch, ranks
        self.config = getattr(model, "config", None)
        self.reading = OutsideReading()
        self.lockstep = find_lockstep(model)
        self.repeated: bool | None = None  # whether a second run gave the same; None if that was not seen

    def wait(self) -> None:
        """Run the model as often as the ranks that still change their batches, if they need this one's part.

        All ranks call it when they have asked everything.
        """
        with torch.no_grad(), evaluating(self.model):
            while self.lockstep is not None and RUNNING in self.lockstep.exchange(""):
                self.model(**self.batch.arguments)

    def _run(self, arguments: dict[str, Any]) -> Tensor | None:
        """Return the output for every token; None if there is none, or if other tokens do not run."""
        self.reading.runs += 1
        if self.lockstep is not None:
            self.lockstep.exchange(RUNNING)
        error = ""
        output = None
        try:
            output = self.model(**self.ranks.own_arguments(arguments))
        except Exception as raised:  # as of a model that counts its picture's tokens
            error = type(raised).__name__
        # A rank that stopped alone would leave the others waiting in a collective operation.
        errors = [x for x in self.ranks.exchange(error) if x]
        if errors:
            self.reading.why = f"it does not run with other tokens: {errors[0]}"
            return None
        return self._token_outputs(output, *arguments[self.batch.name].shape)

    def _token_outputs(self, output: Any, *shape: int) -> Tensor | None:
        """Return the output for every token of this rank; None if some rank has none."""
        B, T = shape or self.batch.shape
        outputs = token_outputs(output, B, T if self.ranks.rows is None else len(self.ranks.rows))
        return outputs if all(self.ranks.exchange(outputs is not None)) else None

    def _take_base(self, base: Tensor) -> bool:
        """Compare with these outputs from now on; return whether they are finite numbers."""
        # By how much outputs may differ by rounding alone, relative to the largest of them.
        sizes = self.ranks.join(base.float().abs().flatten(2).amax(-1))[self.batch.real]
        largest = float(sizes.max()) if len(sizes) else 1.0
        self.base, self.limit = base, TOLERANCES.get(base.dtype, 1e-4) * largest
        return math.isfinite(self.limit)

    def _difference(self, one: Tensor, other: Tensor) -> Tensor:
        """Return by how much the outputs of two runs differ at each position, (B, T)."""
        return self.ranks.join((one.float() - other.float()).abs().flatten(2).amax(-1))

    def _moves(self, other: Tensor, base: Tensor | None = None) -> Tensor:
        """Return which positions (B, T) of real tokens differ between two runs, one of them the first."""
        # Written as a negation, so that NaN counts as moved.
        return ~(self._difference(other, self.base if base is None else base) <= self.limit) & self.batch.real

    def _repeats(self) -> bool:
        """Return whether the model gives the same twice, as far as changing tokens has not shown it."""
        if self.repeated is None:
            again = self._run(self.batch.arguments)
            self.repeated = again is not None and not bool(self._moves(again).any())
            self.reading.why = (
                self.reading.why
                if self.repeated or again is None
                else "two runs on the same batch differ by more than rounding"
            )
        return self.repeated

    def _run_changed(self, chosen: Tensor, step: int = 1) -> Tensor | None:
        """Run the batch with other tokens in the place of those chosen, which occur elsewhere in it.

        Where all tokens of a text are chosen, those that an encoder reads for it are changed too.
        """
        arguments = self.batch.with_ids(self._other_ids(self.batch, chosen, step))
        if (source := self.batch.source) is not None:
            whole = (chosen | ~self.batch.real).all(1, keepdim=True) & chosen.any(1, keepdim=True)
            arguments[source.name] = self._other_ids(source, whole & source.real, step)
        return self._run(arguments)

    def _other_ids(self, batch: TextBatch, chosen: Tensor, step: int) -> Tensor:
        """Return the token ids of a batch with others in the place of those chosen."""
        ids, real = batch.ids.cpu(), batch.real
        # Models give these a meaning of their own: RoBERTa counts positions by the padding token.
        special = {getattr(self.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
        # Where a picture or a sound belongs; PaliGemma and Gemma 3 name theirs "index".
        placeholders = {
            getattr(self.config, f"{kind}_token_{name}", None)
            for kind in ("image", "video", "audio")
            for name in ("id", "index")
        } - {None}
        special |= placeholders
        # The device is named in the whole package, since torch.set_default_device may have chosen another.
        kept = torch.tensor(sorted(placeholders), dtype=ids.dtype, device="cpu")
        plain = [x for x in torch.unique(ids[real]).tolist() if x not in special]
        # A batch of very few different tokens has none to exchange them for.
        if len(plain) <= step + 1:
            plain = [x for x in range(1, 8 + step) if x not in special]
        table = torch.tensor(plain, device="cpu")
        places = torch.searchsorted(table, ids.clamp(max=max(plain)))
        other = torch.where(chosen & ~torch.isin(ids, kept), table[(places + step) % len(plain)].to(ids), ids)
        return other.to(batch.ids.device)


def token_outputs(output: Any, B: int, T: int) -> Tensor | None:
    """Return the output for every token, (B, T, …), of what a model returned; None if there is none."""
    if isinstance(output, Tensor):
        found = [output]
    else:
        # BERT's model for pre-training calls its logits so.
        named = [getattr(output, name, None) for name in ("logits", "last_hidden_state", "prediction_logits")]
        items = output.values() if isinstance(output, dict) else output
        items = items if isinstance(output, dict | tuple | list) else ()
        found = [x for x in (*named, *items) if isinstance(x, Tensor)]
    # A classifier's output (B, labels) may have the shape (B, T).
    fitting = (x for x in found if x.ndim >= 3 and x.shape[:2] == (B, T) and x.is_floating_point())
    outputs = next(fitting, None)
    # A plan of tensor parallelism may leave the logits spread over the ranks.
    return cast(Any, outputs).full_tensor() if is_dtensor(outputs) else outputs
