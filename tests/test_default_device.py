"""A default device changes nothing: Regard's own tensors stand where those are that it was given.

The device is "meta", whose tensors hold no numbers: one that follows it by mistake cannot pass unseen.
"""

import pytest
import torch

import regard
from regard.gpt import GPT
from regard.heads import describe
from regard.show.saved.bundle import write

T = 40
MASKS = {
    "causal": lambda: regard.causal,
    "window": lambda: regard.causal & regard.window(8),
    "documents": lambda: regard.documents([0] * 10 + [1] * 30),
    "prefix": lambda: regard.prefix(5),
    "alibi": lambda: regard.causal & regard.alibi(4),
    "tensor": lambda: regard.tensor_mask(torch.ones(T, T, dtype=torch.bool, device="cpu").tril()),
    "rule": lambda: regard.rule(lambda b, h, i, j: (i - j) % 3 == 0),
}


@pytest.fixture
def elsewhere():
    """Sets a default device, until the end of the test."""
    before = torch.get_default_device()
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None if before.type == "cpu" else before)


def of_map(mask):
    """What a map answers, and the output under the mask."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, T, 16, generator=generator, device="cpu") for _ in range(3))
    m = regard.attention_map(q, k, mask=mask)
    output = regard.attend(q, k, v, mask=mask)
    assert regard.certify(m, v, output).certified
    parts = [
        output,
        m @ v,
        m.to_dense(),
        m.pool(8, 8),
        m.pool([0, 3, T], 5, "max"),
        m.entropy(),
        m.received(),
    ]
    parts += [m.topk(3).values, m.diagonal(-1), m.mass(regard.window(4)), m[0, 1, 3], m[0, 1, 2:9:3, 5]]
    return [*parts, mask.tile(range(4), slice(2, 9), (T, T))]


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_maps(name, elsewhere):
    expected = of_map(MASKS[name]())
    elsewhere()
    for got, before in zip(of_map(MASKS[name]()), expected, strict=True):
        assert got.device.type == "cpu"
        assert torch.equal(got, before)
    assert repr(MASKS[name]())


def scores(seen):
    return [(row.sentence, *row.labels) for row in describe(seen.maps, seen.ids)]


def test_captures_scores_files_and_pages(elsewhere, tmp_path):
    model = GPT.from_pretrained("default")
    text = "The sea was calm, and the sea was deep. The sea was"
    expected = scores(regard.capture(model, text=text))
    elsewhere()
    seen = regard.capture(model, text=text, predictions=True)
    assert seen.certificate.certified
    assert scores(seen) == expected
    seen.save(tmp_path / "folder")
    back = regard.load(tmp_path / "folder")
    assert torch.equal(back[2, 1].to_dense(), seen[2, 1].to_dense())
    assert write(back, tmp_path / "page.html").stat().st_size > 100_000
    assert model.generate("The sea", max_new_tokens=4).startswith("The sea")
