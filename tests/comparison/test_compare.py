"""Two captures compared: tokens aligned by ids, distances and differences equal to the dense matrices'."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.comparison.alignment import align
from regard.recorder import Capture
from tests.captures import layer_of
from tests.recorder.text_models import TEXTS, made, words

ids = st.lists(st.integers(0, 4), max_size=9)


@given(a=ids, b=ids)
def test_an_alignment_pairs_equal_tokens_in_order(a: list[int], b: list[int]) -> None:
    found = align(a, b)
    pairs = list(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))
    assert len(align(a, a).a) == len(a)
    assert bool(pairs) == bool({*a} & {*b})


def dense_distance(A: Tensor, B: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Total variation distances of shared rows (H, n), with a key of its own for each token."""
    partner = dict(pairs)
    rows = []
    for i, j in pairs:
        other = set(range(B.shape[-1])) - {partner[k] for k in partner}
        total = B[:, j, sorted(other)].sum(-1)
        for k in range(A.shape[-1]):
            total = total + (A[:, i, k] - (B[:, j, partner[k]] if k in partner else 0.0)).abs()
        rows.append(total / 2)
    return torch.stack(rows, -1)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "GPT"])
def test_two_prompts(name: str) -> None:
    model = made(name)
    texts = "the cat sat on a mat", "the mat sat on it"
    a, b = (regard.capture(model, text=text, tokenizer=words()) for text in texts)
    found = regard.compare(a, b)
    pairs = [(0, 0), (2, 2), (3, 3)]  # the sat on
    assert [token.text for token in found.only_a] == ["cat", "a", "mat"]
    assert [token.text for token in found.only_b] == ["mat", "it"]
    for layer in (0, 1):
        A, B = (seen[layer].to_dense()[0].double() for seen in (a, b))
        expected = dense_distance(A, B, pairs)
        for head in range(4):
            distance = found.distances[found.places.index((layer, head))]
            torch.testing.assert_close(distance, expected[head], atol=1e-6, rtol=0)
            shared = [i for i, _ in pairs]
            torch.testing.assert_close(
                found[layer, head].to_dense(),
                (A[head][shared][:, shared] - B[head][shared][:, shared]).float(),
                atol=1e-6,
                rtol=0,
            )
    assert [head.distance for head in found.heads] == sorted(
        (head.distance for head in found.heads), reverse=True
    )
    assert len(found.to_pandas()) == 8
    assert "only in a: 'cat' 'a' 'mat'" in str(found)


def test_two_checkpoints_on_one_text() -> None:
    model, other = made("GPT"), made("GPT")
    with torch.no_grad():
        for parameter in other.blocks[1].attention.parameters():
            parameter.mul_(1.5)
    a, b = (regard.capture(x, text=TEXTS[0], tokenizer=words()) for x in (model, other))
    found = regard.compare(a, b)
    assert found.only_a == found.only_b == []
    expected = (a[1].to_dense() - b[1].to_dense()).double().abs().sum(-1).mean(-1)[0] / 2
    by_head = {(head.layer, head.head): head.distance for head in found.heads}
    assert by_head[0, 0] == pytest.approx(0, abs=1e-7)
    for head in range(4):
        assert by_head[1, head] == pytest.approx(float(expected[head]), abs=1e-6)
    assert max(by_head.values()) > 0.01


def test_two_texts_of_one_padded_batch() -> None:
    model = made("Llama")
    together = regard.capture(model, text=TEXTS, tokenizer=words())
    alone = [regard.capture(model, text=text, tokenizer=words()) for text in TEXTS]
    one, other = regard.compare(together, together, batch=(0, 2)), regard.compare(alone[0], alone[2])
    torch.testing.assert_close(torch.stack(one.distances), torch.stack(other.distances), atol=1e-6, rtol=0)
    assert one.only_b == other.only_b
    torch.testing.assert_close(one[1, 2].to_dense(), other[1, 2].to_dense(), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="batch: expected which of the 3 texts"):
        regard.compare(together, alone[0])
    with pytest.raises(ValueError, match="batch: expected one number, or one for each capture"):
        regard.compare(together, together, batch=(0, 1, 2))  # type: ignore[arg-type]


def test_only_shared_layers_and_heads_are_compared() -> None:
    model = made("Llama")
    options: dict[str, Any] = {"text": TEXTS[0], "tokenizer": words()}
    whole = regard.capture(model, **options)
    part = regard.capture(model, layers=[1], heads=[3, 1], **options)
    found = regard.compare(whole, part)
    assert found.places == ((1, 1), (1, 3))
    assert found.left_out == (0,)
    assert all(head.distance < 1e-7 for head in found.heads)
    with pytest.raises(ValueError, match="layers and heads that both captures have, got layers 0 and 1"):
        regard.compare(regard.capture(model, layers=[0], **options), part)
    with pytest.raises(KeyError, match="expected a layer and a head that both captures have"):
        found[0, 0]


def test_what_cannot_be_compared_is_refused() -> None:
    model = made("Llama")
    seen = regard.capture(model, text="the cat sat", tokenizer=words())
    other = words()
    other.model = type(other.model)({"cat": 1, "?": 0, "the": 2, "sat": 3}, unk_token="?")
    with pytest.raises(
        ValueError, match="expected a capture with the same tokenizer, but token 1 is 'the' in one"
    ):
        regard.compare(seen, regard.capture(model, text="the cat sat", tokenizer=other))
    with pytest.raises(ValueError, match="no token is in both: are they of another tokenizer"):
        regard.compare(seen, regard.capture(model, text="on a mat", tokenizer=words()))
    with pytest.raises(ValueError, match=r"seen_b: expected a capture, as regard\.capture returns, got str"):
        regard.compare(seen, "the cat")  # type: ignore[arg-type]
    q = torch.randn(1, 2, 5, 4)
    unknown = [Capture([layer_of(regard.attention_map(q[:, :, :n], q[:, :, :n]))]) for n in (5, 4)]
    assert regard.compare(unknown[0], unknown[0]).heads[0].distance == 0
    with pytest.raises(ValueError, match=r"as many queries.*since the tokens are not known, got 5 and 4"):
        regard.compare(*unknown)
