"""From outside: change tokens, run the model again, and see which positions move.

It needs no attention to be heard, so it serves compiled graphs, other people's kernels and layers that are
no attention. What moves is judged against the model's own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.auditor.batch import DOCUMENT_NAMES, EDGE_NAMES
from regard.auditor.changed_runs import ChangedRuns, OutsideReading
from regard.interventions.effects import evaluating

RUNS = 9  # at most, beside the one that is captured, and those that find out what has moved an output
DOCUMENT_RUNS = 4  # at most, in which documents are changed
EAGER_TOKENS = 1024  # up to which the model's eager implementation is run beside its own
# Arguments that say how several texts or documents lie in a batch: one text alone needs none of them.
SEVERAL = (
    *("attention_mask", "position_ids", "labels", "cu_seq_lens_k", "cu_seqlens_k"),
    *("max_length_q", "max_length_k", "max_seqlen_q", "max_seqlen_k", "max_seqlen"),
    *(*DOCUMENT_NAMES, *EDGE_NAMES),
)
PASSED = {
    "texts": "changing whole texts moves no other text",
    "future": "changing everything from three points on moves nothing before them",
}
OTHER_SIZES = 10.0  # times as much where a text runs alone, by kernels of other sizes


class Prober(ChangedRuns):
    """Asks a model by changing its batch, on all ranks in step."""

    def probe(self, order: bool | None, masks_are_right: bool, output: Any = None) -> OutsideReading:
        """Ask every question that the batch allows.

        Arguments:
            order: whether the model is causal; None if that is not known.
            masks_are_right: whether every layer was heard, and sees what it should: only then does a text
                that comes out differently alone tell of its positions.
            output: what the model returned for this batch; None if it has not been run.
        """
        reading, batch = self.reading, self.batch
        with torch.no_grad(), evaluating(self.model):
            base = self._run(batch.arguments) if output is None else self._token_outputs(output)
            if base is None:
                reading.why = reading.why or "it gives no output for every token"
                return reading
            if not self._take_base(base):
                reading.why = "its outputs are not finite numbers"
                return reading
            self._ask_order_and_texts(bool(order))
            # Noise would look like an answer.
            if not self._repeats():
                return reading
            if order is False:
                self._ask_both_ways()
            # These change several texts at once, which would move each other here.
            if reading.answers.get("texts", True):
                self._ask_documents()
                self._ask_padding()
            # No document of ranks that share the rows can be run alone, and eager attention knows no ranks.
            if self.ranks.rows is None:
                if masks_are_right and reading.answers.get("texts", True):
                    self._ask_alone()
                self._ask_eager()
        return reading

    def _ask_order_and_texts(self, order: bool) -> None:
        """Change some texts whole and the others from a point on: nothing else may move.

        Everything after a point is changed at once, which shows all that is read across the point. A run asks
        for both questions, since each takes as long as the model does.
        """
        real = self.batch.real
        place, length = real.cumsum(1) - 1, real.sum(1, keepdim=True)  # both without padding
        first = (real.any(1) & (real.any(1).cumsum(0) == 1))[:, None]  # (B, 1)
        several = int(real.any(1).sum()) > 1
        # The points have no common divisor: chunks that end at one do not end at the other.
        third = (length // 3).clamp(min=1)
        runs = [(first, third), (~first, torch.minimum(2 * third + 1, length - 1))]
        # What the last token moves is the simplest to understand, and where texts mix tells nothing of order.
        runs.insert(2 if several else 0, (torch.zeros_like(first), length - 1))
        for texts, point in runs:
            mixed = self.reading.answers.get("texts") is False
            whole = texts & real & (several and not mixed)
            later = real & (place >= point.clamp(min=1)) & ~whole
            if mixed:  # of one text alone the order can be asked all the same
                later &= first
            if not order or self.reading.answers.get("future") is False:
                later = torch.zeros_like(real)
            if bool((whole | later).any()) and not self._try_order_and_texts(whole, later):
                return

    def _try_order_and_texts(self, whole: Tensor, later: Tensor) -> bool:
        """Change whole texts, and tokens that may move later ones only; return whether more can be asked."""
        changed = whole | later
        if (other := self._run_changed(changed)) is None:
            return False
        moved = self._moves(other)
        asked = {"texts": whole, "future": later}
        if self.reading.answers.get("texts") is False:
            moved &= later.any(1, keepdim=True)
        kept = moved & self._kept(changed)
        if not bool(kept.any()):
            self.repeated = True  # what was not changed came out the same
            for question, tokens in asked.items():
                # If not even the changed tokens move, nothing was tried.
                if bool((moved & tokens).any()):
                    self.reading.answers.setdefault(question, True)
                    self.reading.evidence.setdefault(question, PASSED[question])
            return True
        if not self._repeats():
            return False
        text, position = kept.nonzero()[0].tolist()
        size = float(self._difference(other, self.base)[text, position])
        own = later & (torch.arange(len(later), device="cpu") == text)[:, None]
        is_own = bool(own.any())
        if is_own and not torch.equal(own, changed):
            if (alone := self._run_changed(own)) is None:
                return False
            is_own = bool((self._moves(alone) & self._kept(own))[text].any())
        if not is_own:
            sentence = f"changing other texts of the batch moves position {position} of text {text}"
            self._answer("texts", False, f"{sentence} by {size:.2g}")
            return True
        places = own[text].nonzero().flatten().tolist()
        what = (
            f"the last token of text {text}, {places[0]},"
            if len(places) == 1
            else f"text {text} from position {places[0]} on"
        )
        self._answer("future", False, f"changing {what} moves position {position}")
        return True

    def _kept(self, changed: Tensor) -> Tensor:
        """Return which tokens (B, T) no changed one may move: those before the first in each text."""
        if (blocks := self.batch.blocks) is not None:  # a block is read both ways, from where it begins
            own = [
                (row[:, None] == row[keep]).any(1)
                for row, keep in zip(blocks, changed & (blocks >= 0), strict=True)
            ]
            changed = changed | torch.stack(own)
        return self.batch.real & (changed.cumsum(1) == 0)

    def _ask_both_ways(self) -> None:
        """Change the last tokens of a model that reads both ways: something before them should move."""
        real = self.batch.real
        chosen = real & (real.flip(1).cumsum(1).flip(1) == 1)
        if (other := self._run_changed(chosen)) is None:
            return
        moved = self._moves(other)
        if not bool((moved & chosen).any()):
            return  # the last token changes nothing, not even its own output
        moves = bool((moved & self._kept(chosen)).any())
        sentence = "moves earlier positions" if moves else "moves no earlier position"
        self._answer("both ways", moves, f"changing the last tokens {sentence}")

    def _ask_documents(self) -> None:
        documents, real = self.batch.documents, self.batch.real
        if documents is None:
            return
        ranks = torch.stack([_ranks(row) for row in documents])  # (B, T): the number of each document
        # The runs that other questions need: two with other padding, two for implementations.
        left = RUNS - self.reading.runs - 2 * self.batch.has_padding - 2
        checked, codes = False, document_codes(int(ranks.max()) + 1, max(2, min(DOCUMENT_RUNS, left)))
        for run in range(1 + max(max(code) for code in codes)):
            chosen = [number for number, code in enumerate(codes) if run in code]
            inside = torch.isin(ranks, torch.tensor(chosen, device="cpu")) & real
            if (other := self._run_changed(inside)) is None:
                return
            moved = self._moves(other)
            # If not even the changed tokens move, nothing was tried.
            checked |= bool((moved & inside).any())
            elsewhere = moved & ~inside & inside.any(1, keepdim=True)
            if bool(elsewhere.any()):
                text, position = elsewhere.nonzero()[0].tolist()
                changed = sorted({int(number) for number in ranks[text][inside[text]]})
                self._answer(
                    "documents",
                    False,
                    f"changing {_documents(changed)} of text {text} moves position {position}, in document "
                    f"{int(ranks[text, position])}, by "
                    f"{float(self._difference(other, self.base)[text, position]):.2g}",
                )
                return
        if checked:
            self._answer("documents", True, f"changing {len(codes)} documents moves no other")

    def _ask_padding(self) -> None:
        if not self.batch.has_padding:
            return
        # Two runs with other tokens than padding: RoBERTa counts positions by which ids are padding.
        first, second = (self._run_changed(~self.batch.real, step) for step in (1, 2))
        if first is None or second is None:
            return
        moved = self._moves(first, second)
        if bool(moved.any()):
            text, position = moved.nonzero()[0].tolist()
            sentence = f"changing padding of text {text} moves position {position}, which is no padding"
            self._answer("padding", False, sentence)
        else:
            self._answer("padding", True, "changing the padding moves nothing else")

    @cached_property
    def single(self) -> tuple[int, Tensor, dict[str, Any], Tensor] | None:
        """The last document of a text, or a padded text, alone: text, places, arguments and outputs.

        None if there is no such part, or if it cannot be run alone.
        """
        documents, real = self.batch.documents, self.batch.real
        if documents is not None:
            counts = [len(set(row[keep].tolist())) for row, keep in zip(documents, real, strict=True)]
            text = next((i for i, count in enumerate(counts) if count > 1), 0)
            chosen = (documents[text] == documents[text][real[text]][-1]) & real[text]
        elif self.batch.has_padding:
            text = int((~real & real.any(1, keepdim=True)).sum(1).argmax())  # the one with most padding
            chosen = real[text]
        else:
            return None
        places = chosen.nonzero().flatten()
        # Tokens with others between them cannot be run as one text.
        if len(places) < 2 or bool((places.diff() != 1).any()):
            return None
        arguments: dict[str, Any] = {}
        for name, x in self.batch.arguments.items():
            if name == "attention_mask" and self.batch.given_mask is not None:
                arguments[name] = _square(x, text, places)
            elif name in SEVERAL or isinstance(x, Mask):
                continue
            elif not isinstance(x, Tensor):
                arguments[name] = x
            elif x.shape == self.batch.ids.shape:
                arguments[name] = x[text : text + 1, places.to(x.device)]
            else:
                return None
        output = self._run(arguments)
        return None if output is None else (text, places, arguments, output)

    def _ask_alone(self) -> None:
        """Run one document, or one padded text, alone: it should come out as it does in the batch."""
        batch, config = self.batch, self.config
        # Frequencies that grow with the length of the text, and chunks that are counted from its beginning.
        scaling = str(getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None))
        if "dynamic" in scaling or "longrope" in scaling or getattr(config, "attention_chunk_size", None):
            return
        if getattr(config, "index_topk", None):  # DeepSeek-V3.2 chooses keys by scores that other sizes round
            return
        # The text of an encoder, or a prefix that is read both ways, cannot be cut off.
        if batch.source is not None or batch.blocks is not None or self.single is None:
            return
        text, places, _, output = self.single
        base = self.base[text, places.to(self.base.device)]
        difference = (output[0].float() - base.float()).abs().flatten(1).amax(-1)
        what = "the last document" if batch.documents is not None else f"text {text}"
        if bool((difference <= OTHER_SIZES * self.limit).all()):
            self._answer("alone", True, f"{what} alone gives what it gives in the batch")
            return
        position = int(places[int(difference.argmax())])
        sentence = f"{what} alone gives other outputs than in the batch, at position {position} by "
        self._answer("alone", False, f"{sentence}{float(difference.max()):.2g}")

    def _ask_eager(self) -> None:
        """Run the model's eager implementation beside its own.

        FlashAttention keeps packed documents apart by their borders, which eager attention ignores: of these
        one document is run alone.
        """
        # Transformers has no public name for the implementation in use.
        now = getattr(self.config, "_attn_implementation", None)
        switch: Callable[[Any], None] | None = getattr(self.model, "set_attn_implementation", None)
        if switch is None or now in (None, "eager") or self.batch.shape[1] > EAGER_TOKENS:
            return
        arguments, base, real, of = self.batch.arguments, self.base, self.batch.real, ""
        if self.batch.documents is not None:
            if self.single is None:
                return
            _, _, arguments, base = self.single
            real, of = (
                torch.ones(base.shape[:2], dtype=torch.bool, device="cpu"),
                "of the last document alone: ",
            )
        # A model of pictures and text may have another implementation in each part.
        parts = {name: getattr(self.config, name, None) for name in getattr(self.config, "sub_configs", {})}
        before = {name: getattr(x, "_attn_implementation", None) for name, x in parts.items()}
        # Dbrx and Moshi have parts without an implementation, which cannot be set to None again.
        before = {name: x for name, x in before.items() if x is not None}
        # That eager attention does not run says nothing of the other questions.
        why = self.reading.why
        try:
            switch("eager")
            other = self._run(self._with_float_mask(arguments))
        except Exception:  # models say in many ways that they have one implementation only
            other = None
        finally:
            switch(before | {"": now} if before else now)
        self.reading.why = why
        # Eager attention of padded texts in float64 gives NaN: its softmax is float32 (transformers 5.22).
        if other is None or not bool(other[real.to(other.device)].isfinite().all()):
            return
        moved = ~(self._difference(other, base) <= OTHER_SIZES * self.limit) & real
        if bool(moved.any()):
            text, position = moved.nonzero()[0].tolist()
            sentence = f"with its attention computed eagerly, position {position} of text {text} is another"
            self._answer("eager", False, f"{of}{sentence}")
        else:
            self._answer("eager", True, f"{of}“{now}” and “eager” give the same outputs")

    def _with_float_mask(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments with a boolean mask (B, H, T, S) as numbers: eager attention adds it."""
        mask = arguments.get("attention_mask")
        if self.batch.given_mask is None or not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            return arguments
        dtype = next((p.dtype for p in self.model.parameters()), torch.float32)
        low = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        return arguments | {"attention_mask": low}

    def _answer(self, question: str, right: bool, sentence: str) -> None:
        self.reading.answers[question], self.reading.evidence[question] = right, sentence


def _square(mask: Tensor, text: int, places: Tensor) -> Tensor:
    """Return the part of a mask (B, …, T, T), or (1, …, T, T), that some tokens of a text have."""
    places = places.to(mask.device)
    return mask[min(text, len(mask) - 1)][None][..., places, :][..., places]


def document_codes(count: int, runs: int) -> list[tuple[int, ...]]:
    """Return in which of some runs each document is changed.

    Of any two documents, each is changed in a run in which the other is not: no code contains another. Four
    runs are enough for six documents; more of them share codes.
    """
    needed = next((n for n in range(1, runs) if math.comb(n, n // 2) >= count), runs)
    codes = list(combinations(range(needed), max(1, needed // 2)))
    return [codes[number % len(codes)] for number in range(count)]


def _documents(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"document {numbers[0]}"
    listed = ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")
    return f"documents {listed}"


def _ranks(documents: Tensor) -> Tensor:
    """Return the number of each token's document in the order in which they begin."""
    numbers = {document: i for i, document in enumerate(dict.fromkeys(documents.tolist()))}
    return torch.tensor([numbers[document] for document in documents.tolist()], device="cpu")
