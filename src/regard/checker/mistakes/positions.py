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
        "What a token passes on depends on its absolute position.",
        "rotate queries and keys only",
        "one loop over q, k and v, or a rotation of the fused projection",
        ({"rotated": "qkv"}, {"rotated": "v"}),
        symptom="Loaded weights give noise from the second token on, while the first, whose angle is 0, "
        "is right.",
        why="Rotation makes scores depend on distance because a turned query meets a turned key. A "
        "turned value meets nothing that turns it back.",
        test="a-repeated-token-gives-the-same-everywhere",
        plants=_rotary(_ROTATE, "        q, k, v = rotate(q, start), rotate(k, start), rotate(v, start)\n"),
    ),
    Mistake(
        "one-side-rotated",
        "with rotary positions on the queries only, or on the keys only",
        "Scores depend on absolute positions instead of distances, and later positions are new to the model.",
        "rotate queries and keys: q, k = rotate(q), rotate(k)",
        "a rotation that returns two tensors, of which one is not used",
        ({"rotated": "q"}, {"rotated": "k"}),
        symptom="It trains. Loaded weights give noise from the second token on.",
        why="The angle between a turned query and a turned key holds their distance. If only one is "
        "turned, the angle holds its absolute position.",
        test="rotations-agree-with-complex-numbers",
        plants=_rotary(_ROTATE, "        k = rotate(k, start)\n"),
    ),
    Mistake(
        "rotary-pairing-mixed",
        "with the rotary tables of one pairing and the rotation of the other",
        "The channels of a pair are turned by different angles: lengths change, and distances mean nothing.",
        "torch.cat([angles, angles], -1) goes with halves, angles.repeat_interleave(2, -1) with neighbours",
        "rotate_half of one code base with the cosines and sines of another",
        ({"rotation": "mixed"},),
        symptom="Loaded weights give noise from the second token on, while the first, whose angle is 0, "
        "is right.",
        why="There are two ways to pair channels: i with i + D/2, or 2i with 2i + 1. Tables in one "
        "order and a rotation in the other turn the two channels of a pair by different angles.",
        test="a-rotation-keeps-lengths",
        plants=_rotary(
            _PAIRS,
            "    cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)\n"
            "    a, b = x.chunk(2, dim=-1)\n"
            "    return x * cos + torch.cat([-b, a], dim=-1) * sin\n",
        ),
    ),
    Mistake(
        "rotation-sign-lost",
        "with a rotation whose minus is missing: (a cos + b sin, b cos + a sin)",
        "It is no rotation: lengths change with the position, and scores do not depend on distances.",
        "a cos − b sin, b cos + a sin; rotate_half is torch.cat([-b, a], -1)",
        "rotate_half written as torch.cat([b, a], -1)",
        ({"rotation": "unsigned"},),
        symptom="The first token is right, and loaded weights give noise after it. The length of a "
        "rotated key changes with its position.",
        why="The matrix (cos, −sin; sin, cos) is a rotation because of its minus. Without it lengths "
        "are not kept, and two turns do not add up to one.",
        test="a-rotation-keeps-lengths",
        plants=_rotary("a * cos - b * sin", "a * cos + b * sin"),
    ),
    Mistake(
        "rotated-against-each-other",
        "with queries and keys rotated in opposite directions",
        "Scores depend on the sum of two positions instead of their distance.",
        "rotate queries and keys by the same angles",
        "a conjugate or a negative sine for one of them",
        ({"rotation": "opposite"},),
        symptom="It trains. Loaded weights give noise from the second token on.",
        why="A query turned by +i and a key turned by −j meet at the angle i + j: the same for (0, 4) "
        "and (2, 2).",
        test="rotations-agree-with-complex-numbers",
        plants=_rotary(
            _ROTATE,
            "        half = self.head_dim // 2\n"
            "        q, k = rotate(q, start), rotate(k.roll(half, -1), start).roll(half, -1)\n",
        ),
    ),
    Mistake(
        "alibi-inverted",
        "with a bias by distance of the wrong sign: far keys are favoured",
        "The farther a token is the more it is attended to, and the next tokens are overlooked.",
        "subtract: scores − slope · distance, where the distance is 0 or more",
        "the distance taken as query − key and added",
        ({"bias": "subtracted"},),
        symptom="The map is bright on the left, at the oldest tokens, and dark at the diagonal.",
        why="The bias has to make far keys less likely: minus slope times a distance of 0 or more.",
        test="alibi-agrees-with-its-formula",
        plants={"alibi": (("scores - self.slopes", "scores + self.slopes"),)},
    ),
    Mistake(
        "alibi-slopes",
        "with a bias by distance whose slopes are not those of ALiBi",
        "Heads look as far as other slopes let them; a model trained with ALiBi's gives noise.",
        "slopes 2^(−8/H), 2^(−16/H), … 2^(−8), one for each of H heads",
        "the ratio multiplied instead of raised to a power, or powers that begin at 0",
        symptom="None if you train from scratch. Loaded weights give a higher loss, the more so the "
        "longer the text.",
        why="ALiBi's slopes are not learned but fixed by a formula, and a trained model counts on them.",
        test="alibi-agrees-with-its-formula",
        plants={"alibi": (("-8.0 * (h + 1) / num_heads", "-8.0 * h / num_heads"),)},
    ),
    Mistake(
        "positions-cancel",
        "whose rotary positions have no effect: queries and keys of a head turn by one and the same angle",
        "Apart from the mask, order is invisible: a text and its words shuffled are the same to it.",
        "rotate (B, H, T, D) along T; before the transpose the tokens are on axis 1",
        "a rotation for (B, T, H, D) that is given (B, H, T, D), so that positions count the heads",
        symptom="The last token of a text gives the same output if the words before it are shuffled.",
        why="If queries and keys of one head are turned by the same angle whatever their position, the "
        "turn cancels in every dot product.",
        test="order-matters",
        plants=_rotary(
            _ROTATE, "        q, k = (rotate(t.transpose(1, 2), 0).transpose(1, 2) for t in (q, k))\n"
        ),
    ),
)
