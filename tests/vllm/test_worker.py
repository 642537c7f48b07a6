"""`Worker` without an engine: what it refuses, what it reads, and that vLLM can mix it into its own class."""

import sys
from types import SimpleNamespace

import pytest

import regard
from regard.vllm import Worker
from regard.vllm.attention_settings import UnsupportedLayerError, read_settings
from regard.vllm.worker import check_engine, check_version
from tests.vllm.paged_engine import Attention, CPUAttentionBackendImpl, FlashAttentionImpl, PagedEngine


def config(engine=None, **changes):
    """A configuration of vLLM, as far as a worker reads it; `changes` by the names of their fields."""
    parallel = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "use_ubatching": False,
    }
    graphs = SimpleNamespace(has_full_cudagraphs=lambda: changes.get("full_graphs", False))
    modules = {} if engine is None else engine.modules
    for module in modules.values():
        module.get_attn_backend = None
    return SimpleNamespace(
        use_v2_model_runner=changes.get("use_v2_model_runner", False),
        speculative_config=changes.get("speculative_config"),
        parallel_config=SimpleNamespace(**{name: changes.get(name, x) for name, x in parallel.items()}),
        compilation_config=SimpleNamespace(
            cudagraph_mode=graphs, static_forward_context={**modules, "rotary": object()}
        ),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=changes.get("kv_sharing_fast_prefill", False)),
        model_config=SimpleNamespace(
            model="tiny", skip_tokenizer_init=True, get_total_num_kv_heads=lambda: 2
        ),
    )


class EngineWorker(Worker):
    """A worker that vLLM has extended."""

    rank = 0

    def __init__(self, engine):
        self.vllm_config, self.model_runner = config(engine), engine.runner


def test_a_worker_starts_and_stops(tmp_path):
    engine = PagedEngine(FlashAttentionImpl())
    worker = EngineWorker(engine)
    name = "model.layers.0.self_attn.attn"
    for folder in ("one", "two"):
        answer = worker.start(str(tmp_path / folder), values=True)
        assert answer == {"layers": {name: "FlashAttentionImpl"}, "missing": {}}
        with pytest.raises(RuntimeError, match="a capture is running"):
            worker.start(str(tmp_path / "three"))
        engine.add("5-01234567", 3, 3)
        engine.step(("5-01234567", 0, 3))
        engine.end("5-01234567")
        written = {"folder": str(tmp_path / folder / "5"), "tokens": 3, "first_row": 0, "certified": True}
        assert worker.stop() == {"5": written}
        assert regard.load(tmp_path / folder / "5").certificate.certified
    with pytest.raises(RuntimeError, match="no capture is running"):
        worker.stop()


@pytest.mark.parametrize("version", ["0.33.0", "0.31.0", "1.0.0", "0.3.2"])
def test_a_version_that_was_not_tested_is_refused(version, tmp_path, monkeypatch):
    engine = PagedEngine(FlashAttentionImpl())
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    with pytest.raises(ValueError, match=rf"start: vLLM {version} was not tested .* inside of vLLM 0\.32"):
        EngineWorker(engine).start(str(tmp_path))
    assert not list(tmp_path.iterdir())
    check_version("0.32.0")
    check_version("0.32.1+cpu")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_v2_model_runner": True}, "set VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"full_graphs": True}, "enforce_eager=True"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"decode_context_parallel_size": 2}, "decode context parallelism"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ({"use_ubatching": True}, "leave out enable_dbo"),
        ({"kv_sharing_fast_prefill": True}, "leave out kv_sharing_fast_prefill"),
    ],
)
def test_an_engine_that_cannot_be_captured_is_refused(change, reason):
    check_engine(config())
    with pytest.raises(ValueError, match=reason):
        check_engine(config(**change))


def test_settings_come_from_the_implementation():
    implementation = CPUAttentionBackendImpl(scale=0.3, softcap=5.0)
    implementation.sliding_window = -1
    settings = read_settings(Attention(implementation))
    assert (settings.scale, settings.window, settings.softcap, settings.sinks) == (0.3, None, 5.0, None)
    implementation.sliding_window = 40  # the CPU's kernel takes the number of keys itself
    assert read_settings(Attention(implementation)).window == 40
    assert read_settings(Attention(FlashAttentionImpl(window=40))).window == 40
    assert str(read_settings(Attention(FlashAttentionImpl(window=40))).mask) == "causal & window(40)"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kv_cache_dtype", "fp8_e4m3", "quantised to fp8_e4m3"),
        ("alibi_slopes", [0.5], "ALiBi"),
        ("chunk_lookback", 1, "by chunks"),
    ],
)
def test_an_implementation_that_does_something_else_is_refused(name, value, reason):
    implementation = FlashAttentionImpl()
    setattr(implementation, name, value)
    with pytest.raises(UnsupportedLayerError, match=reason):
        read_settings(Attention(implementation))


def test_the_attention_of_an_encoder_is_refused():
    layer = Attention(FlashAttentionImpl())
    layer.attn_type = "encoder_only"
    with pytest.raises(UnsupportedLayerError, match="of a decoder, got 'encoder_only'"):
        read_settings(layer)
