"""`effect` and `importance`: against weights set to zero by hand, and beside random edits."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import regard
from regard.gpt import GPT, Config
from regard.heads import repeated
from regard.interventions.edit import CallPlace
from regard.interventions.effects import Effect, mean_interval, prediction_band
from regard.interventions.metrics import select_tokens
from regard.interventions.random_edits import ModelHeads, RandomEdgeBlock, draw_edits
from regard.recorder.attention_call import AttentionCall
from tests.interventions.references import build, inputs_of


def small(layers=2):
    config = Config(
        vocab_size=40, context_length=32, num_layers=layers, num_heads=4, num_kv_heads=2, d_model=32
    )
    model = GPT(config).eval()
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn(weight.shape, generator=generator)
    return model


def texts(n=3, T=20):
    return torch.randint(0, 40, (n, T), generator=torch.Generator().manual_seed(5))


def without_head(model, layer, head):
    """A copy of a model whose output projection does not read a head."""
    cut = copy.deepcopy(model)
    D = model.config.head_dim
    cut.blocks[layer].attention.out.weight.data[:, head * D : (head + 1) * D] = 0
    return cut


@torch.no_grad()
def loss(model, ids, **options):
    logits = model(ids[None], **options)[0]
    return float(cross_entropy(logits[:-1].double(), ids[1:]))


def test_the_effect_of_a_head_is_that_of_its_weights_set_to_zero():
    model, ids = small(), texts()
    effect = regard.effect(model, ids, regard.ablate(1, 2))
    changes = [loss(without_head(model, 1, 2), row) - loss(model, row) for row in ids]
    assert effect.per_text == pytest.approx(changes, abs=1e-5)
    assert effect.value == pytest.approx(sum(changes) / 3, abs=1e-5)
    assert effect.plain == pytest.approx(sum(loss(model, row) for row in ids) / 3, abs=1e-5)
    others = sorted(
        sum(loss(without_head(model, 1, h), row) - loss(model, row) for row in ids) / 3 for h in (0, 1, 3)
    )
    assert sorted(effect.baseline) == pytest.approx(others, abs=1e-5)  # every other head of the layer, once
    assert effect.cut_mass is None
    assert effect.edits == ("head 1.2 set to zero",)
    assert (effect.low, effect.high) == pytest.approx(mean_interval(changes), abs=1e-4)
    assert (effect.baseline_low, effect.baseline_high) == pytest.approx(prediction_band(others), abs=1e-4)
    assert effect.beyond_baseline == (effect.value > effect.baseline_high)
    assert effect.weak
    assert "(3 draws: weak)" in str(effect)
    assert "head 1.2 set to zero" in str(effect)


def test_blocked_edges_are_a_narrower_mask():
    model, ids = small(layers=1), texts()
    effect = regard.effect(model, ids, regard.block(0, edges=regard.prefix(1)), draws=3)
    changes = [loss(model, row, mask=~regard.prefix(1)) - loss(model, row) for row in ids]
    assert effect.per_text == pytest.approx(changes, abs=1e-5)
    assert len(effect.baseline) == 3
    mass = torch.stack(
        [m.to_dense()[..., 0].mean() for m in (model.maps(row[None])[0] for row in ids)]
    ).mean()
    assert effect.cut_mass.edit == pytest.approx(float(mass), abs=1e-5)
    assert 0 < effect.cut_mass.random < 1


def test_a_metric_of_your_own_and_the_difference_of_two_logits():
    model, ids = small(), texts()
    edit = regard.ablate(1, 2)
    cut = without_head(model, 1, 2)
    with torch.no_grad():
        before, after = (m(ids[:1])[0, -1] for m in (model, cut))
    effect = regard.effect(model, ids[:1], edit, "logit_diff", tokens=(3, 9), draws=0)
    assert effect.value == pytest.approx(float((after[3] - after[9]) - (before[3] - before[9])), abs=1e-4)
    assert math.isnan(effect.low)
    assert math.isnan(effect.baseline_low)
    assert not effect.beyond_baseline
    assert "no random edits" in str(effect)

    def third_logit(output, tokens):
        assert tokens.shape == (20,)
        return float(output[0, -1, 3])

    own = regard.effect(model, ids[:1], edit, third_logit, draws=0)
    assert own.value == pytest.approx(float(after[3] - before[3]), abs=1e-4)
    assert own.metric == "third_logit"


def test_which_tokens_count():
    ids = torch.tensor([5, 7, 5, 9, 7])
    assert select_tokens(ids, "repeated").tolist() == [False, False, True, False, True]
    assert select_tokens(ids, "first").tolist() == [True, True, False, True, False]
    assert select_tokens(ids, lambda x: x == 9).tolist() == [False, False, False, True, False]
    model = small()
    rows = texts()
    everything = torch.ones(20, dtype=torch.bool)
    edit = regard.ablate(0, 1)
    assert (
        regard.effect(model, rows, edit, positions=everything, draws=0).value
        == regard.effect(model, rows, edit, draws=0).value
    )


def test_random_heads_are_others_of_the_same_layers():
    model = ModelHeads({"0": 4, "1": 4}, {"blocks.1": "1"})
    drawn = draw_edits([regard.ablate(heads=[(0, 1), (0, 2), (1, 3)])], model, 50, seed=0)
    pairs = [model.pairs(edits[0].selection) for edits in drawn]
    assert sorted(map(sorted, pairs)) == sorted([[("0", 0), ("0", 3), ("1", h)] for h in (0, 1, 2)])
    # A whole layer has no others in it, so that the heads of other layers take their place.
    (other,) = draw_edits([regard.ablate("blocks.1")], model, 50, seed=0)
    assert model.pairs(other[0].selection) == [("0", h) for h in range(4)]
    assert draw_edits([regard.ablate(0), regard.ablate(1)], model, 50, seed=0) == []
    # Two heads of four leave one other set, which is no band.
    assert len(draw_edits([regard.ablate(0, (0, 2))], model, 50, seed=0)) == 6 * 5 // 2
    many = ModelHeads({"0": 32}, {})
    some = draw_edits([regard.ablate(0, (0, 1, 2))], many, 20, seed=0)
    assert len({e[0].selection for e in some}) == 20
    assert all(not {0, 1, 2} & {h for _, h in many.pairs(e[0].selection)} for e in some)


def random_call(T=24):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, n, T, 8, generator=generator, dtype=torch.float64) for n in (4, 2, 2))
    output, lse = regard.attend(q, k, v, mask=regard.causal, return_lse=True)
    return AttentionCall(q, k, v, output, lse, regard.causal, 8**-0.5)


def test_random_edges_have_as_much_attention_on_them_and_are_cut_before_the_softmax():
    call, place = random_call(), CallPlace(0, 0, 0, 24, 24)
    dense = call.attention_map().to_dense()
    blocked = regard.rule(lambda b, h, q, k: (q - k) % 5 == 2)
    wanted = (dense * blocked.to_dense(24)).sum(-1)[:, [1, 3]].mean()
    masses = []
    for seed in range(60):
        edit = RandomEdgeBlock(
            regard.ablate(0, (1, 3)).selection, regard.block(0, (1, 3), edges=blocked), seed
        )
        edited = edit.apply(call, [1, 3], place)
        lost = (dense[0] > 0) & (edited.attention_map().to_dense()[0] == 0)  # (H, T, T)
        assert not lost[[0, 2]].any()
        assert not (lost[1] & blocked.to_dense(24).squeeze()).any()  # none of the edges that it stands for
        ((own, drawn),) = edit.masses
        assert own == pytest.approx(float(wanted))
        assert drawn == pytest.approx(float((dense[0] * lost)[[1, 3]].sum(-1).mean()))
        masses.append(drawn)
        # The output is that of softmax over the edges that are left.
        scores = (call.q @ call.k.repeat_interleave(2, 1).mT) * call.scale
        left = (dense > 0) & ~lost
        weights = scores.masked_fill(~left, -torch.inf).softmax(-1).nan_to_num(0.0)
        torch.testing.assert_close(edited.output, weights @ call.v.repeat_interleave(2, 1))
    low, high = mean_interval(masses)
    assert low <= float(wanted) * 1.02
    assert high >= float(wanted) * 0.9


def test_random_edges_that_match_too_little_attention_are_no_equal_baseline():
    model, ids = small(), texts()
    everything = regard.effect(model, ids, regard.block(1, 2, edges=regard.causal), draws=3)
    assert everything.cut_mass == pytest.approx((1.0, 0.0))
    assert everything.baseline == []  # there is no other edge to cut
    assert not everything.beyond_baseline
    assert str(everything).endswith("no random edits to compare with")
    most = regard.effect(model, ids, regard.block(1, 2, edges=regard.causal & ~regard.prefix(1)), draws=3)
    share = most.cut_mass.random / most.cut_mass.edit
    assert share < 0.75
    assert f"which cut only {share:.0%} as much attention" in str(most)
    edit = regard.block(1, 2, edges=regard.rule(lambda b, h, q, k: q - k == 5))
    few = regard.effect(model, ids, edit, draws=6)
    assert "which cut only" not in str(few)


def test_an_edit_that_does_less_than_random_ones_is_not_beyond_them():
    def of(value, baseline, harm):
        band = prediction_band(baseline)
        return Effect(value, math.nan, math.nan, [value], 3.0, baseline, *band, None, ("x",), "loss", harm)

    strong = [0.2 + 0.001 * n for n in range(20)]
    for value, harm, expected in [
        (0.0001, 1, False),
        (-0.5, 1, False),
        (0.5, 1, True),
        (0.5, -1, False),
        (-0.5, -1, True),
        (0.0001, 0, False),
        (0.5, 0, True),
        (-0.5, 0, True),
    ]:
        assert of(value, strong, harm).beyond_baseline is expected, (value, harm)
    assert "not more than the band of 20 random edits, " in str(of(-0.5, strong, 1))
    assert "(3 draws: weak)" in str(of(0.5, strong[:3], 1))


def test_importance_is_the_effect_of_every_head_and_joins_a_table():
    model, ids = small(), texts()
    calls = []
    table = regard.importance(model, ids, report=lambda *x: calls.append(x))
    assert calls[-1] == (27, 27)  # three texts, eight heads and none
    assert [(row.layer, row.head, row.kv_head) for row in table][:4] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 1),
        (0, 3, 1),
    ]
    effect = regard.effect(model, ids, regard.ablate(1, 2), draws=0)
    score = table[1, 2].scores["importance"]
    assert score.value == effect.value
    # The interval holds for all eight heads together.
    assert (score.low, score.high) == mean_interval(effect.per_text, 1 - 0.05 / 8)
    assert score.low < effect.low < effect.high < score.high
    scores = regard.capture(model, inputs={"input_ids": ids}).heads().join(table)
    lines = str(scores).splitlines()
    assert "importance" in lines[0]
    assert f"{score.value:+.3f}" in str(scores)
    assert max(map(len, lines)) <= 80
    assert scores.columns()["importance"][6] == effect.value
    means = regard.interventions.mean_outputs(model, ids)
    by_mean = regard.importance(model, ids, by=means)[1, 2].scores["importance"].value
    assert by_mean == regard.effect(model, ids, regard.ablate(1, 2, by=means), draws=0).value


def test_a_model_of_transformers():
    llama, ids = build("llama"), inputs_of("llama")["input_ids"]
    effect = regard.effect(llama, ids, regard.ablate(0, 1), draws=0)
    cut = copy.deepcopy(llama)
    cut.model.layers[0].self_attn.o_proj.weight.data[:, 8:16] = 0
    with torch.no_grad():
        losses = [[float(m(row[None], labels=row[None]).loss) for row in ids] for m in (llama, cut)]
    assert effect.per_text == pytest.approx([b - a for a, b in zip(*losses, strict=True)], abs=1e-4)


@pytest.fixture(scope="module")
def included():
    return GPT.from_pretrained("default")


def test_the_induction_heads_serve_repeated_tokens_and_no_others(included):
    """Cutting them raises the loss on repeats beyond the band of random heads; first occurrences stay."""
    ids = repeated(included.config.vocab_size, start=0, tokens=20, times=3, draws=5)
    cut = regard.ablate(heads=[(4, 0), (4, 2), (5, 0)])
    on_repeats = regard.effect(included, ids, cut, positions="repeated")
    assert on_repeats.beyond_baseline
    assert on_repeats.low > max(1.0, on_repeats.baseline_high)
    on_first = regard.effect(included, ids, cut, positions="first")
    assert abs(on_first.value) < 0.1 * on_repeats.value


def test_strings_need_a_tokenizer_and_logits_texts_of_one_token(included):
    text = "The lamp is lit. The lamp is"
    effect = regard.effect(
        included, text, regard.ablate(5, 3), "logit_diff", tokens=(" lit", " made"), draws=0
    )
    tokenizer = included.tokenizer
    a, b = (tokenizer.encode(x, add_special_tokens=False).ids[0] for x in (" lit", " made"))
    by_ids = regard.effect(included, text, regard.ablate(5, 3), "logit_diff", tokens=(a, b), draws=0)
    assert effect.value == by_ids.value < 0
    with pytest.raises(ValueError, match="expected a text of one token, but ' lighthouse keeper' has"):
        regard.effect(included, text, regard.ablate(5, 3), "logit_diff", tokens=(" lighthouse keeper", a))


WRONG = [
    ([], {}, "edits: expected at least one"),
    ("5.3", {}, "edits: expected what regard.ablate, regard.block or regard.patch returns"),
    (regard.ablate(0, 0), {"metric": "accuracy"}, 'metric: expected "loss", "logit_diff" or a function'),
    (regard.ablate(0, 0), {"metric": "logit_diff"}, "tokens: expected two tokens .*, got none"),
    (regard.ablate(0, 0), {"tokens": (1, 2)}, 'tokens: expected only with metric="logit_diff"'),
    (regard.ablate(0, 0), {"metric": "logit_diff", "tokens": (1,)}, r"expected two tokens \(a, b\), got"),
    (
        regard.ablate(0, 0),
        {"metric": lambda o, i: 1.0, "positions": "first"},
        "positions: expected beside",
    ),
    (regard.ablate(0, 0), {"positions": "last"}, 'positions: expected "repeated", "first", a mask'),
    (regard.ablate(0, 0), {"positions": torch.ones(5)}, r"positions: expected booleans \(20,\)"),
    (
        regard.ablate(0, 0),
        {"positions": lambda x: x < 0},
        "positions: expected some token after the first",
    ),
    (regard.ablate(0, 0), {"draws": -1}, "draws: expected"),
    (regard.ablate(0, 0), {"metric": lambda o, i: math.nan}, "metric: expected a finite number"),
    (regard.ablate(0, 0), {"metric": "logit_diff", "tokens": (1, -3)}, "expected ids from 0"),
    (regard.ablate(0, 0), {"metric": lambda o, i: o}, "returns one number"),
    (regard.ablate(0, 0), {"positions": [1, 2]}, "expected booleans"),
    (regard.ablate(0, 0), {"texts": texts(T=1)}, "expected at least two tokens, the second to predict"),
]


def test_wrong_use_is_answered_in_a_sentence():
    model = small()
    for edits, options, message in WRONG:
        with pytest.raises(ValueError, match=message):
            regard.effect(model, **{"texts": texts(), "edits": edits} | options)


def test_a_model_without_logits_is_refused():
    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, input_ids):
            return (self.inner.states(input_ids),)

    with pytest.raises(ValueError, match=r"model: expected logits \(1, 20, V\) of the next token, got tuple"):
        regard.effect(States(), texts(), regard.ablate(0, 0))
    with pytest.raises(ValueError, match="texts: expected at least one text"):
        regard.effect(small(), [], regard.ablate(0, 0))


def test_the_loss_of_a_model_that_sees_what_it_would_predict_is_refused():
    model, inputs = build("bert"), inputs_of("bert", batch=1)
    with pytest.raises(ValueError, match="expected a causal language model for the loss"):
        regard.effect(model, [inputs], regard.ablate(0, 1), draws=0)
