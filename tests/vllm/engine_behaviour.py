"""What vLLM does with requests beside computing them: prefixes, preemption, freed blocks, graphs, processes.

Run by `make test-vllm`, in an environment that has vLLM.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from vllm import SamplingParams

import regard
from regard.vllm import engine_capture
from tests.vllm.engine import captured, engine, generate, prompt
from tests.vllm.tiny_models import HEAD_WIDTH, WINDOW, save_model


class SavedModel(NamedTuple):
    """A model in a folder, and the same model in Transformers."""

    folder: Path
    reference: torch.nn.Module


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models, by family."""
    folders = {
        family: tmp_path_factory.mktemp(family) for family in ("llama", "gemma2", "gpt_oss", "mistral")
    }
    return {family: SavedModel(folder, save_model(family, folder)) for family, folder in folders.items()}


def assert_equals_transformers(request, model, text, first=0):
    """A request is certified and has the maps that Transformers' model has, from row `first` on."""
    seen = regard.load(request["folder"])
    ids = torch.tensor([text[:-1]])
    assert torch.equal(seen.ids, ids)
    print(seen.certificate)
    assert seen.certificate.certified
    assert request["first_row"] == first
    expected = regard.capture(model, inputs={"input_ids": ids})
    for ours, theirs in zip(seen.layers, expected.layers, strict=True):
        assert ours.evidence.total_rows == len(text) - 1 - first
        error = (ours.map.to_dense() - theirs.map.to_dense()[:, :, first:]).abs().max()
        assert error < 2e-4


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_prefix_hits_begin_the_map_later(family, models, tmp_path):
    shared = prompt(128)
    texts = [shared + prompt(21, 1), shared + prompt(37, 2)]
    with engine(models[family].folder, enable_prefix_caching=True) as llm:
        generate(llm, texts[:1])  # fills the cache
        answers, written = captured(llm, tmp_path / "cached", texts, cached=True)
        assert [x["first_row"] for x in written] == [128, 128]
        for text, request in zip(answers, written, strict=True):
            assert_equals_transformers(request, models[family].reference, text, first=128)
        answers, written = captured(llm, tmp_path / "whole", texts)
        for text, request in zip(answers, written, strict=True):
            assert_equals_transformers(request, models[family].reference, text)


def test_preempted_requests_are_whole(models, tmp_path):
    """With ten blocks of 32 tokens, three requests of up to 150 tokens do not fit at once."""
    texts = [prompt(60, seed) for seed in range(3)]
    options = {"num_gpu_blocks_override": 11, "enable_prefix_caching": False, "max_num_batched_tokens": 192}
    with engine(models["llama"].folder, max_model_len=160, **options) as llm:
        plain = generate(llm, texts, tokens=90)
        repeated = []
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counted(*args, **kwargs):
            repeated.append(1)
            return preempt(*args, **kwargs)

        scheduler._preempt_request = counted
        answers, written = captured(llm, tmp_path, texts, tokens=90)
    assert repeated  # else this tests nothing
    assert answers == plain
    for text, request in zip(answers, written, strict=True):
        assert_equals_transformers(request, models["llama"].reference, text)


def test_blocks_behind_a_window_are_reused(models, tmp_path):
    """A request of 300 tokens runs in seven blocks of 32, since its window has 40."""
    with engine(models["mistral"].folder, num_gpu_blocks_override=7, enable_prefix_caching=False) as llm:
        ((answer,), (request,)) = captured(llm, tmp_path, [prompt(290)], tokens=10)
    assert_equals_transformers(request, models["mistral"].reference, answer)


def test_half_precision_is_certified_and_a_fault_in_it_is_not(models, tmp_path, monkeypatch):
    read = engine_capture.read_settings
    faults = {
        "none": {},
        "scale": {"scale": 1.05 * HEAD_WIDTH**-0.5},
        "window": {"window": WINDOW + 1},
        "sinks": {"sinks": None},
    }
    with engine(models["gpt_oss"].folder, dtype="float16") as llm:
        for name, fault in faults.items():

            def planted(layer, fault=fault):
                return read(layer)._replace(**fault)

            monkeypatch.setattr(engine_capture, "read_settings", planted)
            _, (request,) = captured(llm, tmp_path / name, [prompt(149)])
            seen = regard.load(request["folder"])
            print(name, seen.certificate)
            assert seen[0].q.dtype == torch.float16
            assert [layer.evidence.certified for layer in seen.layers] == [name == "none"] * 2


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral"])
def test_the_last_token_of_a_request_equals_its_capture(family, models, tmp_path):
    """Three requests of one batch: one is captured, one asks for its last token, one for nothing."""
    text, spans = prompt(149), {"begin": [0, 30], "question": [100, 149]}
    how = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "detokenize": False}
    marks = ["capture", {"spans": spans}, None]
    parameters = [
        SamplingParams(**how, skip_reading_prefix_cache=True, extra_args={"regard": mark} if mark else None)
        for mark in marks
    ]
    with engine(models[family].folder) as llm:
        plain = generate(llm, [text], tokens=8)
        llm.collective_rpc("start", args=(str(tmp_path),), kwargs={"marked_only": True})
        outputs = llm.generate([{"prompt_token_ids": text}] * 3, parameters, use_tqdm=False)
        (collected,) = llm.collective_rpc("collect")
        (written,) = llm.collective_rpc("stop")
    assert [[*text, *output.outputs[0].token_ids] for output in outputs] == plain * 3
    captured_id, reduced_id, plain_id = (output.request_id for output in outputs)
    assert plain_id not in written
    seen, last = regard.load(written[captured_id]["folder"]), collected[reduced_id]
    assert (last["position"], last["certified"]) == (155, True)
    worst = 0.0
    for layer in seen.layers:
        row, shares = layer.map.to_dense()[0, :, -1], last["layers"][str(layer.key)]
        before, after = row[:, :149].sum(1) / 149, row[:, 149:].sum(1) / 7
        pairs = {"sink": row[:, 0], "lookback": before / (before + after)}
        pairs |= {name: row[:, first:stop].sum(1) for name, (first, stop) in spans.items()}
        for name, expected in pairs.items():
            share = torch.tensor(shares["spans"].get(name, shares.get(name)))
            worst = max(worst, float((share - expected).abs().max()))
    print(family, "largest difference from the capture", worst, "rows compared", last["rows"])
    assert worst < 1e-5


def test_a_compiled_engine_in_its_own_process(models, tmp_path, monkeypatch):
    """The calls are messages of plain data: vLLM refuses pickles unless it is told otherwise."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
    texts = [prompt(100, 4), prompt(30, 5)]
    with engine(models["llama"].folder, enforce_eager=False) as llm:
        plain = generate(llm, texts)
        answers, written = captured(llm, tmp_path, texts)
    assert answers == plain
    for text, request in zip(answers, written, strict=True):
        assert_equals_transformers(request, models["llama"].reference, text)


def test_two_ranks_become_one_capture(models, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with engine(models["llama"].folder, tensor_parallel_size=2, distributed_executor_backend="mp") as llm:
        ((answer,), (request,)) = captured(llm, tmp_path, [prompt(90, 3)])
    assert_equals_transformers(request, models["llama"].reference, answer)
    assert regard.load(request["folder"]).layers[0].heads == (0, 1, 2, 3)


def test_the_rest_of_an_engine_is_as_it_was(models, tmp_path, monkeypatch):
    """Text of the tokens, selected layers, an error that ends the capture alone, and nothing left behind."""
    words = {f"w{i}": i for i in range(512)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(models["llama"].folder / "tokenizer.json"))
    config = '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}'
    (models["llama"].folder / "tokenizer_config.json").write_text(config)
    text = prompt(20)
    with engine(models["llama"].folder) as llm:
        modules = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
        untouched = [dict(vars(module.impl)) for module in modules if hasattr(module, "impl")]
        plain = generate(llm, [text])
        _, (request,) = captured(llm, tmp_path, [text], layers=[1], verify=True)
        seen = regard.load(request["folder"])
        assert [layer.key for layer in seen.layers] == [1]
        assert seen.tokens[0][:20] == [f"w{i}" for i in text]

        def failing(*args, **options):
            raise OSError("the disk is full")

        monkeypatch.setattr(engine_capture, "examine", failing)
        with pytest.raises(RuntimeError, match="the disk is full"):
            captured(llm, tmp_path, [text])
        monkeypatch.undo()
        assert generate(llm, [text]) == plain
        assert [dict(vars(module.impl)) for module in modules if hasattr(module, "impl")] == untouched
