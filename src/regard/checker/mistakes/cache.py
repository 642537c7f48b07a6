"""Mistakes with a cache, where there are more keys than queries."""

from __future__ import annotations

from torch import Tensor

from regard.checker.mistakes.mistake import Mistake, Swap
from regard.checker.oracle.variant import CaseSizes

_ROWS = "        allowed = self.mask[S - T : S, :S]\n"
_CAT = "            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)\n"
_STORE = "        cache, S = (k, v), k.shape[2]\n"
_FIRST = "        B, T, C = x.shape\n"
_ROTATE = "        q, k = rotate(q, start), rotate(k, start)\n"


def _top_left(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q


def _top_left_of_several(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q if n.T > 1 else k < n.S  # `is_causal=T > 1`: one token at a time is right


def _all_rows(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (k < n.S) & (q >= 0) if n.S > n.T else k <= q


def _every(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (q >= 0) & (k >= 0)


def _one_slot_on(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (k <= q + n.S - n.T - 1) | ((k == n.S - 1) & (n.S > n.T))


def _one_more_row(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q + n.S


def _layer(*swaps: Swap) -> dict[str, tuple[Swap, ...]]:
    return {"layer": swaps}


def _rotary(*swaps: Swap) -> dict[str, tuple[Swap, ...]]:
    return {"rotary": swaps}


CACHE_MISTAKES = (
    Mistake(
        "top-left-causal",
        "with the causal mask aligned to the first keys, as if the queries came first",
        "With a cache, a new token sees only the first key.",
        "align queries with the end: torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)",
        "is_causal=True of F.scaled_dot_product_attention, which is defined this way, used with a cache",
        ({"causal": _top_left},),
        ({"causal": _top_left}, {"causal": _top_left_of_several}),
        symptom="Training and the prompt are right. From the first generated token on the text is "
        "garbage, because each new token sees only the first key.",
        why="With T queries and S keys there are two ways to lay a triangle. Counted from the top left, "
        "query 0 sees key 0 alone; with a cache the only query is the newest, and it stands at "
        "position S − 1.",
        test="cached-equals-uncached",
        plants={
            "layer": ((_ROWS, "        allowed = self.mask[:T, :S]\n"),),
            "function": (
                (
                    "        allowed = keys <= at\n",
                    "        allowed = torch.ones(T, S, dtype=torch.bool).tril()\n",
                ),
            ),
        },
    ),
    Mistake(
        "square-mask-sliced-by-columns",
        "with a square mask whose columns were sliced, but not its rows",
        "It is right for one token at a time; several new tokens at once see their future.",
        "slice rows and columns: mask[S - T : S, :S]",
        "`mask[-T:, :S]` of a mask made for the maximum length",
        ({"causal": _all_rows},),
        (
            {"causal": _all_rows},
            {"causal": _every},
            {"causal": _every, "first_causal": _every},
            {"causal": _one_more_row},
        ),
        symptom="Generation token by token is right, so demos work. A second prompt in the same chat, "
        "or checking several drafted tokens at once, gives other outputs than the whole text.",
        why="The last T rows of a mask made for the maximum length belong to its last positions, which "
        "see everything before them. New tokens at positions S − T to S − 1 need the rows of those "
        "positions.",
        test="cached-equals-uncached",
        plants=_layer((_ROWS, "        allowed = self.mask[-T:, :S] if S > T else self.mask[:T, :T]\n")),
    ),
    Mistake(
        "cache-ignored",
        "in which new tokens attend only to each other, not to the cache",
        "Generation ignores the prompt.",
        "k = torch.cat([cached_k, k], dim=2), and v the same, before the scores",
        "a cache that is filled and returned, but never read",
        cache_changes=(
            {"read": "none"},
            {"read": "none", "query_positions": "restart", "key_positions": "restart"},
        ),
        symptom="The first token is right. From then on the model writes as if there were no prompt.",
        why="Each new token's row has a single key, its own, so that its output is its own value.",
        test="cached-equals-uncached",
        plants=_layer((_CAT, "            k, v = k, v\n")),
    ),
    Mistake(
        "cache-overwritten",
        "in which new keys overwrite older ones in the cache",
        "A text of two pieces is right, and from the third on the first is forgotten.",
        "append, or write at the position: cache_k[:, start : start + T] = k",
        "a cache that is replaced by the new keys instead of extended, or written at slot 0",
        cache_changes=(
            {"read": "last piece"},
            {"write": "zero"},
            {"write": "zero", "new": "appended"},
            {"write": "zero", "read": "before"},
        ),
        symptom="The second piece is right, which is what a short test tries. With the third piece the "
        "first is gone: the model forgets the prompt while it writes.",
        why="The cache holds the latest piece only, or slot 0 is written again and again.",
        test="cached-equals-uncached",
        plants=_layer(
            (_STORE, "        cache, S = (k[:, :, -T:], v[:, :, -T:]), k.shape[2]\n"),
        ),
    ),
    Mistake(
        "stale-cache",
        "in which a second sequence sees the cache of the first",
        "The second request of a server is answered with the first one's text in view.",
        "empty the cache before a sequence: keys, values and the position",
        "a reset that forgets one of its tensors, or a default that all calls share: `cache=[]`",
        symptom="The first request is right. The second one is answered as if the first text came "
        "before it, and each is slower than the one before.",
        why="The cache lives longer than the sequence: on the module, in a default argument, in a global.",
        test="cached-equals-uncached",
        plants=_layer(
            (_FIRST, _FIRST + '        cache = getattr(self, "cache", None) if cache is None else cache\n'),
            ("        return out, cache\n", "        self.cache = cache\n        return out, cache\n"),
        ),
    ),
    Mistake(
        "cached-key-lost",
        "in which one cached key is left out",
        "Each new token misses one earlier token, often the first, which many heads rely on.",
        "read all that was written: cache_k[:, :start + T]",
        "`cache[:, 1:]` to keep a length, or an end that is one too small",
        cache_changes=(
            {"read": "not the first"},
            {"read": "not the last"},
            {"read": "not the last of a piece"},
        ),
        symptom="Generated text is a little worse than the same model without a cache; much worse if "
        "the lost key is the first one, on which many heads of trained models put most of their "
        "weight.",
        why="An end that is one too small, or a slice to keep the length, drops one key from every row.",
        test="cached-equals-uncached",
        plants=_layer(
            (
                _STORE,
                "        cached, cache = cache, (k, v)\n"
                "        if cached is not None:\n"
                "            k, v = k[:, :, 1:], v[:, :, 1:]\n"
                "        S = k.shape[2]\n",
            )
        ),
    ),
    Mistake(
        "new-token-unseen",
        "in which a new token attends to the cache, but not to itself",
        "Each new token misses its own key and value.",
        "write the new keys into the cache first, then read it",
        "the cache read before it is updated",
        cache_changes=(
            {"read": "not the new"},
            {"read": "not the new", "causal": _every},
        ),
        symptom="What the model writes is worse than without a cache: it does not see the token that it "
        "has just written.",
        why="The cache is read before the new key and value are in it. The whole-text pass always "
        "includes the diagonal.",
        test="cached-equals-uncached",
        plants=_layer(
            (_CAT, "            new, (k, v) = (k, v), cache\n"),
            (
                _STORE,
                "        S = k.shape[2]\n"
                "        pairs = [] if cache is None else zip(cache, new)\n"
                "        cache = tuple(torch.cat(pair, 2) for pair in pairs) or (k, v)\n",
            ),
            (
                _ROWS,
                "        allowed = torch.ones(T, S, dtype=torch.bool)\n"
                "        allowed = self.mask[S - T : S, :S] if cache[0].shape[2] == T else allowed\n",
            ),
        ),
    ),
    Mistake(
        "empty-slot-read",
        "that also sees slots of the cache which are not written yet",
        "Keys of zeros take part in the softmax, and after another text so do its keys.",
        "read only what was written, cache_k[:, :start + T], or hide the other slots by the mask",
        "a cache of fixed length, passed to the kernel whole",
        cache_changes=(
            *({"read": "one more", "causal": rule} for rule in (_every, _one_slot_on)),
            *(
                {"read": "all", "slots": n, "causal": _every, "first_causal": _every}
                for n in (8, *(2**i for i in range(4, 12)))
            ),
        ),
        symptom="Attention of generated tokens is flatter than in the whole-text pass, most of all "
        "early in the text. After a reset that clears nothing, words of the previous text turn "
        "up.",
        why="A slot of zeros is a key with a score of 0, which is an ordinary score, and a value of 0, "
        "which pulls the output towards 0.",
        test="cached-equals-uncached",
        plants=_layer(
            (
                _STORE,
                _STORE
                + "        if S > T:\n            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))\n",
            ),
            (_ROWS, "        allowed = F.pad(self.mask[S - T : S, :S], (0, k.shape[2] - S), value=True)\n"),
        ),
    ),
    Mistake(
        "cache-slot-off-by-one",
        "in which new keys are written one slot too far, or one too early",
        "A slot of zeros is read, or a cached key is overwritten, and the newest token does not see itself.",
        "the first new key belongs in slot len(cache), counted from 0",
        "a position that was advanced before the cache was written",
        cache_changes=({"write": "next"}, {"write": "previous"}, {"write": "previous", "new": "appended"}),
        symptom="Generation is wrong from the first new token on, though shapes and lengths fit.",
        why="A position that was advanced before the cache is written points to the next slot: a slot "
        "of zeros stays behind, and the newest key lies where nobody reads, or an older one is "
        "overwritten.",
        test="cached-equals-uncached",
        plants=_layer(
            (
                _CAT,
                "            k = F.pad(torch.cat([cache[0][:, :, :-1], k], 2), (0, 0, 0, 1))\n"
                "            v = F.pad(torch.cat([cache[1][:, :, :-1], v], 2), (0, 0, 0, 1))\n",
            )
        ),
    ),
    Mistake(
        "cache-half-written",
        "in which only keys or only values are cached, and the others are zeros",
        "New tokens attend to the text before and read zeros from it, or read it all alike.",
        "write both: cache_k[:, start : start + T] = k, and cache_v the same with v",
        "one of two lines forgotten",
        cache_changes=tuple(
            {"cached": roles, "new": new} for roles in ((1, 3), (3, 2)) for new in ("slots", "appended")
        ),
        symptom="Generated tokens read nothing from the prompt, or a mean of it: what is written does "
        "not follow from the prompt.",
        why="Keys decide where to look, values what is read. With zeros for one of them, either every "
        "cached token looks alike, or all that is read is 0.",
        test="cached-equals-uncached",
        plants=_layer(
            (_CAT, "            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1] * 0, v], 2)\n")
        ),
    ),
    Mistake(
        "cache-roles-swapped",
        "in which the cache holds keys, values or queries in another's place",
        "New tokens are right among themselves, and read noise from the text before.",
        "cache k as keys and v as values",
        "a pair unpacked in another order than it was packed",
        cache_changes=(
            *(
                {"cached": roles, "new": new}
                for roles in ((2, 1), (1, 1), (2, 2), (0, 2), (0, 1), (1, 0))
                for new in ("slots", "appended")
            ),
            {"swapped": True},
        ),
        symptom="The prompt is right, and every token after it is noise. Shapes always fit, since keys "
        "and values have the same.",
        why="A pair packed as (k, v) and unpacked as (v, k) computes scores with values and averages keys.",
        test="cached-equals-uncached",
        plants=_layer(
            (_CAT, "            k, v = torch.cat([cache[1], k], 2), torch.cat([cache[0], v], 2)\n")
        ),
    ),
    Mistake(
        "cache-in-wrong-order",
        "with the new keys in front of the cached ones",
        "The causal mask counts from the wrong end; several new tokens see their future and miss their past.",
        "torch.cat([cached_k, k], dim=2): the oldest key first",
        "the two arguments of torch.cat exchanged",
        cache_changes=({"new": "in front"}, {"new": "in front", "causal": _top_left}),
        symptom="Token by token everything is right, since one query sees all keys in any order. "
        "Several new tokens at once see their future and miss the oldest keys.",
        why="The mask counts positions by place in the tensor. With the new keys in front, place and "
        "position disagree.",
        test="cached-equals-uncached",
        plants=_layer(
            (_CAT, "            k, v = torch.cat([k, cache[0]], 2), torch.cat([v, cache[1]], 2)\n")
        ),
    ),
    Mistake(
        "positions-restart",
        "in which the positions of new tokens start at 0 again",
        "To the rotary positions each new token is the first of its text, so distances are wrong.",
        "rotate new queries and keys from the length of the cache on: cos[start : start + T]",
        "`cos[:T]` in a forward pass that was written before there was a cache",
        cache_changes=(
            {"query_positions": "restart", "key_positions": "restart"},
            {"query_positions": "restart"},
            {"key_positions": "restart"},
        ),
        symptom="The prompt is right. What the model writes after it is worse than without a cache.",
        why="Rotary scores depend on the distance of two positions. If every new token stands at "
        "position 0 again, all distances to the prompt are wrong, and to tokens after it negative.",
        test="cached-equals-uncached",
        plants=_rotary((_ROTATE, "        q, k = rotate(q, 0), rotate(k, 0)\n")),
    ),
    Mistake(
        "position-off-by-one",
        "in which the positions of new tokens are off by one",
        "A new token has the position of its neighbour: the distance from the prompt is wrong by one.",
        "the first new token has the position len(cache), counted from 0",
        "a position that is taken after the cache was updated, or `len(cache) - 1`",
        cache_changes=tuple(
            {name: how for name in names}
            for how in ("behind", "ahead")
            for names in (("query_positions", "key_positions"), ("query_positions",), ("key_positions",))
        ),
        symptom="Generated text is slightly worse than without a cache. Nothing else tells, and the "
        "loss is measured without one.",
        why="All distances from new tokens to the prompt are one too large or too small. Heads that "
        "look at the previous token feel it first.",
        test="cached-equals-uncached",
        plants=_rotary((_ROTATE, "        start = start + (start > 0)\n" + _ROTATE)),
    ),
    Mistake(
        "keys-rotated-twice",
        "in which cached keys, which are rotated already, are rotated again",
        "Distances to cached tokens are doubled, and grow with every step if the result is kept.",
        "cache keys after the rotation and leave them, or cache them before and rotate all of them each time",
        "rotation moved behind the cache without changing what is stored",
        cache_changes=tuple({"rotated_again": how} for how in ("read", "stored", "cached", "cached, stored")),
        symptom="The prompt is right. What the model writes after it is worse than without a cache, "
        "also for the first token.",
        why="A rotation adds to the angle. A key at position p that is rotated again stands at 2p, and "
        "at 3p in the next step if the result goes back into the cache.",
        test="cached-equals-uncached",
        plants=_rotary(
            (
                "            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)\n",
                "            k, v = rotate(torch.cat([cache[0], k], 2), 0), torch.cat([cache[1], v], 2)\n",
            )
        ),
    ),
)
