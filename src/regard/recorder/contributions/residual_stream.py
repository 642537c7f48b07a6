"""`ResidualStream`: what the residual stream of a captured run is made of.

The hidden state before the unembedding is the sum of an embedding, of what every head and every MLP has
added, and of biases, each sent through the same norms. A `StreamPass` holds these terms for one forward pass,
and the graph that leads from them to the hidden state, in memory only. This file knows tensors and names; how
they are recorded is in `stream_recorder`, and what a logit owes to each of them in `attribution`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from regard.recorder.contributions.output_projection import LinearWeights, OutputProjection

NONLINEAR = frozenset(
    (
        "Exp",
        "FusedRmsNorm",
        "Gelu",
        "LinalgVectorNorm",
        "Log",
        "NativeLayerNorm",
        "Pow",
        "Relu",
        "Rsqrt",
        "Sigmoid",
        "Silu",
        "Softmax",
        "Sqrt",
        "Tanh",
    )
)
"""Names that autograd gives to operations that are not linear."""


@dataclass(frozen=True)
class StreamTerm:
    """A term of the residual stream."""

    kind: Literal["embedding", "heads", "mlp", "bias", "other"]
    name: str
    """The name of the module that added it."""
    block: str
    """The name of its block; empty outside the blocks."""
    variable: Tensor
    """A variable of the term's shape (…, d) that takes its gradient."""
    value: Tensor
    """The term (…, d), or (d,) for a bias. For heads it is the input (…, H·E) of their output projection."""
    projection: OutputProjection | None = None
    """The output projection of heads."""
    layer: int | str | None = None
    """The key of the layer whose heads these are."""
    is_edited: bool = False
    """Whether an intervention has changed what the heads gave."""


@dataclass
class StreamPass:
    """The residual stream of one forward pass."""

    terms: list[StreamTerm] = field(default_factory=list)
    state: Tensor | None = None
    """The input of the unembedding (B, n, d), with the graph that leads back to the terms.

    n is smaller than the number of tokens if the model computes logits for the last ones only."""
    is_transformed: bool = False
    """Whether the model returns something else than the unembedding's output, as a soft cap of it."""
    is_linear: bool = True
    """Whether nothing is known on the path to the logits that is not linear."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences about what was frozen or not found, in order."""
    rounding: float = 0.0
    """The largest unit of rounding of its norms."""

    @property
    def length(self) -> int:
        """The number of tokens that the pass read."""
        lengths = [term.value.shape[-2] for term in self.terms if term.kind == "embedding"]
        return lengths[0] if lengths else 0

    def drop_unreachable_terms(self) -> None:
        """Forget the terms from which nothing leads to the state, such as an encoder's beside a decoder."""
        nodes = [] if self.state is None else graph_nodes(self.state)
        for operation in sorted({node.name().partition("Backward")[0] for node in nodes} & NONLINEAR):
            self.is_linear = False
            self.notes[f"{operation} is on the path to the logits, is not linear and was not frozen"] = None
        # Only the node that accumulates the gradient of a variable has one.
        reachable = {id(node.variable) for node in nodes if hasattr(node, "variable")}
        self.terms = [term for term in self.terms if id(term.variable) in reachable]

    def leads_to(self, x: Tensor) -> bool:
        """Whether a term is part of a tensor."""
        variables = {id(term.variable) for term in self.terms}
        return any(id(node.variable) in variables for node in graph_nodes(x) if hasattr(node, "variable"))


def graph_nodes(x: Tensor) -> list[Any]:
    """Return the nodes of the autograd graph that has led to a tensor."""
    pending: list[Any] = [x.grad_fn]
    visited: dict[Any, None] = {}
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited[node] = None
            pending += [following for following, _ in node.next_functions]
    return list(visited)


@dataclass
class ResidualStream:
    """The residual stream of a capture, and the layers that write to it and read it."""

    projections: dict[int | str, OutputProjection] = field(default_factory=dict)
    """By layer key: the output projection of its heads."""
    not_found: dict[int | str, str] = field(default_factory=dict)
    """By layer key: why no output projection was found."""
    unembedding: LinearWeights | None = None
    """The layer that computes the logits, if the model has one."""
    problem: str | None = None
    """Why the residual stream could not be recorded, if it could not."""
    passes: list[StreamPass] = field(default_factory=list)
    """The forward passes that computed logits, in order."""
    is_reordered: bool = False
    """Whether the batch changed its order between passes, as in a beam search."""
    token_id: Callable[[str], int] | None = None
    """Returns the id of a text that is one token."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ResidualStream:
        """Return the stream itself: neither its graph nor the model's own weights can be copied."""
        return self

    def id_of(self, name: str, token: int | str) -> int:
        """Return the id of a token that is given by its id or as text; `name` is the argument of an error."""
        if isinstance(token, str) and self.token_id is not None:
            return self.token_id(token)
        # `True` is an int, and no token.
        if isinstance(token, bool) or not isinstance(token, int):
            hint = ": give the tokenizer to capture(tokenizer=…) for a text" if isinstance(token, str) else ""
            raise ValueError(f"{name}: expected the id of a token, got {token!r}{hint}")
        return token

    def locate(self, position: int, batch: int) -> tuple[StreamPass, int]:
        """Return the pass that computed the logits at a position, and their row in its state.

        Positions count the tokens that the passes read, from 0, or from the end if negative.
        """
        if self.is_reordered:
            raise ValueError("attribution: beams changed places in this run: capture one without beam search")
        total = sum(stream_pass.length for stream_pass in self.passes)
        if not -total <= position < total:
            raise ValueError(f"position: expected one of the {total} tokens that were read, got {position}")
        first, wanted = 0, position % total
        for stream_pass in self.passes:
            state, length = stream_pass.state, stream_pass.length
            if wanted < first + length and state is not None:
                if not 0 <= batch < len(state):
                    raise ValueError(f"batch: expected a number from 0 to {len(state) - 1}, got {batch}")
                row = wanted - first - (length - state.shape[1])
                if row < 0:
                    raise ValueError(
                        f"position: the model computed logits for the last {state.shape[1]} of {length} "
                        f"tokens only, and {position} is before them: run it once on the whole text"
                    )
                return stream_pass, row
            first += length
        raise ValueError(f"position: no logits were computed at {position}")


def largest_rounding_unit(stream_pass: StreamPass) -> float:
    """Return the unit of rounding of the coarsest tensor or norm on the residual path."""
    return max(stream_pass.rounding, *(torch.finfo(term.variable.dtype).eps for term in stream_pass.terms))
