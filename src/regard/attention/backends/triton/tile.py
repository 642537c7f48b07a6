"""Operations on one tile that the Triton kernels share: load its rows, score it, and mask it.

Scores are in base 2 (times log2 e), since the hardware's exponential is base 2. An option that a call does
not use is None, and the compiler removes its code.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton import compile_notice

compile_notice.install()  # here, since every kernel imports this file

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(at, step, first, seen, WIDTH: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Rows from `first` on of a head's (length, WIDTH) as a (ROWS, PADDED) tile, 0 where not `seen`."""
    row, col = tl.arange(0, ROWS), tl.arange(0, PADDED)
    # int64: row · stride exceeds 2³¹ for long sequences of many heads.
    at += first.to(tl.int64) * step[2] + row[:, None] * step[2] + col[None, :] * step[3]
    if seen is not None:
        return tl.load(at, mask=seen[:, None] & (col[None, :] < WIDTH), other=0.0)
    elif WIDTH == PADDED:
        return tl.load(at)
    else:
        return tl.load(at, mask=col[None, :] < WIDTH, other=0.0)


@triton.jit
def load_block(
    at, step, tma, b, g, first, length,
    PARTIAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """`load_rows` for head g of sequence b, by its tensor descriptor if it has one.

    A PARTIAL block may reach past the last of `length` rows; zeros stand there.
    """
    if tma is not None:
        return tma.load([b, g, first.to(tl.int32), 0]).reshape(ROWS, PADDED)
    elif PARTIAL:
        return load_rows(at, step, first, first + tl.arange(0, ROWS) < length, WIDTH, ROWS, PADDED)
    else:
        return load_rows(at, step, first, None, WIDTH, ROWS, PADDED)


@triton.jit
def gather_rows(at, step, row, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of one head's (length, WIDTH) by index; zeros for −1."""
    col = tl.arange(0, PADDED)[None, :]
    at += row[:, None].to(tl.int64) * step[2] + col * step[3]
    return tl.load(at, mask=(row[:, None] >= 0) & (col < WIDTH), other=0.0)


@triton.jit
def store_rows(at, step, first, length, tile, WIDTH: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Store a (ROWS, PADDED) tile in the rows from `first` on of one head's (length, WIDTH)."""
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, PADDED)[None, :]
    inside = (first + row < length) & (col < WIDTH)
    at += first.to(tl.int64) * step[2] + row * step[2] + col * step[3]
    tl.store(at, tile.to(at.dtype.element_ty), mask=inside)


@triton.jit
def scored(product, factor, cap, slope, q, k):
    """Scores in base 2 from the products of queries and keys that stand at positions q and k."""
    score = product * factor
    if cap is not None:
        score = cap * tanh(score)
    if slope is not None:
        score -= slope * tl.abs(q - k).to(tl.float32)
    return score


@triton.jit
def tanh(x):
    """tanh in float32 precision: 1 − 2 / (e^2x + 1), and a polynomial where that loses digits."""
    y = x * x
    small = -6.104947958455204e-3
    small = small * y + 2.100364117430851e-2
    small = small * y - 5.385249745488343e-2
    small = small * y + 1.3332782263846335e-1
    small = small * y - 3.333332909961273e-1
    large = 1.0 - 2.0 / (tl.exp2(tl.abs(x) * (2 * LOG2E)) + 1.0)
    # 0.625², where Cephes' tanhf changes over as well.
    return tl.where(y < 0.390625, x + x * y * small, tl.where(x < 0, -large, large))


@triton.jit
def program_block(blocks, heads, group, LAST_FIRST: tl.constexpr = True, first_head=0):
    """What a program computes: its block, head, sequence, head of the sequence, and key/value head.

    The last blocks of queries see the most keys under a causal mask: LAST_FIRST starts those first.
    """
    block, head = tl.program_id(0) % blocks, first_head + tl.program_id(0) // blocks
    if LAST_FIRST:
        block = blocks - 1 - block
    # int64: a head times its stride exceeds 2³¹.
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    return block, head.to(tl.int64), b, h, h // group


@triton.jit
def load_levels(lse, row, inside, EMPTY: tl.constexpr = float("inf")):
    """The log-sum-exp of rows in base 2; EMPTY where a query sees no key, and in places without a query."""
    level = tl.load(lse + row, mask=inside, other=float("-inf"))
    return tl.where(level == float("-inf"), EMPTY, level * LOG2E)


@triton.jit
def visited_keys(lists, band, b, h, block, T, S, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The key blocks that a block of queries has to visit, as the four edges that `key_blocks` has.

    They are entries of its list if there are lists, and a list has no partial blocks before the full ones.
    """
    if lists is None:
        last_row = tl.minimum(block * ROWS + ROWS, T) - 1
        return key_blocks(block * ROWS + S - T, last_row + S - T, S, band, COLS)
    else:
        full_first, full_last, last = list_of(lists, b, h, block)
        return full_first, full_first, full_last, last


@triton.jit
def visiting_queries(lists, band, b, h, block, T, S, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The query blocks that have to visit a block of keys, as `visited_keys`."""
    if lists is None:
        last_key = tl.minimum(block * COLS + COLS, S) - 1
        return query_blocks(block * COLS, last_key, T, S, band, ROWS)
    else:
        full_first, full_last, last = list_of(lists, b, h, block)
        return full_first, full_first, full_last, last


@triton.jit
def key_blocks(q_first, q_last, S, band, COLS: tl.constexpr):
    """The edges of the key blocks that the queries at positions q_first … q_last have to visit.

    Blocks first … full_first and full_last … last are partial: they hold keys that are hidden from some of
    the queries, or that do not exist. Blocks full_first … full_last are full.
    """
    first, full_first = 0, 0
    full_last, last = S // COLS, tl.cdiv(S, COLS)
    if band.ahead is not None:
        full_last = tl.minimum(full_last, tl.maximum(q_first + band.ahead + 1, 0) // COLS)
        last = tl.minimum(last, tl.cdiv(tl.maximum(q_last + band.ahead + 1, 0), COLS))
    if band.behind is not None:
        first = tl.minimum(last, tl.maximum(q_first - band.behind, 0) // COLS)
        full_first = tl.minimum(last, tl.cdiv(tl.maximum(q_last - band.behind, 0), COLS))
    full_last = tl.maximum(full_first, full_last)
    return first, full_first, full_last, tl.maximum(full_last, last)


@triton.jit
def query_blocks(k_first, k_last, T, S, band, ROWS: tl.constexpr):
    """The query blocks that have to visit the keys k_first … k_last, with the edges that `key_blocks` has."""
    first, full_first = 0, 0
    full_last, last = tl.cdiv(T, ROWS), tl.cdiv(T, ROWS)  # queries past the last are harmless
    shift = S - T
    if band.ahead is not None:
        first = tl.minimum(last, tl.maximum(k_first - band.ahead - shift, 0) // ROWS)
        full_first = tl.minimum(last, tl.cdiv(tl.maximum(k_last - band.ahead - shift, 0), ROWS))
    if band.behind is not None:
        last = tl.minimum(last, tl.cdiv(tl.maximum(k_last + band.behind + 1 - shift, 0), ROWS))
        full_last = tl.minimum(full_last, tl.maximum(k_first + band.behind + 1 - shift, 0) // ROWS)
        first, full_first = tl.minimum(first, last), tl.minimum(full_first, last)
    full_last = tl.maximum(full_first, full_last)
    return first, full_first, full_last, tl.maximum(full_last, last)


@triton.jit
def in_band(q, k, S, band):
    """Whether the queries at positions q see the keys k. Both broadcast."""
    allowed = k < S
    if band.ahead is not None:
        allowed = allowed & (k <= q + band.ahead)
    if band.behind is not None:
        allowed = allowed & (k >= q - band.behind)
    return allowed


@triton.jit
def tile_bits(lists, entry, ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """The stored tile of a partial block as booleans: (ROWS, COLS), or (COLS, ROWS) if TURNED."""
    tile = tl.load(lists.tile + entry).to(tl.int64)
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    # The dtype tells which of the three forms `BlockLists.tiles` has, at compile time.
    if lists.tiles.dtype.element_ty == tl.int32:  # runs of keys
        at = lists.tiles + (tile * ROWS + row) * 2
        first, stop = tl.load(at), tl.load(at + 1)
        if TURNED:
            return (col[:, None] >= first[None, :]) & (col[:, None] < stop[None, :])
        else:
            return (col[None, :] >= first[:, None]) & (col[None, :] < stop[:, None])
    elif lists.tiles.dtype.element_ty == tl.int64:
        at = lists.tiles + (tile * ROWS + row) * (COLS // 64)
        if TURNED:
            return _bits_of_words(at[None, :], col[:, None], COLS)
        else:
            return _bits_of_words(at[:, None], col[None, :], COLS)
    else:
        at = lists.tiles + tile * (ROWS * COLS // 8)
        if TURNED:
            at += row[None, :] * (COLS // 8) + col[:, None] // 8
            return ((tl.load(at).to(tl.int32) >> (col[:, None] % 8)) & 1) != 0
        else:
            at += row[:, None] * (COLS // 8) + col[None, :] // 8
            return ((tl.load(at).to(tl.int32) >> (col[None, :] % 8)) & 1) != 0


@triton.jit
def _bits_of_words(at, col, COLS: tl.constexpr):
    """Bit `col` of COLS bits in words of 64 from `at` on. A row loads each of its words once."""
    word = tl.load(at)
    for n in tl.static_range(1, COLS // 64):
        word = tl.where(col >= n * 64, tl.load(at + n), word)
    return ((word >> (col % 64).to(tl.int64)) & 1) != 0


@triton.jit
def visible(
    lists, entry, band, position, key, S,
    ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr = False,
):  # fmt: skip
    """Which keys of a partial block, at an entry of the lists if there are some, each query sees.

    (ROWS, COLS), or (COLS, ROWS) if TURNED.
    """
    if lists is not None:
        return tile_bits(lists, entry, ROWS, COLS, TURNED)
    elif TURNED:
        return in_band(position[None, :], key[:, None], S, band)
    else:
        return in_band(position[:, None], key[None, :], S, band)


@triton.jit
def seen_by_any(allowed, position, S):
    """Which keys any query of a tile sees; a query past the last one, at position S or above, is none."""
    return tl.max((allowed & (position < S)[:, None]).to(tl.int32), 0) > 0


@triton.jit
def list_of(lists, b, h, block):
    """The entries at which the list of a block begins, its partial blocks begin, and it ends."""
    at = b * lists.batch_step + h * lists.head_step + block
    return tl.load(lists.first + at), tl.load(lists.split + at), tl.load(lists.first + at + 1)


@triton.jit
def block_at(lists, i, start, stop):
    """The block of entry i of a list that goes from start to stop, or i itself without lists.

    A loop asks for the next one before it needs it, so that nothing waits for the list.
    """
    if lists is None:
        return i
    else:
        return tl.load(lists.block + i, mask=(i >= start) & (i < stop), other=0)
