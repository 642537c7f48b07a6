"""Ways in which a certified map could be wrong: each of them was one once."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import attend
from regard.layers import Attention, KVCache


class Calls(nn.Module):
    """A module that does what a function says with its queries, keys and values."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def by_attend(q, k, v, mask=None):
    return attend(q, k, v, mask=mask)


def by_sdpa(q, k, v, mask=None):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_hand(q, k, v, mask=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


WAYS = {"attend": by_attend, "SDPA": by_sdpa, "by hand": by_hand}


def draw(T=72):
    return [torch.randn(1, 2, T, 8) for _ in range(3)]


def weights_of(q, k, mask):
    scores = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", ["one row", "one edge", "alone", "both ways"])
def test_a_chunk_with_an_odd_row_is_joined_as_it_is(way, change):
    q, k, v = draw()
    mask = torch.ones(72, 72, dtype=torch.bool).tril()
    if change == "one row":
        mask[45, :20] = False  # one of 64 new rows
    elif change == "one edge":
        mask[45, 7] = False
    elif change == "alone":
        mask[20:68] = torch.eye(72, dtype=torch.bool)[20:68]
    else:
        mask[20:60, 8:] = True
    cache = [[], []]

    def step(q, k, v, mask):
        for kept, new in zip(cache, (k, v), strict=True):
            kept.append(new)
        keys, values = (torch.cat(kept, 2) for kept in cache)
        return WAYS[way](q, keys, values, mask)

    model = nn.Sequential(Calls(step))[0]
    with torch.no_grad(), regard.capture(model) as seen:
        model(q[:, :, :8], k[:, :, :8], v[:, :, :8], mask[:8, :8])
        model(q[:, :, 8:], k[:, :, 8:], v[:, :, 8:], mask[8:])
    assert seen.certificate.certified
    assert (seen[0].to_dense().double() - weights_of(q, k, mask)).abs().max() < 1e-5


def test_cut_edges_are_shown_in_chunks_too():
    model, x = nn.Sequential(Attention(16, 2, mask=regard.causal)), torch.randn(1, 72, 16)
    cuts = regard.block(0, edges=([45], range(20)))
    maps = []
    for edges in ([0, 72], [0, 8, 72]):
        cache = KVCache(72)
        with torch.no_grad(), regard.intervene(model, cuts), regard.capture(model) as seen:
            for start, stop in itertools.pairwise(edges):
                model[0](x[:, start:stop], cache=cache)
        maps.append(seen[0].to_dense())
    assert (maps[0][..., 45, :20] == 0).all()
    assert torch.allclose(*maps, atol=1e-5)


@pytest.mark.parametrize("where", ["everywhere", "one query", "one key"])
def test_nan_is_not_a_row_without_visible_keys(where):
    q, k, v = draw(12)
    if where == "one key":
        k[:, :, 3] = torch.nan
    else:
        q[:, :, slice(None) if where == "everywhere" else 3] = torch.nan
    seen = regard.capture(Calls(by_hand), inputs=(q, k, v))
    assert not seen.certificate.certified
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    mask[5] = False  # whose weights are NaN, as it sees no key
    empty = regard.capture(Calls(by_hand), inputs=(*draw(12), mask))
    assert empty.certificate.certified


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_mask_that_is_written_to_between_two_layers_is_read_again(mode):
    q, k, v = draw(30)
    with mode():
        mask = torch.rand(30, 30) < 0.5
        mask.fill_diagonal_(True)

        def write(q, k, v):
            output = by_sdpa(q, k, v, mask)
            mask[7] = mask[7].flip(-1)  # as many keys are hidden as before
            return by_sdpa(q, output, v, mask) + output

        before = mask.clone()
        seen = regard.capture(Calls(write), inputs=(q, k, v))
    assert seen.certificate.certified
    assert [torch.equal(m.to_dense()[0, 0] > 0, x) for m, x in zip(seen, (before, mask), strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("what", ["mask", "sinks"])
def test_a_second_call_after_a_write_is_a_layer_of_its_own(what):
    table, sinks = torch.ones(12, 12, dtype=torch.bool).tril(), torch.zeros(2)
    mask = regard.tensor_mask(table)

    def twice(q, k, v):
        first = attend(q, k, v, mask=mask, sinks=sinks)
        if what == "mask":
            table.fill_(True)
        else:
            sinks.add_(3)
        return first + attend(q, k, v, mask=mask, sinks=sinks)

    seen = regard.capture(Calls(twice), inputs=tuple(draw(12)))
    assert len(seen.layers) == 2
    assert seen.certificate.certified


FIRST, OTHERS = (slice(None), slice(3)), (slice(1), slice(3, None))


def test_other_heads_beside_some_are_a_layer_of_their_own():
    def parts(q, k, v):
        return by_sdpa(q[:, :, :3], k[:, :, :3], v[:, :, :3]), by_sdpa(
            q[:, :1, 3:], k[:, :1, 3:], v[:, :1, 3:]
        )

    seen = regard.capture(Calls(parts), inputs=tuple(draw(6)))
    assert [tuple(m.shape) for m in seen] == [(1, 2, 3, 3), (1, 1, 3, 3)]


class Narrow(Attention):
    """A layer whose `forward` takes fewer arguments than the one that it overrides."""

    def forward(self, x):
        return super().forward(x)


def test_a_layer_may_take_fewer_arguments():
    model, x = nn.Sequential(Narrow(16, 2, mask=regard.causal)), torch.randn(1, 9, 16)
    assert regard.capture(model, inputs=x).certificate.certified
