"""Mistakes of the roles: queries, keys, values and the output projection."""

from regard.checker.mistakes.mistake import Mistake

_HEAD = "        q, k, v = self.query(x), self.key(x), self.value(x)\n"
_LAYER = "        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)\n"
_SIGNATURE = "    T, S, D = q.shape[-2], k.shape[-2], q.shape[-1]\n"


def _roles(q: str, k: str, v: str) -> dict[str, tuple[tuple[str, str], ...]]:
    head = {"q": "self.query(x)", "k": "self.key(x)", "v": "self.value(x)"}
    layer = {name: f"self.{name}_proj(x)" for name in "qkv"}
    return {
        "function": ((_SIGNATURE, f"    q, k, v = {q}, {k}, {v}\n" + _SIGNATURE),),
        "head": ((_HEAD, f"        q, k, v = {head[q]}, {head[k]}, {head[v]}\n"),),
        "layer": ((_LAYER, f"        q, k, v = {layer[q]}, {layer[k]}, {layer[v]}\n"),),
    }


# One of query, key and value in the place of another.
_SHARED = (
    (0, 0, 2),
    (1, 1, 2),
    (0, 1, 1),
    (0, 1, 0),
    (0, 0, 0),
    (1, 1, 1),
    (2, 2, 2),
    (0, 2, 2),
    (2, 1, 2),
    (0, 0, 1),
    (1, 1, 0),
    (2, 2, 0),
    (2, 2, 1),
)

ROLE_MISTAKES = (
    Mistake(
        "one-projection",
        "in which one projection is used for several roles",
        "If queries and keys share a projection the scores are symmetric: a token cannot attend to another "
        "without the other attending to it as much.",
        "give query, key and value a projection each, and use all three",
        "`self.key(x)` copied and not renamed",
        tuple({"roles": roles} for roles in _SHARED) + tuple({"layers": roles} for roles in _SHARED),
        symptom="It trains to a slightly worse loss, and more slowly. Without a mask the matrix of "
        "scores is symmetric.",
        why="With queries = keys the score of (i, j) is that of (j, i), and a token's score with itself "
        "is a square, never negative. An adjective cannot look at its noun without the noun looking "
        "back as much.",
        test="agrees-with-pytorch",
        plants=_roles("k", "k", "v") | {"head": _roles("q", "q", "q")["head"]},
    ),
    Mistake(
        "key-value-swapped",
        "with keys and values swapped",
        "Scores are computed with the values, and the output averages the keys; pretrained weights give "
        "noise.",
        "scores = q @ k.transpose(-2, -1), then out = weights @ v; in a fused projection, q, k, v in this "
        "order",
        "`k, v` returned as `v, k`, or a fused projection chunked in another order than it was trained",
        ({"roles": (0, 2, 1)}, {"layers": (0, 2, 1)}),
        symptom="None if you train from scratch: the two projections learn each other's task. Loaded "
        "weights give noise.",
        why="The names are yours alone. What makes a projection the key's is that its product goes into "
        "the scores, and weights that were trained for the other place do not fit.",
        test="agrees-with-pytorch",
        plants=_roles("q", "v", "k"),
    ),
    Mistake(
        "query-key-swapped",
        "with queries and keys swapped",
        "The scores are transposed: a token's key is used as its query.",
        "scores = q @ k.transpose(-2, -1), in which rows are queries",
        "`k @ q.transpose(-2, -1)`",
        ({"roles": (1, 0, 2)}, {"layers": (1, 0, 2)}),
        symptom="None if you train from scratch: the loss is the same. Loaded weights give maps that "
        "are transposed before the mask.",
        why="q kᵀ and k qᵀ are each other's transposes. With a causal mask the row of a token then "
        "holds what others wanted of it.",
        test="agrees-with-pytorch",
        plants=_roles("k", "q", "v"),
    ),
    Mistake(
        "roles-shuffled",
        "with queries, keys and values in another order",
        "No tensor is used in its own role; pretrained weights give noise.",
        "scores = q @ k.transpose(-2, -1), then out = weights @ v",
        "a projection chunked as (value, query, key)",
        ({"roles": (1, 2, 0)}, {"roles": (2, 0, 1)}, {"roles": (2, 1, 0)}),
        symptom="None if you train from scratch. Loaded weights give noise, most often after a fused "
        "projection was cut in the wrong order.",
        why="A fused projection holds three matrices in one, and only the code that made it knows their "
        "order.",
        test="agrees-with-pytorch",
        plants=_roles("v", "q", "k"),
    ),
    Mistake(
        "one-side-normalised",
        "with the norm on the queries only, on the keys only, or with the two exchanged",
        "The scores keep the length of one side, which the norms are there to remove.",
        "q, k = self.q_norm(q), self.k_norm(k)",
        "a second norm that is created and forgotten, or a line copied and half renamed",
        ({"normalised": "q"}, {"normalised": "k"}, {"normalised": "kq"}),
        symptom="Loaded weights give maps that are too sharp or too flat, and the norms do not keep the "
        "scores bounded.",
        why="A score is |q| · |k| · cos. Norms on both sides leave the angle and a learned factor; a "
        "norm on one side leaves the other length in.",
        test="lengths-do-not-matter-after-a-norm",
        mended={
            "layer": (
                (
                    "        q = q.view(B, T, H, D).transpose(1, 2)\n",
                    "        q = F.rms_norm(q.view(B, T, H, D), (D,)).transpose(1, 2)\n",
                ),
                (
                    "        k = k.view(B, T, G, D).transpose(1, 2)\n",
                    "        k = F.rms_norm(k.view(B, T, G, D), (D,)).transpose(1, 2)\n",
                ),
            )
        },
        plants={
            "layer": (
                (
                    "        q = q.view(B, T, H, D).transpose(1, 2)\n",
                    "        q = F.rms_norm(q.view(B, T, H, D), (D,)).transpose(1, 2)\n",
                ),
            )
        },
        unseen_because="A norm without an effect is found by its parameter, on which no output depends.",
    ),
    Mistake(
        "context-ignored",
        "in which keys or values come from the sequence although a context is given",
        "Cross-attention reads the decoder's own tokens; with a context of another length it fails.",
        "k, v = self.key(context), self.value(context)",
        "self-attention extended to cross-attention in one line and not in the other",
        symptom="The output hardly depends on the context: a translation is fluent and does not fit its "
        "source. With a context of another length it fails.",
        why="In cross-attention only the query comes from the sequence. A key from the context with a "
        "value from the sequence looks in one text and reads in the other.",
        test="only-the-context-is-read",
        mended={
            "layer": (
                (
                    "    def forward(self, x, cache=None):\n",
                    "    def forward(self, x, cache=None, context=None):\n",
                ),
                (
                    "        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)\n",
                    "        y = x if context is None else context\n"
                    "        q, k, v = self.q_proj(x), self.k_proj(y), self.v_proj(y)\n",
                ),
                ("        k = k.view(B, T, G, D)", "        k = k.view(B, -1, G, D)"),
                ("        v = v.view(B, T, G, D)", "        v = v.view(B, -1, G, D)"),
            )
        },
        plants={
            "layer": (
                (
                    "    def forward(self, x, cache=None):\n",
                    "    def forward(self, x, cache=None, context=None):\n",
                ),
                (
                    _LAYER,
                    "        y = x if context is None else context\n"
                    "        q, k, v = self.q_proj(x), self.k_proj(y), self.v_proj(x)\n",
                ),
                ("        k = k.view(B, T, G, D)", "        k = k.view(B, -1, G, D)"),
            )
        },
    ),
    Mistake(
        "output-projection-skipped",
        "without the output projection",
        "The heads are concatenated and never mixed, and W_o is never trained.",
        "return self.out_proj(out)",
        "a projection that is created in __init__ and forgotten in forward",
        ({"out": "skip"},),
        symptom="It trains, and the loss hardly tells. W_o has a gradient of None, and distributed "
        "training complains of unused parameters.",
        why="Without W_o, head h can write only to its own D channels of the residual stream.",
        test="every-parameter-gets-a-gradient",
        plants={"layer": (("        out = self.out_proj(out)\n", ""),)},
    ),
)
