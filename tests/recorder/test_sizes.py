"""What a capture keeps, known before: sizes to the byte, budgets kept, too much refused with a way out."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.gpt import GPT, Config
from regard.recorder import sizes, summary, waiting_call
from regard.recorder.storage import stores
from regard.recorder.storage.capture_index import StoredLayer
from regard.recorder.summary import LayerSummary, summarise
from tests.against.test_capture_families import BOTH, DECODERS, ENCODERS, build
from tests.sampling import examples


def a_gpt(**changes):
    options = dict(vocab_size=32, context_length=256, num_layers=4, num_heads=4, d_model=32, num_kv_heads=2)
    return GPT(Config(**(options | changes))).eval()


@settings(max_examples=examples(40))
@given(
    kv=st.sampled_from([1, 2, 4]),
    B=st.integers(1, 3),
    T=st.integers(1, 20),
    heads=st.sampled_from([None, [0], [1, 3], [0, 1], [0, 1, 2], [3]]),
    layers=st.sampled_from([None, [0], [1, 3]]),
    dtype=st.sampled_from([None, torch.bfloat16, torch.float64]),
    values=st.booleans(),
    store=st.sampled_from(["maps", "maps", "statistics"]),
)
def test_the_size_is_known_to_the_byte(kv, B, T, **options):
    model = a_gpt(num_kv_heads=kv)
    size = regard.capture_size(model, T, batch=B, **options)
    seen = regard.capture(model, inputs={"input_ids": torch.randint(0, 32, (B, T))}, **options)
    assert {layer.key: layer.nbytes for layer in seen.layers} == size.layers
    assert seen.nbytes == size
    assert size == regard.capture_size(model.config, T, batch=B, **options)


def test_what_would_be_smaller_is_as_printed():
    model = a_gpt(num_layers=2)
    size = regard.capture_size(model, 100)
    ids = torch.randint(0, 32, (1, 100))
    assert all(bytes < size for bytes in size.options.values())
    for option, bytes in size.options.items():
        assert regard.capture(model, inputs={"input_ids": ids}, **eval(f"dict({option})")).nbytes == bytes
        assert (
            f"{option:<21} {sizes.format_bytes(bytes)}".split()
            == str(size).splitlines()[1 + list(size.options).index(option)].split()
        )
    assert size.dense == 2 * 4 * 100 * 100 * 4
    assert (
        str(size).splitlines()[0]
        == f"{sizes.format_bytes(size)} for 100 tokens: 2 layers of {sizes.format_bytes(size // 2)}"
    )
    assert "in each of 3 texts" in str(regard.capture_size(model, 100, batch=3))


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_attention_of_pytorch(extra):
    module = nn.MultiheadAttention(16, 4, **extra)
    with regard.capture(module) as seen:
        module(*[torch.randn(7, 2, 16)] * 3)
    assert seen.nbytes == regard.capture_size(module, 7, batch=2)


def test_encoder_and_decoder_of_different_lengths():
    model = nn.Transformer(16, 4, 2, 1, 32, batch_first=True).eval()
    with regard.capture(model) as seen:
        model(torch.randn(2, 7, 16), torch.randn(2, 5, 16))
    size = regard.capture_size(model, (7, 5), batch=2)
    assert {layer.key: layer.nbytes for layer in seen.layers} == size.layers
    assert "for 7 and 5 tokens in each of 2 texts: 4 layers" in str(size)
    assert "layers=['encoder.0']" in str(size)
    assert set(regard.capture_size(model, (7, 5), layers=["cross.0", "encoder.1"]).layers) == {
        "cross.0",
        "encoder.1",
    }


FAMILIES = ("gpt2", "llama", "mistral", "qwen3", "gemma 3", "phi-3", "falcon", "falcon, new")
FAMILIES += ("bert", "distilbert", "t5", "bart")


@pytest.mark.usefixtures("quiet_transformers")
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_models_and_their_configurations(name):
    model = build(*(DECODERS | ENCODERS | BOTH)[name])
    is_both = model.config.is_encoder_decoder
    inputs = {"input_ids": torch.randint(3, 60, (2, 9))}
    if is_both:
        inputs["decoder_input_ids"] = torch.randint(3, 60, (2, 5))
    seen = regard.capture(model, inputs=inputs)
    for thing in (model, model.config):
        size = regard.capture_size(thing, (9, 5) if is_both else 9, batch=2)
        assert {layer.key: layer.nbytes for layer in seen.layers} == size.layers


def test_keys_that_are_made_for_every_head():
    class Deep:
        hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads = 64, 1, 4, 4
        qk_nope_head_dim, qk_rope_head_dim, v_head_dim = 8, 4, 16

    assert regard.capture_size(Deep(), 10) == 4 * (2 * 10 * 4 * 12 + 4 * 10)
    assert regard.capture_size(Deep(), 10, values=True) == 4 * (2 * 10 * 4 * 12 + 4 * 10 + 10 * 4 * 16)


def test_what_it_cannot_know():
    with pytest.raises(
        ValueError, match="expected attention that capture recognises, or a configuration, got Linear"
    ):
        regard.capture_size(nn.Linear(2, 2), 5)
    with pytest.raises(ValueError, match="expected sizes in its configuration, got str"):
        regard.capture_size("gpt2", 5)
    with pytest.raises(ValueError, match="layers: expected some of 0, 1, 2, 3, got \\[7\\]"):
        regard.capture_size(a_gpt(), 5, layers=[7])
    with pytest.raises(ValueError, match="tokens: expected"):
        regard.capture_size(a_gpt(), 0)


@pytest.mark.parametrize(
    ("given", "bytes"),
    [
        (0, 0),
        (12345, 12345),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        (" 500 MB ", 500_000_000),
        ("1.5k", 1500),
        ("2KiB", 2048),
        ("1Ti", 1 << 40),
        ("77", 77),
        ("77 b", 77),
    ],
)
def test_bytes_as_people_write_them(given, bytes):
    assert sizes.parse_bytes("budget", given) == bytes


def test_a_budget_is_kept_and_the_rest_lies_on_disk():
    model, ids = a_gpt(), torch.randint(0, 32, (1, 50))
    whole = regard.capture(model, inputs={"input_ids": ids})
    each = whole.layers[0].nbytes
    with torch.no_grad(), regard.capture(model, budget=2 * each + 10) as seen:
        model(ids)
    assert [isinstance(layer, StoredLayer) for layer in seen.layers] == [False, False, True, True]
    for a, b in zip(seen, whole, strict=True):
        assert torch.equal(a.to_dense(), b.to_dense())
    assert seen.certificate.certified
    folder = seen.layers[3].file.parent
    assert folder.is_dir()
    del seen
    gc.collect()
    assert not folder.exists()


def test_a_budget_under_generate():
    model, prompt = a_gpt(), torch.randint(0, 32, (1, 30))
    with regard.capture(model) as whole:
        model.generate(prompt, max_new_tokens=8)
    with regard.capture(model, budget="1KiB") as seen:
        model.generate(prompt, max_new_tokens=8)
    assert all(isinstance(layer, StoredLayer) for layer in seen.layers)
    assert len(list(seen.layers[0].file.parent.iterdir())) == 4  # those that have grown are gone
    for a, b in zip(seen, whole, strict=True):
        assert torch.equal(a.to_dense(), b.to_dense())


def test_to_a_folder_as_layers_run(tmp_path):
    model, ids = a_gpt(), torch.randint(0, 32, (1, 50))
    there = []
    model.blocks[3].register_forward_pre_hook(lambda *_: there.append(len(list(tmp_path.glob("layer-*")))))
    with torch.no_grad(), regard.capture(model, folder=tmp_path) as seen:
        model(ids)
        assert not (tmp_path / "capture.json").exists()
    assert there == [3]  # the layers before the last are on disk when it begins
    back = regard.load(tmp_path)
    assert torch.equal(back.ids, ids)
    for a, b, c in zip(seen, back, model.maps(ids), strict=True):
        assert torch.equal(a.to_dense(), b.to_dense())
        assert torch.equal(b.to_dense(), c.to_dense())
    with regard.capture(model, folder=tmp_path) as written:
        model.generate(ids, max_new_tokens=3)
    back = regard.load(tmp_path)
    assert back.boundary == 50
    assert back[3].shape == written[3].shape == (1, 4, 52, 52)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_capture_that_fails_leaves_the_old_one_in_its_folder(tmp_path):
    model, ids = a_gpt(), torch.randint(0, 32, (1, 20))
    regard.capture(model, inputs={"input_ids": ids}, folder=tmp_path)
    with pytest.raises(ZeroDivisionError) as error:
        fails(model, tmp_path)
    assert torch.equal(regard.load(tmp_path).ids, ids)
    assert regard.load(tmp_path)[3].shape == (1, 4, 20, 20)
    assert not (tmp_path / ".lock").exists()  # while the error still refers to the capture
    regard.capture(model, inputs={"input_ids": ids}, folder=tmp_path)
    assert error is not None


def fails(model, folder):
    with torch.no_grad(), regard.capture(model, folder=folder):
        model(torch.randint(0, 32, (1, 9)))
        raise ZeroDivisionError


def test_statistics_only(tmp_path):
    model, ids = a_gpt(), torch.randint(0, 32, (2, 50))
    whole = regard.capture(model, inputs={"input_ids": ids})
    for options in ({}, {"folder": tmp_path}, {"budget": 10}):
        seen = regard.capture(model, inputs={"input_ids": ids}, store="statistics", **options)
        assert seen.certificate.certified
        found, wanted = seen.layer(2).summary, whole.layer(2).summary
        assert isinstance(found, LayerSummary)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
        with pytest.raises(
            ValueError, match=r"layer 2: only its statistics were stored.*seen\.layer\(2\)\.summary"
        ):
            seen[2]
    assert regard.load(tmp_path).layer(0).summary.entropy.shape == (2, 4, 50)
    with pytest.raises(ValueError, match="store: expected 'maps' or 'statistics', got 'all'"):
        regard.capture(model, store="all")


def count_batches(monkeypatch):
    """A list that gets the number of texts of every map that is summarised from now on."""
    found = []

    def counted(m):
        found.append(m.matrix[0])
        return summarise(m)

    monkeypatch.setattr(summary, "summarise", counted)
    return found


@pytest.mark.parametrize(("limit", "batches"), [(1 << 26, [4]), (0, [1, 1, 1, 1]), (30_000, [2, 2])])
def test_statistics_wait_for_the_forward_pass_in_little_memory(limit, batches, monkeypatch, tmp_path):
    model, ids = a_gpt(), torch.randint(0, 32, (1, 50))
    whole = regard.capture(model, inputs=ids)
    monkeypatch.setitem(waiting_call.WAITING_BYTES, "cpu", limit * waiting_call.SUMMARY_SHARE)
    found = count_batches(monkeypatch)
    seen = regard.capture(model, inputs=ids, store="statistics")
    assert found == batches
    seen.save(tmp_path)
    pairs = zip(seen.layers, regard.load(tmp_path).layers, whole.layers, strict=True)
    for layer, stored, with_map in pairs:
        assert layer.evidence == with_map.evidence
        for a, b, c in zip(layer.summary, stored.summary, with_map.summary, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-7)
            assert a.untyped_storage().nbytes() <= layer.nbytes  # and no other layer's


def test_too_much_is_refused_at_the_first_layer_with_a_way_out(monkeypatch):
    model, ids = a_gpt(), torch.randint(0, 32, (1, 100))
    size = regard.capture_size(model, 100)
    monkeypatch.setattr(stores, "SMALL", 0)
    monkeypatch.setattr(stores, "free_memory", lambda device: size // 2)
    ran = []
    model.blocks[1].register_forward_pre_hook(lambda *_: ran.append(1))
    for kind in (ValueError, MemoryError):
        with pytest.raises(kind, match="this capture would take") as refused:
            regard.capture(model, inputs={"input_ids": ids})
    for part in (
        sizes.format_bytes(size),
        sizes.format_bytes(size // 2),
        "layers=",
        "heads=",
        "dtype=",
        "folder=",
        "budget=",
        "store=",
    ):
        assert part in str(refused.value)
    assert not ran
    assert not any("attend" in vars(module) for module in model.modules())
    assert len(regard.capture(model, inputs={"input_ids": ids}, layers=[0, 1])) == 2  # half of it fits
    monkeypatch.setattr(stores, "free_memory", lambda device: size)
    assert len(regard.capture(model, inputs={"input_ids": ids})) == 4
    monkeypatch.setattr(stores, "free_memory", lambda device: None)
    assert len(regard.capture(model, inputs={"input_ids": ids})) == 4
