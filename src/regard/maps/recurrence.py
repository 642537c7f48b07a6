"""A linear layer's recurrence in chunks: rows of its map, its product with values, the sums of its columns.

The state of a head is S_t = (I − β_t k_t k_tᵀ) e^{g_t} S_{t−1} + β_t k_t v_tᵀ, without the bracket where
there is no delta rule, and its output o_t = S_tᵀ q_t. So o_t = Σ_s W_ts v_s with W_ts = β_s k_sᵀ u, where u
starts at q_t and goes back by u ← e^{g_s} (I − β_s k_s k_sᵀ) u. Within a chunk the W_ts of one row solve a
triangular system, and a chunk passes u on by a few matrix products; nothing of T×T is stored. This file knows
tensors; the map is in `linear_map.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = {"cpu": 32, "cuda": 128}  # tokens in a chunk: a GPU has more steps to pay for than numbers
BLOCK_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 27}  # of a tensor (heads, tokens, width) prepared at a time
LARGEST_EXPONENT = {torch.float32: 80.0, torch.float64: 640.0}  # of e within a chunk, with a margin


@dataclass(frozen=True)
class RecurrenceInputs:
    """What the recurrence of some heads is made of; the dtype to compute in is `dtype`."""

    q: Tensor  # (B, G, S, D)
    k: Tensor  # (B, G, S, D)
    decay: Tensor  # (B, H, S) or (B, H, S, D) the logarithm g
    beta: Tensor  # (B, H, S)
    skip: Tensor | None  # (H,) what a token's own weight has beside the recurrence
    delta_rule: bool
    scale: float
    qk_norm: float | None
    dtype: torch.dtype

    def queries(self, at: slice | Tensor) -> Tensor:
        """The queries at some positions, times the scale: (B, H, positions, D)."""
        q = self.q[:, :, at].to(self.dtype)
        return self._of_heads(q * (self._inverse_norms(q) * self.scale))

    def keys(self, at: slice) -> tuple[Tensor, Tensor]:
        """The keys at some positions, (B, H, positions, D), and what they are still to be multiplied by."""
        k = self.k[:, :, at].to(self.dtype)
        return self._of_heads(k), self._of_heads(self._inverse_norms(k))

    def decays(self, at: slice) -> Tensor:
        """The logarithm of the decays at some positions, (B, H, positions, 1 or D)."""
        decay = self.decay[:, :, at].to(self.dtype)
        return decay if decay.ndim == 4 else decay.unsqueeze(-1)

    def betas(self, at: slice) -> Tensor:
        """How strongly some positions are written, (B, H, positions, 1)."""
        return self.beta[:, :, at].to(self.dtype).unsqueeze(-1)

    def _inverse_norms(self, x: Tensor) -> Tensor:
        """1 / √(Σ x² + qk_norm), or 1 if there is no norm: (B, G, positions, 1)."""
        if self.qk_norm is None:
            return x.new_ones(*x.shape[:-1], 1)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.rsqrt(length * length + self.qk_norm)

    def _of_heads(self, x: Tensor) -> Tensor:
        H, G = self.beta.shape[1], x.shape[1]
        return x if H == G else x.repeat_interleave(H // max(G, 1), 1)


class KeyBlock(NamedTuple):
    """The entries of some rows on neighbouring keys."""

    keys: slice
    rows: slice
    """Of the rows that were asked for: those at or after the first key. The others have no entry there."""
    entries: Tensor  # (B, H, rows, keys)


class ChunkedRecurrence:
    """The recurrence of some heads at the positions before `stop`, which is prepared block by block.

    In the shapes, N = B·H heads and n chunks of C tokens.
    """

    def __init__(self, inputs: RecurrenceInputs, stop: int) -> None:
        self.inputs, self.stop = inputs, stop
        B, H, _ = inputs.beta.shape
        self.lead = (B, H)
        self.C = _chunk_length(inputs.decay[:, :, :stop], inputs.dtype, inputs.delta_rule)

    def edges(self, rows: int = 0) -> list[tuple[int, int]]:
        """The first and the last chunk of blocks to prepare at once, with entries of `rows` rows."""
        numbers = BLOCK_NUMBERS["cuda" if self.inputs.k.device.type == "cuda" else "cpu"]
        width = max(self.inputs.k.shape[-1], rows // 4)
        step = max(1, numbers // max(1, self.lead[0] * self.lead[1] * self.C * width))
        n = -(-self.stop // self.C)
        return [(a, min(a + step, n)) for a in range(0, n, step)]

    def _by_head(self, x: Tensor) -> Tensor:
        """Split the heads of x (N, …) into (B, H, …)."""
        return x.reshape(*self.lead, *x.shape[1:])

    def block(self, a: int, b: int) -> ChunkBlock:
        """Prepare the chunks from `a` to `b`."""
        return ChunkBlock(self.inputs, self.C, a, b, self.stop)

    def back(self, at: Tensor, first: int = 0) -> Iterator[KeyBlock]:
        """Go back from rows at increasing positions `at` (R,), block by block, to that of key `first`.

        After the last block, `self.left` is what is left of their queries, (B, H, R, D).
        """
        counts = torch.bincount(at.cpu() // self.C, minlength=-(-self.stop // self.C))
        left = self.inputs.k.new_zeros(*self.lead, len(at), self.inputs.k.shape[-1], dtype=self.inputs.dtype)
        return self._back(left, at, counts.tolist(), len(at), first)

    def back_from_end(self, u: Tensor) -> Iterator[KeyBlock]:
        """Go back from vectors u (B, H, R, D) that read the state after the last position."""
        counts = [0] * -(-self.stop // self.C)
        # copy=True: u is passed through the chunks in place, and is the caller's.
        return self._back(u.to(self.inputs.dtype, copy=True), torch.arange(0, device="cpu"), counts, 0, 0)

    def _back(self, left: Tensor, at: Tensor, counts: list[int], stop: int, first: int) -> Iterator[KeyBlock]:
        """The same for rows of which those before `stop` start at `at`, so many in each chunk."""
        C, R = self.C, left.shape[2]
        left = left.flatten(0, 1)  # (N, R, D)
        smallest = 1e4 * torch.finfo(left.dtype).tiny
        for a, b in reversed(self.edges(R)):
            lowest = stop - sum(counts[a:b])  # the first row of the block
            if b * C <= first or lowest == R:
                continue
            block = self.block(a, b)
            entries = left.new_zeros(len(left), R - lowest, (b - a) * C)
            own, left[:, lowest:stop] = block.start(at[lowest:stop])
            step, lines, cells, own = block.arrays(left, entries, own)
            for c in range(b - 1, max(a, first // C) - 1, -1):
                start, keys = stop - counts[c], slice((c - a) * C, (c - a + 1) * C)
                cells[..., start - lowest : stop - lowest, keys] = own[..., start - lowest : stop - lowest, :]
                if stop < R:
                    cells[..., stop - lowest :, keys] = step.pass_back(lines[..., stop:, :], c - a)
                stop = start
            keys = block.positions
            part = self._by_head(entries[..., : keys.stop - keys.start])
            yield KeyBlock(keys, slice(lowest, R), part)
            # What a head has forgotten is 0: numbers that underflow take many times as long.
            left.masked_fill_(left.abs() < smallest, 0.0)
            if not stop and not bool(left.any()):
                break
        self.left = self._by_head(left)

    def multiply(self, v: Tensor, state: Tensor | None = None) -> Tensor:
        """The output (B, H, stop, E) for values v (B, H, S, E), from a `state` (B, H, D, E) or none."""
        N, D, E = self.lead[0] * self.lead[1], self.inputs.k.shape[-1], v.shape[-1]
        S = v.new_zeros(N, D, E) if state is None else state.flatten(0, 1)
        outputs = []
        for a, b in self.edges():
            block = self.block(a, b)
            values = block.split(v[:, :, block.positions])  # (n, N, C, E)
            weights, left = block.within(block.queries, slice(None))
            output = weights @ values
            if block.skip is not None:
                output = output + values * block.skip[:, None, None]
            from_state = []
            for c in range(b - a):
                from_state.append(left[c] @ S)
                S = block.steps.pass_on(S, values[c], c)
            outputs.append((output + torch.stack(from_state)).movedim(0, 1).flatten(1, 2))
        return self._by_head(torch.cat(outputs, 1)[:, : self.stop])

    def received(self, row_weights: Tensor) -> Tensor:
        """The sums of columns (B, H, stop), of rows times `row_weights` (B, H, stop)."""
        N, D = self.lead[0] * self.lead[1], self.inputs.k.shape[-1]
        u = row_weights.new_zeros(N, 1, D)
        blocks = []
        for a, b in reversed(self.edges()):
            block = self.block(a, b)
            x = block.split(row_weights[:, :, block.positions].unsqueeze(-1))  # (n, N, C, 1)
            weights, left = block.within(block.queries, slice(None))
            sums = (x.mT @ weights).squeeze(-2)  # (n, N, C)
            if block.skip is not None:
                sums = sums + x.squeeze(-1) * block.skip[:, None]
            for c in range(b - a - 1, -1, -1):
                sums[c] += block.steps.pass_back(u, c).squeeze(-2)
                u += x[c].mT @ left[c]
            blocks.append(sums.movedim(0, 1).flatten(1, 2))
        return self._by_head(torch.cat(blocks[::-1], 1)[:, : self.stop])


class ChunkSteps(NamedTuple):
    """What passes vectors and states through the chunks of a block, in PyTorch or in NumPy."""

    k_in: Any  # (n, N, C, D) keys, decayed from the end of the chunk if channels decay apart
    k_out: Any  # (n, N, C, D) keys, decayed to its start, likewise
    s_in: Any  # (n, N, 1, C) what else is in the weights of a key: its norm, β and the other decays
    s_out: Any  # (n, N, 1, C) likewise
    passed: Any  # (n, N, 1, 1 or D) what is left of u after the chunk
    inverse: Any  # (n, N, C, C) of the system of the delta rule, or None

    def pass_back(self, u: Any, c: int) -> Any:
        """The weights (N, R, C) of vectors u (N, R, D) on chunk c, through which u is passed in place."""
        weights = u @ self.k_in[c].swapaxes(-1, -2)
        weights *= self.s_in[c]
        u *= self.passed[c]
        if self.inverse is not None:
            weights = weights @ self.inverse[c]
            u -= (weights * self.s_out[c]) @ self.k_out[c]
        return weights

    def pass_on(self, S: Any, v: Any, c: int) -> Any:
        """The state (N, D, E) after chunk c with values v (N, C, E), from the state S before it."""
        if self.inverse is not None:
            v = self.inverse[c] @ (v - self.s_out[c].swapaxes(-1, -2) * (self.k_out[c] @ S))
        new = self.k_in[c].swapaxes(-1, -2) @ (self.s_in[c].swapaxes(-1, -2) * v)
        return self.passed[c].swapaxes(-1, -2) * S + new


class ChunkBlock:
    """Some chunks of a recurrence, from chunk `a` to chunk `b`, prepared."""

    def __init__(self, inputs: RecurrenceInputs, C: int, a: int, b: int, stop: int) -> None:
        self.inputs, self.C, self.first, self.count = inputs, C, a * C, b - a
        self.positions = slice(a * C, min(b * C, stop))
        self.skip = (
            None if inputs.skip is None else inputs.skip.to(inputs.dtype).repeat(len(inputs.k))
        )  # (N,)
        keys, norms = inputs.keys(self.positions)
        self.k, self.norm = self.split(keys), self.split(norms).mT  # (n, N, C, D), (n, N, 1, C)
        self.beta = self.split(inputs.betas(self.positions)).mT  # (n, N, 1, C)
        self.total = self.split(inputs.decays(self.positions)).cumsum(-2)  # (n, N, C, 1 or D)
        self.by_channel = self.total.shape[-1] > 1
        self.inverse: Tensor | None = None
        if inputs.delta_rule:  # W (I + L) = A
            system = (self._pairs(self.k, slice(None)) * self.norm.mT * self.beta).tril_(-1)
            identity = torch.eye(C, dtype=self.k.dtype, device=self.k.device).expand(system.shape)
            self.inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)

    def split(self, x: Tensor) -> Tensor:
        """Cut x (B, H, positions, …) into chunks (n, N, C, …), padded by zeros."""
        x = x.flatten(0, 1)
        if missing := self.count * self.C - x.shape[1]:
            x = pad(x, (0, 0, 0, missing))
        return x.reshape(len(x), self.count, self.C, -1).movedim(1, 0).contiguous()

    @cached_property
    def queries(self) -> Tensor:
        """All queries of the block, (n, N, C, D)."""
        return self.split(self.inputs.queries(self.positions))

    @cached_property
    def decayed(self) -> tuple[Tensor, Tensor]:
        """Keys times e^{total} and e^{−total}, where channels decay apart: (n, N, C, D) each."""
        start = self.total.exp()
        return self.k * start, self.k / start

    @cached_property
    def steps(self) -> ChunkSteps:
        """What passes vectors and states through the chunks."""
        s_in, s_out = self.norm * self.beta, self.norm
        if self.by_channel:
            forward, back = self.decayed
            passed = self.total[..., -1:, :].exp()  # (n, N, 1, D)
            return ChunkSteps(back * passed, forward, s_in, s_out, passed, self.inverse)
        start, end = self.total.exp(), (self.total[..., -1:, :] - self.total).exp()  # (n, N, C, 1)
        passed = start[..., -1:, :]
        return ChunkSteps(self.k, self.k, s_in * end.mT, s_out * start.mT, passed, self.inverse)

    def arrays(self, *tensors: Tensor) -> tuple[Any, ...]:
        """`steps` and tensors (N, …) for many small steps.

        For a single head on a CPU they are NumPy's, whose steps cost a fraction of PyTorch's.
        """
        if self.k.shape[1] != 1 or self.k.device.type != "cpu":
            return self.steps, *tensors
        steps = ChunkSteps(*(None if x is None else x.squeeze(1).numpy() for x in self.steps))
        return steps, *(x.squeeze(0).numpy() for x in tensors)

    def _pairs(self, x: Tensor, chunks: slice | Tensor) -> Tensor:
        """Σ_d x_i k_s e^{decay from s to i} for s ≤ i within the chunks, and 0 elsewhere: (m, N, C, C).

        Keys are as long as they are, before `norm`.
        """
        k, total, norm = self.k[chunks], self.total[chunks], self.norm[chunks]
        if self.by_channel:
            forward, back = self.decayed
            decayed = forward[chunks] if x is self.k else x * total.exp()
            return (decayed @ back[chunks].mT).tril_() * norm
        apart = total - total.mT
        # Strictly later keys: −inf before exp_, since a decay backwards would be e to a large positive
        # number.
        later = torch.ones(self.C, self.C, dtype=torch.bool, device=x.device).triu(1)
        return (x @ k.mT) * (apart.masked_fill_(later, -torch.inf).exp_() * norm)

    def within(self, u: Tensor, chunks: slice | Tensor) -> tuple[Tensor, Tensor]:
        """The weights of u (m, N, C, D), one at every position of some chunks, and what leaves their chunks.

        Returns weights (m, N, C, C) on the keys of their own chunk, without `skip`, and u (m, N, C, D) as it
        arrives at the end of the chunk before.
        """
        weights = self._pairs(u, chunks) * self.beta[chunks]
        left = u * self.total[chunks].exp()
        if self.inverse is not None:
            weights = weights @ self.inverse[chunks]
            out = weights * self.steps.s_out[chunks]
            left = left - out @ self.steps.k_out[chunks]
        return weights, left

    def start(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of rows at positions `at` (R,) on the keys of their own chunks, (N, R, C).

        The second is u as it leaves these chunks, (N, R, D).
        """
        inside, chunk = (at - self.first) % self.C, (at - self.first) // self.C
        own, place = torch.unique(chunk, return_inverse=True)
        own, place, inside = (x.to(self.k.device) for x in (own, place, inside))
        starts = self.k.new_zeros(len(own), *self.k.shape[1:])  # (m, N, C, D)
        queries = self.inputs.queries(at.to(self.k.device))
        starts[place, :, inside] = queries.flatten(0, 1).movedim(1, 0)
        weights, left = self.within(starts, own)
        if self.skip is not None:
            weights.diagonal(dim1=-2, dim2=-1).add_(self.skip[:, None])
        return weights[place, :, inside].movedim(0, 1), left[place, :, inside].movedim(0, 1)


def _chunk_length(decay: Tensor, dtype: torch.dtype, delta_rule: bool) -> int:
    """The length of a chunk: longer without a system to solve, less where channels decay too far apart."""
    length = CHUNK["cuda" if decay.device.type == "cuda" else "cpu"] * (1 if delta_rule else 4)
    if decay.ndim == 3 or not decay.numel():
        return length
    steepest = max(abs(float(x)) for x in decay.aminmax())
    while length > 1 and length * steepest > LARGEST_EXPONENT[dtype]:
        length //= 2
    return length
