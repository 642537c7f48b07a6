"""A small attention kernel in Triton, forward only, and the mistakes that can be planted in it.

Each program works on a block of queries and walks over blocks of keys, with an online softmax.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(
    q, k, v, out, lse, sinks, H, G, T, S, D, E, scale, window,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, MISTAKE: tl.constexpr,
):  # fmt: skip
    # Compiled kernels need the constexpr annotations; the interpreter runs without them.
    head, batch = tl.program_id(1), tl.program_id(2)
    group = head // (H // G)
    if MISTAKE == "grouped-heads-tiled":
        group = head % G
    rows, width = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    at = rows + S - T  # a query's position among the keys
    if MISTAKE == "top-left-causal":
        at = rows
    q += (batch * H + head) * T * D
    k += (batch * G + group) * S * D
    v += (batch * G + group) * S * E
    queries = tl.load(q + rows[:, None] * D + width, (rows[:, None] < T) & (width < D), 0.0).to(tl.float32)
    most = tl.full([BLOCK], -float("inf"), tl.float32)
    total, mixed = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, S, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        read = columns
        if MISTAKE == "stale-keys":
            read = tl.where(start > 0, columns - BLOCK, columns)
        keys = tl.load(k + read[:, None] * D + width, (read[:, None] < S) & (width < D), 0.0).to(tl.float32)
        values = tl.load(v + read[:, None] * E + width, (read[:, None] < S) & (width < E), 0.0).to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if MISTAKE != "no-scale":
            scores *= scale
        visible = (columns < S) & (rows[:, None] >= 0)
        if CAUSAL and MISTAKE == "one-token-ahead":
            visible &= columns <= at[:, None] + 1
        elif CAUSAL:
            visible &= columns <= at[:, None]
        if WINDOW and MISTAKE == "window-off-by-one":
            visible &= columns >= at[:, None] - window
        elif WINDOW and MISTAKE != "window-dropped":
            visible &= columns > at[:, None] - window
        scores = tl.where(visible, scores, -float("inf"))
        highest = tl.maximum(most, tl.max(scores, 1))
        shift = tl.where(highest == -float("inf"), 0.0, highest)
        weights, factor = tl.exp(scores - shift[:, None]), tl.exp(most - shift)
        total = total * factor + tl.sum(weights, 1)
        mixed = mixed * factor[:, None] + tl.dot(weights, values, input_precision="ieee")
        most = highest
    logarithm = most + tl.log(total)
    if MISTAKE == "lse-base-2":
        logarithm = logarithm * 1.4426950408889634
    tl.store(lse + (batch * H + head) * T + rows, logarithm, rows < T)
    if SINKS and MISTAKE != "sink-dropped":
        owner = group if MISTAKE == "sink-of-another-head" else head
        share = tl.exp(tl.load(sinks + owner).to(tl.float32) - most)
        total += 2 * share if MISTAKE == "sink-added-twice" else share
    out += (batch * H + head) * T * E
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + rows[:, None] * E + width, mixed, (rows[:, None] < T) & (width < E))


def kernel(mistake="", block=64):
    """The attention function that launches the kernel, with a mistake in it or none."""

    def triton_attention(q, k, v, causal=False, window=None, sinks=None):
        """A query sees the last `window` keys, its own included."""
        if q.dtype == torch.float64:
            raise TypeError("float64 is not supported")
        q, k, v = (x.contiguous() for x in (q, k, v))
        (B, H, T, D), (_, G, S, E) = q.shape, v.shape
        out, lse = q.new_empty(B, H, T, E), q.new_empty(B, H, T, dtype=torch.float32)
        wide = max(16, triton.next_power_of_2(max(D, E)))
        _forward[(triton.cdiv(T, block), H, B)](
            q, k, v, out, lse, q if sinks is None else sinks, H, G, T, S, D, E, D**-0.5, window or 0,
            BLOCK=block, WIDTH=wide, CAUSAL=causal, WINDOW=window is not None,
            SINKS=sinks is not None, MISTAKE=mistake,
        )  # fmt: skip
        return out, lse

    return triton_attention


MISTAKES = (
    "no-scale",
    "one-token-ahead",
    "top-left-causal",
    "window-off-by-one",
    "window-dropped",
    "grouped-heads-tiled",
    "stale-keys",
    "sink-dropped",
    "sink-added-twice",
    "sink-of-another-head",
    "lse-base-2",
)
# A function cannot know whether there is a cache: the alignment of its causal mask is a warning.
WARNINGS = ("top-left-causal",)
