"""`EngineCapture` on a small paged engine: every request is certified, whatever the engine does with it."""

import pytest
import torch

import regard
from regard.vllm import engine_capture
from regard.vllm.attention_settings import AttentionSettings, place_heads
from regard.vllm.engine_capture import EngineCapture
from tests.vllm.paged_engine import (
    HEADS,
    SINKS,
    Attention,
    CPUAttentionBackendImpl,
    FlashAttentionImpl,
    PagedEngine,
    PagedImplementation,
    two_layers,
)


@pytest.fixture
def engine():
    return two_layers()


def start(engine, folder, **options):
    capture = EngineCapture(engine.runner, engine.modules, folder, **options)
    capture.attach()
    return capture


def assert_captured(text, engine, folder, length, first=0):
    """A capture is certified and has the maps of a request's queries from `first` up to `length`."""
    seen = regard.load(folder)
    assert seen.certificate.certified
    assert seen.ids.tolist() == [text.ids[:length]]
    for layer, (name, module) in zip(seen.layers, engine.modules.items(), strict=True):
        q, k, _ = (x.transpose(0, 1)[None] for x in text.tensors[name])
        left = module.impl.sliding_window[0]
        expected = regard.attention_map(
            q[:, :, first:length],
            k[:, :, :length],
            mask=regard.causal if left < 0 else regard.causal & regard.window(left + 1),
            scale=module.impl.scale,
            softcap=module.impl.logits_soft_cap or None,
            sinks=module.impl.sinks,
        )
        assert layer.evidence.total_rows == length - first
        torch.testing.assert_close(layer.map.to_dense(), expected.to_dense())
    return seen


def test_chunks_and_single_tokens_of_two_requests_become_two_captures(engine, tmp_path):
    one, two = engine.add("0-0123abcd", 9, 14, seed=0), engine.add("1-0123abcd", 5, 12, seed=1)
    capture = start(engine, tmp_path, values=True, model="tiny")
    engine.step(("0-0123abcd", 0, 7))
    engine.step(("1-0123abcd", 0, 5), ("0-0123abcd", 7, 9))
    for i in range(3):
        engine.step(("0-0123abcd", 9 + i, 10 + i), ("1-0123abcd", 5 + i, 6 + i))
    written = capture.finish()
    assert {name: (x["tokens"], x["first_row"], x["certified"]) for name, x in written.items()} == {
        "0": (12, 0, True),
        "1": (8, 0, True),
    }
    seen = assert_captured(one, engine, tmp_path / "0", 12)
    assert (seen.model, seen.boundary, seen.layers[1].heads) == ("tiny", 9, (0, 1, 2, 3))
    values = one.tensors["model.layers.0.self_attn.attn"][2][:12]
    assert torch.equal(seen.layers[0].values, values.transpose(0, 1)[None])
    assert assert_captured(two, engine, tmp_path / "1", 8).boundary == 5


TAKEN = "its blocks are taken"
STARTED = "the capture starts"


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ([STARTED, (0, 10), (10, 11), TAKEN, (0, 8), (8, 11), (11, 12)], 0),
        # Preempted, and the blocks of its first eight tokens are still there.
        ([STARTED, (0, 7), (7, 10), (8, 12)], 0),
        # The prefix was cached before: the map begins at the first query that ran.
        ([(0, 8), STARTED, (8, 11), (11, 12)], 8),
    ],
    ids=["preempted", "preempted, with a prefix", "cached before"],
)
def test_each_row_that_ran_is_stored_once(engine, tmp_path, steps, first):
    text = engine.add("0", 10, 16)
    for step in steps:
        if step == STARTED:
            capture = start(engine, tmp_path)
        elif step == TAKEN:
            text.blocks = [engine.free.pop() for _ in text.blocks]
        else:
            engine.step(("0", *step))
    assert capture.finish()["0"]["first_row"] == first
    assert_captured(text, engine, tmp_path / "0", 12, first)


def test_rows_are_dropped_if_the_keys_before_them_have_changed(engine, tmp_path):
    text = engine.add("0", 10, 16)
    capture = start(engine, tmp_path)
    engine.step(("0", 0, 10))
    for name, (q, k, v) in text.tensors.items():
        text.tensors[name] = (q, k * 0.99, v)
        module = engine.modules[name]
        slots = torch.tensor([text.blocks[p // 4] * 4 + p % 4 for p in range(8)])
        module.impl.do_kv_cache_update(module, text.tensors[name][1][:8], v[:8], engine.caches[name], slots)
    engine.step(("0", 8, 12))
    assert capture.finish()["0"]["first_row"] == 8
    assert_captured(text, engine, tmp_path / "0", 12, first=8)


@pytest.mark.parametrize(
    "fault", [{"scale": 0.42}, {"window": 7}, {"window": None}, {"softcap": None}, {"sinks": None}]
)
def test_wrong_settings_are_not_certified(fault, tmp_path, monkeypatch):
    engine = PagedEngine(CPUAttentionBackendImpl(window=6, softcap=2.0, sinks=SINKS))
    read = engine_capture.read_settings

    def planted(layer):
        return read(layer)._replace(**fault)

    monkeypatch.setattr(engine_capture, "read_settings", planted)
    engine.add("0", 12, 12)
    capture = start(engine, tmp_path)
    engine.step(("0", 0, 12))
    assert not capture.finish()["0"]["certified"]
    assert not regard.load(tmp_path / "0").layers[0].evidence.certified


def test_nothing_is_left_behind(engine, tmp_path):
    engine.add("0", 12, 12)
    covered = [(module.impl, "forward") for module in engine.modules.values()]
    covered += [(builder, name) for builder in engine.builders for name in ("build", "update_block_table")]
    capture = start(engine, tmp_path)
    assert all(name in vars(thing) for thing, name in covered)
    watched = engine.step(("0", 0, 12))
    capture.finish()
    assert not any(name in vars(thing) for thing, name in covered)
    plain = engine.step(("0", 0, 12))
    assert all(torch.equal(watched[name], plain[name]) for name in plain)


def test_a_layer_that_reads_the_cache_of_another_is_captured(engine, tmp_path):
    """Its implementation writes nothing, so that the layout is learned from the other one's."""
    first, second = engine.modules
    engine.caches[second] = engine.caches[first]
    engine.modules[second].kv_sharing_target_layer_name = first
    engine.modules[second].impl.packed = False
    engine.modules[second].impl.do_kv_cache_update = lambda *args: None
    text = engine.add("0", 9, 9)
    text.tensors[second] = (text.tensors[second][0], *text.tensors[first][1:])
    capture = start(engine, tmp_path)
    engine.step(("0", 0, 9))
    capture.finish()
    assert_captured(text, engine, tmp_path / "0", 9)


def test_an_error_ends_the_capture_and_not_the_engine(engine, tmp_path, monkeypatch):
    def failing(*args, **options):
        raise OSError("the disk is full")

    engine.add("0", 12, 12)
    capture = start(engine, tmp_path)
    monkeypatch.setattr(engine_capture, "examine", failing)
    outputs = engine.step(("0", 0, 12))
    assert all(bool(x.any()) for x in outputs.values())
    with pytest.raises(RuntimeError, match="ended before it was stopped: the disk is full"):
        capture.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_cannot_be_read_is_missing_by_name(engine, tmp_path):
    class OtherImpl(PagedImplementation):
        pass

    class MLAAttention(Attention):
        pass

    others = {"model.layers.2.attn": Attention(OtherImpl()), "model.layers.3.attn": MLAAttention(OtherImpl())}
    engine.add("0", 4, 4)
    capture = EngineCapture(engine.runner, engine.modules | others, tmp_path)
    capture.attach()
    engine.step(("0", 0, 4))
    capture.finish()
    missing = regard.load(tmp_path / "0").missing
    assert list(missing) == list(others)
    assert "got OtherImpl" in missing["model.layers.2.attn"]
    assert missing["model.layers.3.attn"] == "MLAAttention, which is not supported yet"
    with pytest.raises(ValueError, match=r"none of the 2 attention layers can be captured.*OtherImpl"):
        EngineCapture(engine.runner, others, tmp_path)


@pytest.mark.parametrize(
    ("ranks", "kv_heads", "total_kv", "expected"),
    [(2, 2, 4, [(0, 1), (2, 3)]), (2, 1, 2, [(0,), (1,)]), (4, 1, 2, [(0,), (0,), (1,), (1,)])],
)
def test_heads_are_numbered_across_ranks(ranks, kv_heads, total_kv, expected):
    settings = AttentionSettings(4, kv_heads, 8, 8, 0.5)
    placements = [place_heads(settings, rank, ranks, total_kv) for rank in range(ranks)]
    assert [x.kv_heads for x in placements if x is not None] == expected
    assert all(x is not None and x.total_heads == 4 * ranks for x in placements)
    with pytest.raises(ValueError, match="cannot be numbered"):
        place_heads(settings._replace(kv_heads=3), 0, ranks, total_kv)


def test_the_shards_of_two_ranks_are_joined(tmp_path):
    engines = [PagedEngine(FlashAttentionImpl()) for _ in range(2)]
    texts = []
    for rank, engine in enumerate(engines):
        texts.append(engine.add("0-89abcdef", 8, 12, seed=rank))
        texts[rank].ids[:] = texts[0].ids
        texts[rank].prompt_token_ids[:] = texts[0].prompt_token_ids
        capture = start(engine, tmp_path, rank=rank, ranks=2, total_kv_heads=4)
        engine.step(("0-89abcdef", 0, 8))
        engine.step(("0-89abcdef", 8, 9))
        capture.finish()
    seen = regard.load(tmp_path / "0")
    assert seen.certificate.certified
    assert seen[0].shape == (1, 2 * HEADS, 9, 9)
    assert seen.layers[0].heads == tuple(range(2 * HEADS))
    for rank in range(2):
        q, k, _ = (x[:9].transpose(0, 1)[None] for x in texts[rank].tensors["model.layers.0.self_attn.attn"])
        expected = regard.attention_map(q, k, mask=regard.causal, scale=0.4).to_dense()
        own = seen[0].to_dense()[:, rank * HEADS : (rank + 1) * HEADS]
        torch.testing.assert_close(own, expected)
