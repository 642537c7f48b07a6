"""`Attribution`: what a logit owes to the embedding, to each head and to each MLP (direct logit attribution).

With the norms' scales held fixed, the logit is a linear function of the terms of the residual stream. Its
gradient with respect to a term, times the term, is what the term adds, and all of these add up to the logit.
An attribution does not say what a head does by way of later layers that read what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.maps import WeightedMap
from regard.recorder.contributions.output_projection import LinearWeights, recorded_values
from regard.recorder.contributions.residual_stream import (
    ResidualStream,
    StreamPass,
    StreamTerm,
    largest_rounding_unit,
)
from regard.recorder.layer import Layer

ROUNDING_UNITS = 8.0  # how many units of rounding the sum may be off, relative to the size of its terms
LARGEST = 3  # heads that the description names


@dataclass(frozen=True)
class HeadGradient:
    """The gradient of a logit at the input of a layer's output projection, at the rows where it is not 0."""

    rows: Tensor  # (rows,) rows of the flattened tokens
    gradient: Tensor  # (H, E) W_hᵀ · g, in float64
    gated_output: Tensor | None  # (H, E) the heads' output after a gate or an edit, None without


@dataclass(frozen=True)
class Attribution:
    """A logit, or the difference of two, as a sum: `embedding` + `heads` + `mlps` + `rest`.

    All numbers are in float64, on the CPU.
    """

    logit: float
    """The model's own logit, or the difference of two, before any soft cap or scaling of the logits."""
    embedding: float
    """What the embedding of the token at the position adds."""
    heads: Tensor
    """What each head adds, (layers, heads), in rows for `layers`; 0 where a layer has fewer heads."""
    layers: list[int | str]
    """The keys of the layers of `heads`."""
    mlps: Tensor
    """What the MLP of each block adds, (blocks,)."""
    blocks: list[str]
    """The names of the blocks of `mlps`."""
    rest: float
    """What biases add, and modules that are neither softmax attention nor an MLP."""
    tolerance: float
    """The rounding error to expect of the sum, at the model's dtype and the size of its terms."""
    is_linear: bool
    """Whether nothing is known on the path to the logits that is not linear; the notes name what is."""
    token: str
    """The token, and the one that it is compared with."""
    position: int
    """The position at which the token is predicted: that of the token before it."""
    batch: int
    """The number of the text in the batch."""
    notes: tuple[str, ...]
    """Sentences about what was frozen, not found or left out."""
    _gradients: dict[int | str, HeadGradient] = field(repr=False)
    _layer: Callable[[int | str], Layer] = field(repr=False)

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.embedding + float(self.heads.sum()) + float(self.mlps.sum()) + self.rest

    @property
    def error(self) -> float:
        """How far the sum of the parts is from the model's own logit."""
        return abs(self.total - self.logit)

    @property
    def adds_up(self) -> bool:
        """Whether the parts add up to the model's own logit, to rounding, as they do on a linear path."""
        return self.is_linear and self.error <= self.tolerance

    def edges(self, layer: int | str, head: int) -> WeightedMap:
        """What a head adds by way of each key, as a weighted map (T, S) of its text.

        Its entries are A_ij · (g · W_h v_j), where g is the gradient of the logit. The row at `position` sums
        to the head's entry in `heads`; other rows show what the head would have added there to this logit.
        `layer` is a key of `layers`, and `head` a number in the model.
        """
        if layer not in self._gradients:
            raise KeyError(f"layer: expected one of {self.layers}, got {layer!r}")
        captured, at = self._layer(layer), self._gradients[layer]
        head_map = captured.head_map(head)
        if len(at.rows) != 1:
            raise ValueError(f"edges: expected a logit that depends on one position, got {len(at.rows)}")
        values = recorded_values(captured)
        m = head_map[self.batch]  # (T, S)
        index = captured.heads.index(head)
        value = values[self.batch, index * values.shape[1] // len(captured.heads)]  # (S, E)
        direction = at.gradient[head].to(value.device)  # (E,)
        if at.gated_output is not None:
            output = m[self.position].to(value.device).double() @ value.double()  # (E,) before the gate
            gate = at.gated_output[head].to(value.device) / output
            # Where a head gave 0 its gate is not known, and has added nothing.
            direction = direction * torch.where(output != 0, gate, 0.0)
        u = (value.double() @ direction).to(m.device, working_dtype(value.dtype))  # (S,)
        weighted: WeightedMap = m.weighted(u)
        return weighted

    def __str__(self) -> str:
        parts = f"embedding {self.embedding:+.3f}, heads {float(self.heads.sum()):+.3f}"
        lines = [
            f"logit of {self.token} at position {self.position}: {self.logit:.3f}",
            f"= {parts}, MLPs {float(self.mlps.sum()):+.3f}, rest {self.rest:+.3f}",
        ]
        if not self.adds_up:
            lines[1] += f": does NOT add up, it is off by {self.error:.1e}"
        if self.heads.numel():
            largest = self.heads.abs().flatten().topk(min(LARGEST, self.heads.numel())).indices.tolist()
            width = self.heads.shape[1]
            named = (
                f"{self.layers[i // width]}.{i % width} {float(self.heads.flatten()[i]):+.3f}"
                for i in largest
            )
            lines.append(f"largest heads: {', '.join(named)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__


def attribute(
    stream: ResidualStream,
    token: int,
    against: int | None,
    position: int,
    batch: int,
    name: str,
    layer: Callable[[int | str], Layer],
) -> Attribution:
    """Attribute the logit of a token, or its difference to the logit of a token `against`, to the terms.

    `name` describes the tokens, and `layer` returns a layer by its key.
    """
    if stream.problem is not None:
        raise ValueError(f"attribution: {stream.problem}")
    if stream.unembedding is None:
        raise ValueError(
            "attribution: expected a model with an unembedding, which computes logits, such as "
            "AutoModelForCausalLM, got one without"
        )
    if not stream.passes:
        raise ValueError(
            "attribution: the path from the blocks to the unembedding could not be followed: "
            "no hidden state of a block led to the logits"
        )
    stream.unembedding.check_unchanged()
    for projection in stream.projections.values():
        projection.weights.check_unchanged()
    stream_pass, row = stream.locate(position, batch)
    sums = _TermSums(stream_pass, stream.unembedding, batch, row)
    sums.add(token, 1.0)
    if against is not None:
        sums.add(against, -1.0)
    notes = list(stream_pass.notes)
    if stream_pass.is_transformed:
        notes.append("the model scales or caps its logits: this is the logit before that")
    widest = max((len(x) for x in sums.heads.values()), default=0)
    heads = torch.zeros(len(sums.heads), widest, dtype=torch.float64, device="cpu")
    for i, amounts in enumerate(sums.heads.values()):
        heads[i, : len(amounts)] = amounts
    return Attribution(
        logit=sums.logit,
        embedding=sums.embedding,
        heads=heads,
        layers=list(sums.heads),
        mlps=torch.tensor(list(sums.mlps.values()), dtype=torch.float64, device="cpu"),
        blocks=list(sums.mlps),
        rest=sums.rest,
        tolerance=ROUNDING_UNITS * largest_rounding_unit(stream_pass) * sums.squares**0.5,
        is_linear=stream_pass.is_linear,
        token=name,
        position=position % sum(passed.length for passed in stream.passes),
        batch=batch,
        notes=tuple(notes),
        _gradients=sums.gradients,
        _layer=layer,
    )


class _TermSums:
    """Adds up what the terms of a pass give to logits at one row of the state."""

    def __init__(self, stream_pass: StreamPass, unembedding: LinearWeights, batch: int, row: int) -> None:
        self.stream_pass, self.unembedding, self.batch, self.row = stream_pass, unembedding, batch, row
        self.logit = self.rest = self.embedding = 0.0
        self.squares = 0.0  # of all products that are added up: their rounding errors are independent
        self.mlps = {term.block: 0.0 for term in stream_pass.terms if term.kind == "mlp"}
        self.heads: dict[int | str, Tensor] = {}
        self.gradients: dict[int | str, HeadGradient] = {}

    def add(self, token: int, sign: float) -> None:
        """Add the parts of a token's logit, times a sign."""
        V = len(self.unembedding.weight)
        if not 0 <= token < V:
            raise ValueError(f"token: expected an id from 0 to {V - 1}, got {token}")
        state = self.stream_pass.state
        assert state is not None
        # With a `device_map` the unembedding may be on another device than the blocks.
        direction = self.unembedding.weight[token].to(state.device)
        hidden = state[self.batch, self.row].detach().double()
        self.logit += sign * float(hidden @ direction.double())
        self.squares += float((hidden * direction.double()).square().sum())
        if self.unembedding.bias is not None:
            bias = float(self.unembedding.bias[token])
            self.logit, self.rest = self.logit + sign * bias, self.rest + sign * bias
        gradient = torch.zeros_like(state)
        gradient[self.batch, self.row] = direction.to(state.dtype)
        terms = self.stream_pass.terms
        gradients = torch.autograd.grad(
            state,
            [term.variable for term in terms],
            gradient,
            # The capture may be asked about another token.
            retain_graph=True,
            allow_unused=True,
        )
        for term, gradient_of_term in zip(terms, gradients, strict=True):
            if gradient_of_term is not None:
                self._add_term(term, gradient_of_term, sign)

    def _add_term(self, term: StreamTerm, gradient: Tensor, sign: float) -> None:
        """Add what a term gives, for the gradient (…, d) of the logit with respect to it."""
        flat = gradient.reshape(-1, gradient.shape[-1])
        # The path mixes no tokens, so that nearly all rows have no gradient.
        rows = flat.ne(0).any(-1).nonzero().flatten()
        g = sign * flat[rows].double()  # (rows, d)
        value = term.value if term.kind == "bias" else term.value.reshape(-1, term.value.shape[-1])[rows]
        if term.kind == "heads":
            self._add_heads(term, rows, g, value.double())
            return
        products = g * value.double()
        amount = float(products.sum())
        self.squares += float(products.square().sum())
        if term.kind == "embedding":
            self.embedding += amount
        elif term.kind == "mlp":
            self.mlps[term.block] += amount
        else:
            self.rest += amount

    def _add_heads(self, term: StreamTerm, rows: Tensor, g: Tensor, merged: Tensor) -> None:
        """Add what the heads of a layer give, and their bias; `merged` (rows, H·E) is what they output."""
        projection, layer = term.projection, term.layer
        assert projection is not None
        assert layer is not None
        gradient = (g @ projection.weights.weight.double()).view(len(g), projection.num_heads, -1)
        products = gradient * merged.view(gradient.shape)  # (rows, H, E)
        self.squares += float(products.square().sum())
        amounts = products.sum((0, 2)).cpu()  # (H,)
        self.heads[layer] = self.heads[layer] + amounts if layer in self.heads else amounts
        if projection.bias is not None:
            self.rest += float((g @ projection.bias.double()).sum())
        earlier = self.gradients.get(layer)
        whole = gradient.sum(0) if earlier is None else earlier.gradient + gradient.sum(0)
        is_gated = (projection.is_gated or term.is_edited) and len(merged)
        gated = merged[0].view(whole.shape) if is_gated else None
        self.gradients[layer] = HeadGradient(rows, whole, gated)
