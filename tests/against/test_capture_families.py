"""Capture against eager attention, family by family: the same maps, certified, and the model as it was."""

import pytest
import torch

from regard.attention.masks.base import full
from regard.attention.masks.named_masks import causal
from regard.recorder.capture_block import capture
from tests.against.small_sizes import BERT, GPT2, LLAMA
from tests.sampling import combine, share

transformers = pytest.importorskip("transformers")

T = 14
SIDES = ("none", "left", "right")  # where padding is
MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FALCON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
FALCON |= {"bos_token_id": None, "eos_token_id": None}
T5 = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
BART = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}

DECODERS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2, scaled by layer": ("GPT2LMHeadModel", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2, windows from layer 1": (
        "Qwen2ForCausalLM",
        LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 16}),
    "gemma": ("GemmaForCausalLM", LLAMA | {"head_dim": 16}),
    "gemma 2": (
        "Gemma2ForCausalLM",
        LLAMA | MIXED | {"head_dim": 16, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
    ),
    "gemma 3": ("Gemma3ForCausalLM", LLAMA | MIXED | {"head_dim": 16}),
    "gpt-oss": (
        "GptOssForCausalLM",
        LLAMA | MIXED | {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "phi-3": ("Phi3ForCausalLM", LLAMA),
    "phi": ("PhiForCausalLM", LLAMA),
    "olmo": ("OlmoForCausalLM", LLAMA),
    "olmo 2": ("Olmo2ForCausalLM", LLAMA),
    "falcon": ("FalconForCausalLM", FALCON | {"multi_query": False}),
    "falcon, one key/value head": ("FalconForCausalLM", FALCON),
    "falcon, new": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt-neox": ("GPTNeoXForCausalLM", {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}),
    "opt": (
        "OPTForCausalLM",
        BERT
        | {
            "num_hidden_layers": 3,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "stablelm": ("StableLmForCausalLM", LLAMA),
    "cohere": ("CohereForCausalLM", LLAMA),
    "granite": ("GraniteForCausalLM", LLAMA | {"attention_multiplier": 0.3}),
    "mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 2}),
}
ENCODERS = {
    "bert": ("BertModel", BERT),
    "roberta": ("RobertaModel", BERT),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 97, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "pad_token_id": 0},
    ),
    "electra": ("ElectraModel", BERT | {"embedding_size": 16}),
    "albert": ("AlbertModel", BERT | {"embedding_size": 16, "num_hidden_layers": 3}),
}
BOTH = {
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
}


pytestmark = pytest.mark.usefixtures("quiet_transformers")


def build(name, settings):
    """A small model with weights large enough that its heads differ."""
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model


def ids_and_padding(side):
    ids = torch.randint(1, 97, (2, T))
    if side == "none":
        return {"input_ids": ids}
    real = torch.ones_like(ids)
    real[0, :4] = 0
    if side == "right":
        real = real.flip(1)
    return {"input_ids": ids * real, "attention_mask": real}


def eager(model, inputs):
    """The model's own answer with every matrix in memory."""
    before = implementations(model)
    for config in configs(model):
        config._attn_implementation_internal = "eager"
    out = model(**inputs, output_attentions=True)
    for config, name in zip(configs(model), before, strict=True):
        config._attn_implementation_internal = name
    return out


def implementations(model):
    return [config._attn_implementation for config in configs(model)]


def configs(model):
    return list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())


def check(seen_maps, theirs, rows, tolerance=1e-5):
    """Maps equal matrices, on the rows that are text."""
    assert len(seen_maps) == len(theirs)
    for map, matrix in zip(seen_maps, theirs, strict=True):
        off = (map.to_dense() - matrix).abs()
        if rows is not None:
            off = off.transpose(1, 2)[rows]
        assert off.max() < tolerance
        assert matrix.std() > 1e-3  # not all alike, so that a wrong head or row would show


WITH_PICTURES = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "intermediate_size": 48}
SOUND = {name: x for name, x in BART.items() if name != "max_position_embeddings"}
SOUND |= {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32}
OTHERS = {
    "vit": ("ViTModel", WITH_PICTURES | {"num_hidden_layers": 2, "num_attention_heads": 4}),
    "whisper": ("WhisperForConditionalGeneration", SOUND),
}
RUNS = [
    *combine(share(DECODERS, 3), SIDES),
    *combine(ENCODERS | BOTH, SIDES),
    *((family, "none") for family in OTHERS),
]


def inputs_of(family, side):
    """Random inputs of a family, and the tokens of a decoder beside its encoder."""
    inputs = {"vit": {"pixel_values": torch.randn(2, 3, 16, 16)}}.get(family) or ids_and_padding(side)
    if family == "whisper":
        inputs = {"input_features": torch.randn(2, 8, 40)}
    if family in BOTH or family == "whisper":
        inputs["decoder_input_ids"] = torch.randint(1, 97, (2, 9))
    return inputs


@pytest.mark.parametrize(("family", "side"), RUNS)
@torch.no_grad()
def test_maps_are_the_matrices_of_eager_attention(family, side):
    model = build(*(DECODERS | ENCODERS | BOTH | OTHERS)[family])
    inputs = inputs_of(family, side)
    before = implementations(model)
    plain = model(**inputs)[0]
    with capture(model) as seen:
        output = model(**inputs)[0]
    assert implementations(model) == before
    assert seen.certificate.certified, str(seen.certificate)
    theirs = eager(model, inputs)
    rows = inputs["attention_mask"].bool() if "attention_mask" in inputs else None
    if "decoder_input_ids" in inputs:
        # T5 does not scale its scores, which are large here and known to fewer digits.
        tolerance = 1e-4 if family == "t5" else 1e-5
        check(seen.maps_of("encoder"), theirs.encoder_attentions, rows, tolerance)
        check(seen.maps_of("decoder"), theirs.decoder_attentions, None, tolerance)
        check(seen.maps_of("cross"), theirs.cross_attentions, None, tolerance)
        assert seen["cross.1"].shape[:3] == (2, 4, 9)
        assert torch.equal(seen.target_ids, inputs["decoder_input_ids"])
        rows = None
    else:
        check(seen.maps, theirs.attentions, rows)
        assert [layer.key for layer in seen.layers] == list(range(len(theirs.attentions)))
    assert (seen.ids is None) == ("input_ids" not in inputs)
    real = slice(None) if rows is None else rows
    assert (output - plain)[real].abs().max() < 2e-4 * plain[real].abs().max()
    if before[0] == "sdpa" and all(m.mask is causal or m.mask is full for m in seen):
        assert torch.equal(output, plain)


@torch.no_grad()
def test_packed_sequences():
    model = build(*DECODERS["mistral"])
    ids = torch.randint(1, 97, (1, 16))
    positions = torch.cat([torch.arange(7), torch.arange(9)])[None]
    inputs = {"input_ids": ids, "position_ids": positions}
    with capture(model) as seen:
        model(**inputs, use_cache=False)
    check(seen.maps, eager(model, inputs | {"use_cache": False}).attentions, None)
    assert str(seen[0].mask) == "causal & window(5) & documents(1×16)"
    apart = capture(model, inputs={"input_ids": ids[:, 7:]})
    assert (apart[0].to_dense() - seen[0].to_dense()[:, :, 7:, 7:]).abs().max() < 1e-5
    assert seen.certificate.certified


@torch.no_grad()
def test_a_mask_of_ones_own():
    model = build(*DECODERS["llama"])
    mask = torch.rand(2, 1, T, T) < 0.5
    mask |= torch.eye(T, dtype=torch.bool)
    inputs = {"input_ids": torch.randint(1, 97, (2, T)), "attention_mask": mask}
    with capture(model) as seen:
        model(**inputs)
    floats = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    check(seen.maps, eager(model, inputs | {"attention_mask": floats}).attentions, None)
    with capture(model) as again:
        model(**inputs | {"attention_mask": floats})
    assert torch.equal(again[0].to_dense(), seen[0].to_dense())
    assert seen.certificate.certified


@torch.no_grad()
def test_a_model_with_a_vision_tower():
    text = LLAMA | {"num_hidden_layers": 2}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=16, patch_size=8),
        text_config=transformers.LlamaConfig(**text),
        image_token_index=96,
        vision_feature_layer=-1,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.config.vision_config._attn_implementation_internal = "eager"
    before = {
        id(c): c._attn_implementation for c in (*configs(model), config.vision_config, config.text_config)
    }
    ids = torch.randint(1, 90, (1, 10))
    ids[0, 2:6] = 96
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16)}
    with capture(model) as seen:
        model(**inputs)
    assert {layer.stack for layer in seen.layers} == {"vision_tower", "language_model"}
    assert seen["vision_tower.1"].shape == (1, 4, 5, 5)
    assert seen["language_model.1"].shape == (1, 4, 10, 10)
    assert seen.certificate.certified
    after = {
        id(c): c._attn_implementation for c in (*configs(model), config.vision_config, config.text_config)
    }
    assert after == before


def test_families_outside_are_named():
    model = transformers.RwkvModel(
        transformers.RwkvConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2)
    )
    with pytest.raises(
        ValueError, match=r"RwkvModel cannot be captured: its attention \(RwkvSelfAttention\)"
    ):
        capture(model).__enter__()


OWN_CODE = {
    "bloom": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    "mpt": ("MptForCausalLM", {"d_model": 32, "n_layers": 2, "n_heads": 4}),
}
"""Models that compute attention in their own code."""


@pytest.mark.parametrize("name", OWN_CODE)
@torch.no_grad()
def test_attention_in_a_models_own_code_is_heard_in_generation(name):
    model = build(*OWN_CODE[name])
    inputs = ids_and_padding("left")
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(**inputs, **settings)
    with capture(model) as seen:
        written = model.generate(**inputs, **settings)
    assert torch.equal(written, plain)
    assert [layer.key for layer in seen.layers] == [0, 1]
    assert seen.certificate.certified, str(seen.certificate)
    read = plain.shape[1] - 1  # the last token is written and not read
    assert seen[0].shape == (len(plain), 4, read, read)
    assert torch.equal(seen.ids, plain[:, :read])
    real = seen.attention_mask
    assert float(seen[1].to_dense().sum(-1).transpose(1, 2)[real].sub(1).abs().max()) < 1e-5


@torch.no_grad()
def test_what_is_missing_is_said():
    """LongT5's encoder cuts its tokens into blocks by hand; its decoder is a T5's."""
    model = build("LongT5ForConditionalGeneration", T5 | {"local_radius": 3})
    inputs = ids_and_padding("none") | {"decoder_input_ids": torch.randint(1, 97, (2, 9))}
    with pytest.warns(
        UserWarning, match="mix tokens could not be captured and are missing: LongT5LocalAttention"
    ):
        seen = capture(model, inputs=inputs)
    assert {layer.stack for layer in seen.layers} == {"decoder", "cross"}
    reason = (
        "LongT5LocalAttention, as it attends in blocks of 4 queries and 12 keys, which are no map of the text"
    )
    assert seen.missing == {f"encoder.block.{n}.layer.0.LocalSelfAttention": reason for n in range(2)}
    assert all(evidence.certified for evidence in seen.certificate)
    assert not seen.certificate.certified
    assert "missing: encoder.block.0.layer.0.LocalSelfAttention" in str(seen.certificate)
    assert repr(seen).endswith("2 missing)")


@torch.no_grad()
def test_images_that_do_not_see_each_other():
    """A tower that attends to each image apart is one layer, its images as documents."""
    settings = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32}
    config = transformers.Qwen2_5_VLConfig(vision_config=settings | {"patch_size": 4, "in_channels": 3})
    vision = config.vision_config
    tower = transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel
    vision._attn_implementation = "sdpa"
    vision.fullatt_block_indexes = [0, 1]
    model = tower(vision).eval()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    pixels = torch.randn(24, 3 * 2 * 4 * 4)
    plain = model(pixels, grid_thw=grid)
    with capture(model) as seen:
        output = model(pixels, grid_thw=grid)
    torch.testing.assert_close(output[0], plain[0])
    assert [layer.key for layer in seen.layers] == [0, 1]
    assert str(seen[0].mask) == "documents(1×24)"
    assert seen.certificate.certified
    assert (seen[0].to_dense()[:, :, :16, 16:] == 0).all()
    assert (seen[0].to_dense().sum(-1) - 1).abs().max() < 1e-5
