"""`needle`: hits against dense attention, a trained model, Transformers, and wrong use."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import attention_map, causal, window
from regard.gpt import GPT, Config
from regard.gpt.tokens import bpe_tokenizer
from regard.heads import needle
from regard.heads.needle_texts import FILLER, NEEDLES
from regard.heads.retrieval import NeedleContext, _contexts, _count_hits
from tests.heads.made_heads import looking_at

SIZES = {"lengths": (120,), "depths": (0.2, 0.8)}


@pytest.fixture(scope="module")
def tokenizer():
    return bpe_tokenizer([*FILLER, *(part for x in NEEDLES for part in x)], 400)


def hits_by_rule(weights, context):
    """Hits, and the chance of a random visible key, of one head's dense weights (T, T)."""
    hits, chance = 0, 0.0
    for i, token in enumerate(context.answer):
        query = len(context.ids) - 1 + i
        key = int(weights[query].argmax())
        hits += key in context.needle and context.ids[key] == token
        visible = [j for j in range(len(weights)) if weights[query, j] > 0]
        chance += sum(j in context.needle and context.ids[j] == token for j in visible) / len(visible)
    return hits, chance


def context_of(ids, needle, answer):
    return NeedleContext(ids, needle, answer, 0)


@given(seed=st.integers(0, 10_000), mask=st.sampled_from([causal, causal & window(9)]))
def test_hits_are_those_of_dense_attention(seed, mask):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 6, (20,), generator=generator).tolist()
    context = context_of(ids, range(4, 12), ids[8:12])
    q, k = (torch.randn(1, 3, 23, 4, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    m = attention_map(q, k, mask=mask)
    counts = _count_hits(m, context)
    for head, weights in enumerate(m.to_dense()[0]):
        hits, chance = hits_by_rule(weights, context)
        assert float(counts[0, head]) == hits
        assert float(counts[1, head]) == pytest.approx(chance)


def test_a_head_must_find_the_token_and_not_only_the_needle():
    ids = [0, 9, 9, 1, 2, 3, 4, 5, 6, 9, 9, 1, 2]  # the needle is 1 2 3 4 5 6, asked by 1 2
    context = context_of(ids, range(3, 9), [3, 4, 5, 6])
    T = len(ids) + 3
    for shift, share in ((0, 1.0), (1, 0.0)):  # at the token itself, or beside it
        places = torch.zeros(T, dtype=torch.long)
        places[len(ids) - 1 :] = torch.tensor([5, 6, 7, 8]) - shift
        counts = _count_hits(looking_at(places), context)
        assert float(counts[0, 0]) == share * 4
        # A head that attends to some place in the needle is right by chance once in six.
        assert float(counts[2, 0]) == pytest.approx(4 / 6)


def test_induction_heads_of_the_included_model_are_its_retrieval_heads():
    model = GPT.from_pretrained("default")
    test = needle(model, lengths=(128,), depths=(0.3, 0.7))
    found = [(row.layer, row.head) for row in test.table.where(label="retrieval")]
    assert found
    score = test.table[found[0]].scores["retrieval"]
    assert score.low > max(0.2, 10 * score.null)
    assert test.contexts == 2 * len(NEEDLES)
    assert test.correct > 0.5
    assert f"{len(found)} of 24 heads are retrieval heads" in str(test)
    # It joins other scores.
    table = model_table(model).join(test.table)
    assert set(table[found[0]].labels) >= {"induction", "retrieval"}
    assert "retrieval" in table[0, 0].scores
    assert len(table) == 24


def model_table(model):
    import regard

    return regard.capture(model, text="The lamp is lit and the ships come home. " * 6).heads()


def small_gpt(tokenizer):
    torch.manual_seed(0)
    config = Config(vocab_size=400, context_length=256, num_layers=2, num_heads=4, num_kv_heads=2, d_model=32)
    model = GPT(config).eval()
    model.tokenizer = tokenizer
    return model


def test_transformers_models_against_their_eager_attention(tokenizer):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    eager = transformers.LlamaForCausalLM(config).eval()
    test = needle(eager, tokenizer, needles=NEEDLES[:3], **SIZES)
    totals, copied = torch.zeros(2, 4, 2, dtype=torch.float64), 0
    for context in _contexts(tokenizer, NEEDLES[:3], FILLER, (120,), (0.2, 0.8), seed=0):
        with torch.no_grad():
            whole = torch.tensor([context.ids + context.answer[:-1]])
            attentions = eager(whole, output_attentions=True).attentions
        copied += len(context.answer)
        for layer, weights in enumerate(attentions):
            for head in range(4):
                totals[layer, head] += torch.tensor(hits_by_rule(weights[0, head], context))
    for row in test.table:
        hits, chance = totals[row.layer, row.head].tolist()
        score = row.scores["retrieval"]
        assert score.value == pytest.approx(hits / copied)
        assert score.null == pytest.approx(chance / copied)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (9999,)}, "lengths: expected at most 256 tokens, the model's context, got 9999"),
        ({"lengths": (20,)}, r"lengths: expected at least \d+ tokens for the needle .*, got 20"),
        ({"lengths": 128}, r"lengths: expected several, as \(128,\), got 128"),
        ({"depths": 0.5}, r"depths: expected several, as \(0.5,\), got 0.5"),
        ({"depths": (1.5,)}, "depths: expected numbers from 0 to 1"),
        ({"needles": []}, "needles, lengths, depths: expected at least one of each"),
        ({"needles": [(" The key is", "")]}, r"needles: expected \(prompt, answer\)"),
        ({"filler": ""}, "filler: expected some text"),
    ],
)
def test_wrong_use_is_answered_in_a_sentence(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        needle(small_gpt(tokenizer), **(SIZES | options))
