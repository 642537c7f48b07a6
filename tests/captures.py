"""Captures made of random numbers, for tests of what shows them."""

from dataclasses import replace

import torch

import regard
from regard.heads import SurveyResult, describe
from regard.heads.corpus_survey.examples import collect_examples
from regard.heads.tables.description import LayerHeads
from regard.recorder import Capture, Evidence, Layer
from regard.recorder.tokens_of_maps.predictions import predictions_from

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<b>&amp;",
    "\u2028",
    "${1}",
    "'\"`",
    "\x00",
    "🦉",
    " the",
]


def captured(
    T=40,
    *,
    layers=2,
    heads=4,
    kv_heads=2,
    width=8,
    tokens=None,
    model="random",
    values=True,
    mask=regard.causal,
    boundary=None,
    seed=0,
):
    """A capture of one text whose heads look at what is near, and at the first token."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for number in range(layers):
        q, k, v = (torch.randn(1, n, T, width, generator=draw) for n in (heads, kv_heads, kv_heads))
        q[..., 0], k[..., 0, 0] = 3.0, 2.0  # a sink
        map = regard.attention_map(q, k, mask=mask)
        evidence = Evidence(1e-7, 1e-6, 1e-7, T, T, str(mask), map.scale)
        kept = v if values else None
        found.append(Layer(number, f"h.{number}.attn", "", map, evidence, tuple(range(heads)), kept))
    ids = torch.arange(T)[None] % 13
    return Capture(found, model, ids, [tokens or [f" t{i % 13}" for i in range(T)]], None, boundary)


def hybrid(T=24, *, heads=4, width=8, seed=0):
    """A capture of three linear layers and one of softmax attention.

    They have a gated delta rule, one whose channels decay apart, and a decay with a skip, as in Mamba-2.
    """
    draw = torch.Generator().manual_seed(seed)
    seen = captured(T, layers=4, heads=heads, kv_heads=2, width=width, seed=seed)
    kinds = ({"delta_rule": True, "qk_norm": 1e-6}, {"delta_rule": True}, {"skip": torch.ones(heads)})
    for number, options in enumerate(kinds):
        q, k = (torch.randn(1, 2, T, width, generator=draw) / width**0.5 for _ in range(2))
        shape = (1, heads, T, width) if number == 1 else (1, heads, T)
        m = regard.maps.linear_attention_map(
            q,
            k,
            decay=-0.2 * torch.rand(shape, generator=draw),
            beta=torch.rand(1, heads, T, generator=draw),
            scale=width**-0.5,
            **options,
        )
        evidence = Evidence(0.0, 1.0, 0.0, T, T, "causal", m.scale, recurrence=m.kind)
        seen.layers[number] = Layer(number, f"h.{number}.mixer", "", m, evidence, tuple(range(heads)))
    return seen


def predicted(seen, *, words=None, vocabulary=40, seed=1):
    """The same capture with predictions from random logits; the words are t0, t1, … unless they are given."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*seen.ids.shape, vocabulary, generator=draw)
    names = words or [f" t{n}" for n in range(vocabulary)]
    seen.predictions = predictions_from(
        logits, seen.ids, decode=lambda ids: [names[n % len(names)] for n in ids.tolist()]
    )
    return seen


def layer_of(m, number=0, stack=""):
    """A layer with this map, certified of nothing."""
    evidence = Evidence(0.0, 1.0, 0.0, m.matrix[2], m.matrix[2], str(m.mask), m.scale)
    return Layer(number, f"h.{number}", stack, m, evidence, range(m.matrix[1]))


def surveyed(seen):
    """A survey whose corpus is the text of a capture; its tokens have hostile texts."""
    maps = [layer.map for layer in seen.layers]
    table = replace(describe([(maps, seen.ids)]), texts=1, tokens=seen.ids.numel(), model=seen.model)
    examples = [collect_examples(m, seen.ids, 0, 2) for m in maps]
    layers = [LayerHeads(str(layer.key), list(layer.heads), list(layer.heads)) for layer in seen.layers]
    words = {token: f"{HOSTILE[token % len(HOSTILE)]}{token}" for token in seen.ids.unique().tolist()}
    return SurveyResult(table, layers, examples, words)
