"""`generate` under capture: prefill and steps as one map, equal to eager's on the whole text at once."""

import pytest
import torch

import regard
from tests.against.test_capture_families import (
    BOTH,
    DECODERS,
    T,
    build,
    check,
    eager,
    ids_and_padding,
)
from tests.sampling import combine, share

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quiet_transformers")
NEW = 8


def generated(model, inputs, **options):
    """What a model writes, the same with and without capture, and what was seen."""
    options |= {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(**inputs, **options)
    with regard.capture(model) as seen:
        captured = model.generate(**inputs, **options)
    assert torch.equal(plain, captured)
    assert seen.certificate.certified, str(seen.certificate)
    assert seen.passes == []
    return captured, seen


def whole(seen, inputs):
    """What the model read and wrote, to be read at once."""
    if "attention_mask" not in inputs:
        return {"input_ids": seen.ids}
    real = inputs["attention_mask"].repeat_interleave(len(seen.ids) // len(inputs["attention_mask"]), 0)
    real = torch.cat([real, real.new_ones(len(seen.ids), seen.ids.shape[1] - T)], 1)
    assert torch.equal(seen.attention_mask, real.bool())
    return {
        "input_ids": seen.ids,
        "attention_mask": real,
        "position_ids": (real.cumsum(-1) - 1).clamp(min=0),
    }


RUNS = [
    ("gemma 2", "left", {}),
    ("gpt2", "none", {}),
    ("gemma 3", "left", {"cache_implementation": "static"}),
    ("llama", "left", {}),
    ("gpt-oss", "left", {}),
    ("mistral", "none", {}),
    ("falcon", "none", {"cache_implementation": "static"}),
    ("mistral", "left", {"cache_implementation": "static"}),
    ("llama", "left", {"num_beams": 3}),
    ("gemma 2", "none", {"num_beams": 3}),
    ("llama", "none", {"prefill_chunk_size": T - 1}),  # the last chunk is one token, and not generated
    ("falcon", "left", {}),
    ("qwen2, windows from layer 1", "none", {}),
    ("llama", "none", {"cache_implementation": "static"}),
    ("llama", "none", {"prefill_chunk_size": 3}),
]


@pytest.mark.parametrize(("family", "side", "options"), share(RUNS, 4))
@torch.no_grad()
def test_decoders(family, side, options):
    model = build(*DECODERS[family])
    inputs = ids_and_padding(side)
    written, seen = generated(model, inputs, **options)
    assert seen.boundary == T
    assert seen[0].shape[2:] == (T + NEW - 1, T + NEW - 1)  # the last token is never read
    if "num_beams" not in options:
        assert torch.equal(seen.ids, written[:, :-1])
    inputs = whole(seen, inputs)
    rows = inputs["attention_mask"].bool() if side != "none" else None
    check(seen.maps, eager(model, inputs).attentions, rows)


@torch.no_grad()
def test_masks_stay_rules():
    model = build(*DECODERS["gemma 2"])
    _, seen = generated(model, ids_and_padding("left"))
    assert str(seen[0].mask) == "causal & window(5) & padding(2×21)"
    assert str(seen[1].mask) == "causal & padding(2×21)"
    assert [found.window for found in seen.certificate] == [5, None, 5]
    assert {found.softcap for found in seen.certificate} == {2.0}


@pytest.mark.parametrize(
    ("family", "options"), combine(BOTH, [{"num_beams": 3}, {"cache_implementation": "static"}, {}])
)
@torch.no_grad()
def test_encoders_with_decoders(family, options):
    model = build(*BOTH[family])
    inputs = ids_and_padding("right")
    _, seen = generated(model, inputs, **options)
    beams = len(seen.target_ids) // 2
    assert seen.boundary == 1  # the decoder's prompt is its start token
    assert seen["encoder.0"].shape == (2, 4, T, T)
    assert seen["decoder.0"].shape == (2 * beams, 4, NEW, NEW)
    assert seen["cross.0"].shape == (2 * beams, 4, NEW, T)
    read = {name: x.repeat_interleave(beams, 0) for name, x in inputs.items()}
    theirs = eager(model, read | {"decoder_input_ids": seen.target_ids})
    encoder = [matrix[::beams] for matrix in theirs.encoder_attentions]
    check(seen.maps_of("encoder"), encoder, inputs["attention_mask"].bool(), 1e-4)
    check(seen.maps_of("decoder"), theirs.decoder_attentions, None, 1e-4)
    check(seen.maps_of("cross"), theirs.cross_attentions, None, 1e-4)


# GPT-2 does not read the number of layers by which Transformers exits early.
WAYS = [*combine(["an assistant", "lookup", "chunks"], ["llama", "gpt2"]), ("early exit", "llama")]


@pytest.mark.parametrize(("way", "family"), WAYS)
def test_guesses_that_were_not_accepted_leave_no_trace(way, family):
    """Speculative decoding reads guesses and takes them back; a prompt may be read in chunks."""
    model = build(*DECODERS[family])
    options = {
        "an assistant": {"assistant_model": build(*DECODERS[family])},
        "lookup": {"prompt_lookup_num_tokens": 3},
        "early exit": {"assistant_early_exit": 1},
        "chunks": {"prefill_chunk_size": 4},
    }[way]
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids = torch.randint(1, 60, (1, 9), generator=torch.Generator().manual_seed(0))
    with regard.capture(model) as seen:
        written = model.generate(ids, **settings, **options)
    assert torch.equal(written, model.generate(ids, **settings, **options))
    assert seen.certificate.certified
    assert seen.boundary == 9
    assert torch.equal(seen.ids, written[:, :-1])
    expected = regard.capture(model, inputs={"input_ids": seen.ids})
    for layer in range(len(expected)):
        torch.testing.assert_close(seen[layer].to_dense(), expected[layer].to_dense(), atol=1e-4, rtol=0)
