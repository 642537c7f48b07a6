"""Mistakes of positions: what is rotated, by which tables, along which axis, and biases by distance."""

from regard.checker.mistakes.mistake import Mistake, Swap

_ROTATE = "        q, k = rotate(q, start), rotate(k, start)\n"
_PAIRS = """\
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
"""


def _rotary(old: str, new: str) -> dict[str, tuple[Swap, ...]]:
    return {"rotary": ((old, new),)}


POSITION_MISTAKES = (
    Mistake(
        "values-rotated",
        "with rotary positions on the values too",
        "What a token passes on depends on its absolute position, so relative positions are lost in the output.",
        "rotate queries and keys only",
        "one loop over q, k and v, or a rotation of the fused projection",
        ({"rotated": "qkv"}, {"rotated": "v"}),
        plants=_rotary(_ROTATE, "        q, k, v = rotate(q, start), rotate(k, start), rotate(v, start)\n"),
    ),
    Mistake(
        "one-side-rotated",
        "with rotary positions on the queries only, or on the keys only",
        "Scores depend on absolute positions instead of distances, and nothing is learned for later ones.",
        "rotate queries and keys: q, k = rotate(q), rotate(k)",
        "a rotation that returns two tensors, of which one is not used",
        ({"rotated": "q"}, {"rotated": "k"}),
        plants=_rotary(_ROTATE, "        k = rotate(k, start)\n"),
    ),
    Mistake(
        "rotary-pairing-mixed",
        "with the rotary tables of one pairing and the rotation of the other",
        "The two channels of a pair are turned by different angles: lengths change and distances mean nothing.",
        "torch.cat([angles, angles], -1) goes with halves, angles.repeat_interleave(2, -1) with neighbours",
        "rotate_half of one code base with the cosines and sines of another",
        ({"rotation": "mixed"},),
        plants=_rotary(
            _PAIRS,
            "    cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)\n"
            "    a, b = x.chunk(2, dim=-1)\n"
            "    return x * cos + torch.cat([-b, a], dim=-1) * sin\n",
        ),
    ),
    Mistake(
        "rotated-along-heads",
        "with rotary positions counted along the heads instead of the tokens",
        "Every token has the same position, and every head another one: order is invisible.",
        "rotate (B, H, T, D) along T; before the transpose the tokens are on axis 1",
        "a rotation for (B, T, H, D) that is given (B, H, T, D)",
        ({"rotation": "heads"},),
        plants=_rotary(
            _ROTATE, "        q, k = (rotate(t.transpose(1, 2), 0).transpose(1, 2) for t in (q, k))\n"
        ),
    ),
)
