"""Direct logit attribution against models that are frozen by hooks, and its sums family by family."""

import pytest
import torch
from torch import nn

import regard
from regard.gpt import GPT, Config
from tests.against.small_sizes import BERT, LLAMA
from tests.against.test_capture_families import DECODERS, build
from tests.recorder.contributions.frozen_model import FAMILIES, FrozenModel
from tests.sampling import combine, share

TOKEN, AGAINST = 5, 60


pytestmark = pytest.mark.usefixtures("quiet_transformers")


@pytest.mark.parametrize("family", FAMILIES)
def test_each_part_is_what_the_logit_loses_without_it_in_a_frozen_model(family):
    model = FAMILIES[family].build()
    frozen = FrozenModel(FAMILIES[family], model, FAMILIES[family].inputs())
    seen = regard.capture(model, inputs=frozen.inputs, contributions=True)
    attribution = seen.attribution(TOKEN, position=-3, batch=1)

    whole = frozen.logits_without({})

    def lost(name, term):
        return float((whole - frozen.logits_without({name: term}))[1, -3, TOKEN])

    written, some = frozen.written, share(range(model.config.num_attention_heads), 4, turn=1)
    heads = [[lost(name, frozen.head_term(name, h)) for h in some] for name in frozen.projections]
    mlps = [lost(name, written[name]) for name in frozen.mlps]
    first = frozen.first_block[0]
    found = attribution.heads[:, some]
    torch.testing.assert_close(found, torch.tensor(heads).double(), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(attribution.mlps, torch.tensor(mlps).double(), atol=2e-5, rtol=1e-4)
    assert attribution.embedding == pytest.approx(lost(first, frozen.read[first]), abs=2e-5)
    assert attribution.logit == pytest.approx(float(whole[1, -3, TOKEN]), abs=1e-5)
    assert attribution.adds_up, attribution
    assert attribution.heads.abs().max() > 1e-2


EXPERTS = ("mixtral", "qwen3 moe", "gpt-oss")  # by torch.grouped_mm, which refuses float64
LOW = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("family", "dtype"),
    combine([x for x in FAMILIES if x not in EXPERTS], [torch.float64, *LOW]) + combine(EXPERTS, LOW),
    ids=str,
)
def test_the_parts_add_up_and_the_model_computes_the_same_bits(family, dtype):
    model, inputs = FAMILIES[family].build(dtype), FAMILIES[family].inputs()
    with torch.no_grad(), regard.capture(model):
        plain = model(**inputs).logits
    with regard.capture(model, contributions=True) as seen:
        logits = model(**inputs).logits
    assert torch.equal(logits, plain)
    assert not logits.requires_grad
    for position, batch in ((-1, 0), (2, 1)):
        for against in (None, AGAINST):
            attribution = seen.attribution(TOKEN, against, position=position, batch=batch)
            parts = attribution.embedding + attribution.heads.sum() + attribution.mlps.sum()
            assert float(parts) + attribution.rest == pytest.approx(attribution.total)
            assert attribution.adds_up, attribution
            assert attribution.tolerance < (0.5 if dtype == torch.bfloat16 else 1e-5)
    # Outputs that are scaled or capped are named; the others are the model's own logits.
    own = float(plain[0, -1, TOKEN])
    attribution = seen.attribution(TOKEN)
    if family in ("gemma 2", "cohere", "granite"):
        assert any("before that" in note for note in attribution.notes)
    else:
        assert attribution.logit == pytest.approx(own, abs=0.05 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt-oss", "t5", "bert"])
def test_the_edges_of_a_head_sum_to_its_part(family):
    model, inputs = FAMILIES[family].build(), FAMILIES[family].inputs()
    seen = regard.capture(model, inputs=inputs, contributions=True)
    attribution = seen.attribution(TOKEN, AGAINST, position=4, batch=1)
    for i, layer in enumerate(attribution.layers):
        edges = attribution.edges(layer, 2)
        assert edges.shape == seen[layer].shape[2:]
        assert float(edges[4].double().sum()) == pytest.approx(float(attribution.heads[i, 2]), abs=1e-5)


def qwen3_next(*layer_types):
    """A small model whose layers are of these types, and a text."""
    torch.manual_seed(0)
    settings = LLAMA | {"head_dim": 16, "num_experts": 0, "layer_types": list(layer_types)}
    settings |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    settings |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    model = build("Qwen3NextForCausalLM", settings)
    return model, {"input_ids": torch.randint(3, 97, (1, 9))}


def test_the_edges_of_a_gated_head_sum_to_its_part():
    model, inputs = qwen3_next(*["full_attention"] * 3)
    seen = regard.capture(model, inputs=inputs, contributions=True)
    attribution = seen.attribution(TOKEN)
    assert attribution.adds_up
    assert seen.output_projection(1).is_gated
    edges = attribution.edges(1, 3)
    assert float(edges[-1].double().sum()) == pytest.approx(float(attribution.heads[1, 3]), abs=1e-5)
    with pytest.raises(ValueError, match="a gate multiplies what its heads add"):
        seen.value_weighted(1)


def test_a_hybrid_model_names_what_is_no_softmax_attention():
    model, inputs = qwen3_next("linear_attention", "full_attention", "linear_attention")
    with torch.no_grad():
        plain = model(**inputs).logits
    seen = regard.capture(model, inputs=inputs, contributions=True)
    attribution = seen.attribution(TOKEN)
    assert attribution.layers == [1]
    assert attribution.adds_up, attribution
    assert attribution.logit == pytest.approx(float(plain[0, -1, TOKEN]), abs=1e-5)
    assert any("linear_attn is no softmax attention" in note for note in attribution.notes)
    with pytest.raises(ValueError, match="rollout is defined for softmax attention only"):
        seen.rollout()


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_regards_own_gpt(norm):
    torch.manual_seed(0)
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), norm == "layer")
    sizes = {"vocab_size": 97, "context_length": 32, "num_layers": 2, "d_model": 32, "num_heads": 4}
    model = GPT(Config(**sizes, num_kv_heads=2, norm=norm, **biases)).eval()
    ids = torch.randint(97, (2, 12))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        logits = model(ids)
    seen = regard.capture(model, inputs=(ids,), contributions=True)
    attribution = seen.attribution(TOKEN, AGAINST, position=3, batch=1)
    assert attribution.adds_up
    assert attribution.logit == pytest.approx(float(logits[1, 3, TOKEN] - logits[1, 3, AGAINST]), abs=1e-5)
    assert attribution.heads.shape == (2, 4)
    assert attribution.blocks == ["blocks.0", "blocks.1"]


def test_the_included_model_says_mat_because_of_one_head():
    model = GPT.from_pretrained("default")
    text = "The cat sat on the mat. The cat sat on the"
    with torch.inference_mode():
        seen = regard.capture(model, text=text, contributions=True)
    attribution = seen.attribution(" mat")
    assert attribution.adds_up
    layer, head = divmod(int(attribution.heads.argmax()), attribution.heads.shape[1])
    edges = attribution.edges(layer, head)[-1]
    assert seen.tokens[0][int(edges.argmax())] == " mat"
    assert "logit of ' mat' at position" in str(attribution)
    with pytest.raises(ValueError, match="token: expected a text that is one token, got ' mat the'"):
        seen.attribution(" mat the")


def test_tokens_of_a_generation_are_attributed_at_their_own_positions():
    model = FAMILIES["llama"].build()
    ids = FAMILIES["llama"].inputs()["input_ids"]
    is_token = torch.ones_like(ids)
    is_token[1, :2] = 0
    with regard.capture(model, contributions=True) as seen:
        model.generate(ids, attention_mask=is_token, max_new_tokens=4, do_sample=False, pad_token_id=0)
    whole = torch.cat([is_token, torch.ones(2, seen.ids.shape[1] - ids.shape[1], dtype=torch.long)], 1)
    with torch.no_grad():
        logits = model(seen.ids, attention_mask=whole).logits
    for position in (-1, -2, ids.shape[1] - 1):
        attribution = seen.attribution(TOKEN, position=position, batch=1)
        assert attribution.adds_up
        assert attribution.logit == pytest.approx(float(logits[1, position, TOKEN]), abs=2e-5)
        row = attribution.edges(2, 1)[position]
        assert float(row.double().sum()) == pytest.approx(float(attribution.heads[2, 1]), abs=1e-5)
    with pytest.raises(ValueError, match="computed logits for the last 1 of 11 tokens only"):
        seen.attribution(TOKEN, position=3)
    with pytest.raises(ValueError, match="from 2 to 13, got 0, which is padding"):
        seen.attribution(TOKEN, position=0, batch=1)
    with regard.capture(model, contributions=True) as seen:
        model.generate(ids, max_new_tokens=4, num_beams=3, do_sample=False, pad_token_id=0)
    with pytest.raises(ValueError, match="beams changed places"):
        seen.attribution(TOKEN)


class OddNorm(nn.Module):
    """Neither an RMSNorm nor a LayerNorm: it divides by the largest entry and squashes."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.tanh(x / x.abs().amax(-1, keepdim=True)) * self.weight


def test_a_norm_of_another_kind_does_not_add_up_and_is_named():
    model = FAMILIES["llama"].build()
    model.model.norm = OddNorm(32)
    seen = regard.capture(model, inputs=FAMILIES["llama"].inputs(), contributions=True)
    attribution = seen.attribution(TOKEN)
    assert not attribution.adds_up
    assert "does NOT add up" in str(attribution)
    assert any("model.norm is neither an RMSNorm nor a LayerNorm" in note for note in attribution.notes)


def test_a_function_on_the_path_that_is_not_linear_is_named():
    torch.manual_seed(0)
    model = build("RobertaForMaskedLM", BERT)  # its prediction head calls gelu, not a module
    seen = regard.capture(model, inputs=FAMILIES["bert"].inputs(), contributions=True)
    attribution = seen.attribution(TOKEN)
    assert not attribution.adds_up
    assert any(note.startswith("Gelu is on the path") for note in attribution.notes)


def test_what_is_not_there_is_one_sentence(tmp_path):
    model, inputs = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    seen = regard.capture(model, inputs=inputs)
    with pytest.raises(ValueError, match="attribution: expected a capture made with contributions=True"):
        seen.attribution(TOKEN)
    with pytest.raises(ValueError, match="output_projection: expected a capture made with contributions"):
        seen.value_weighted(0)
    with pytest.raises(ValueError, match='contributions: expected store="maps" beside it'):
        regard.capture(model, inputs=inputs, contributions=True, store="statistics")

    seen = regard.capture(model, inputs=inputs, contributions=True)
    for arguments, message in (
        ({"token": 97}, "token: expected an id from 0 to 96, got 97"),
        ({"token": " cat"}, "token: expected the id of a token, got ' cat': give the tokenizer"),
        ({"token": 5, "against": True}, "against: expected the id of a token, got True"),
        ({"token": 5, "position": 11}, "position: expected one of the 11 tokens that were read, got 11"),
        ({"token": 5, "batch": 2}, "batch: expected a number from 0 to 1, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            seen.attribution(**arguments)
    attribution = seen.attribution(TOKEN)
    with pytest.raises(KeyError, match="layer: expected one of"):
        attribution.edges(7, 0)
    with pytest.raises(KeyError, match="head: expected one of"):
        attribution.edges(0, 4)

    seen.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="in memory only, and is not saved to a folder"):
        regard.load(tmp_path / "saved").attribution(TOKEN)

    body = build("LlamaModel", DECODERS["llama"][1])
    seen = regard.capture(body, inputs=inputs, contributions=True)
    with pytest.raises(ValueError, match="expected a model with an unembedding"):
        seen.attribution(TOKEN)


def test_pytorchs_own_layers_are_refused_and_run_as_without():
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        plain = model(x)
    with torch.no_grad(), regard.capture(model, contributions=True) as seen:
        assert torch.equal(model(x), plain)
    with pytest.raises(ValueError, match="run in one piece"):
        seen.attribution(TOKEN)
    with pytest.raises(ValueError, match="layer 0: its output projection is not known: PyTorch's own"):
        seen.value_weighted(0)


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "gpt-oss"])
def test_an_edited_run_is_attributed_as_it_ran(family):
    model, inputs = FAMILIES[family].build(), FAMILIES[family].inputs()
    layer = "decoder.1" if family == "t5" else 1
    edits = (regard.ablate(layer, 2),)
    with torch.no_grad(), regard.intervene(model, *edits):
        plain = model(**inputs).logits
    with regard.intervene(model, *edits), regard.capture(model, contributions=True) as seen:
        assert torch.equal(model(**inputs).logits, plain)
    attribution = seen.attribution(TOKEN, position=4)
    assert attribution.adds_up
    assert attribution.logit == pytest.approx(float(plain[0, 4, TOKEN]), abs=1e-5)
    row = attribution.layers.index(layer)
    assert float(attribution.heads[row, 2]) == 0.0
    assert float(attribution.heads[row, 1]) != 0.0
    for head in (1, 2):
        edges = attribution.edges(layer, head)[4]
        assert float(edges.double().sum()) == pytest.approx(float(attribution.heads[row, head]), abs=1e-5)


class LowRankLinear(nn.Module):
    """A linear layer with an adapter beside it, as LoRA has."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_a_projection_with_an_adapter_beside_it_is_not_taken_for_the_whole():
    model, inputs = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    attention = model.model.layers[1].self_attn
    attention.o_proj = LowRankLinear(attention.o_proj)
    seen = regard.capture(model, inputs=inputs, contributions=True)
    assert seen.output_projection(0).certified
    with pytest.raises(ValueError, match="layer 1: its output projection is not known: several linear"):
        seen.value_weighted(1)
    assert not seen.attribution(TOKEN).adds_up
