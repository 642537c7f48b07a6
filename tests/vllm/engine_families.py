"""Five families in vLLM: certified, equal to the capture from Transformers, and not with a planted fault.

Run by `make test-vllm`, in an environment that has vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.vllm import engine_capture
from tests.vllm.engine import LLM, captured, engine, generate, prompt
from tests.vllm.tiny_models import SIZES, WINDOW, save_model

FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss")
PROMPTS = [prompt(149, 0), prompt(70, 1)]
ROUNDING = 2e-4  # of a weight: two float32 models whose layers compute in another order


@dataclass
class Run:
    family: str
    model: torch.nn.Module
    llm: LLM


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(request.param, folder)
    with engine(folder) as llm:
        yield Run(request.param, model, llm)


def test_every_layer_is_certified_and_equals_transformers_capture(run: Run, tmp_path: Path) -> None:
    plain = generate(run.llm, PROMPTS)
    texts, written = captured(run.llm, tmp_path, PROMPTS, values=True)
    assert texts == plain  # watching changes no token
    assert generate(run.llm, PROMPTS) == plain
    assert [x["first_row"] for x in written] == [0, 0]
    for text, request in zip(texts, written, strict=True):
        seen = regard.load(request["folder"])
        ids = torch.tensor([text[:-1]])  # the last token was written and never read
        assert torch.equal(seen.ids, ids)
        expected = regard.capture(run.model, inputs={"input_ids": ids}, values=True)
        assert [layer.key for layer in seen.layers] == [layer.key for layer in expected.layers] == [0, 1]
        assert seen.certificate.certified
        assert request["certified"]
        for ours, theirs in zip(seen.layers, expected.layers, strict=True):
            assert theirs.evidence.certified
            assert ours.evidence.rows == ours.evidence.total_rows == len(text) - 1
            error = (ours.map.to_dense() - theirs.map.to_dense()).abs().max().item()
            value_error = (ours.values - theirs.values).abs().max().item()
            print(f"{run.family} layer {ours.key}: off Transformers by {error:.1e}, {ours.evidence}")
            assert error < ROUNDING
            assert value_error < ROUNDING * theirs.values.abs().max()


def faults(family: str) -> list[str]:
    """The faults that can be planted into a family's settings."""
    return [
        "scale",
        "head width",
        *(["window"] if family in ("mistral", "gemma2", "gpt_oss") else []),
        *(["soft cap"] if family == "gemma2" else []),
        *(["sink logits"] if family == "gpt_oss" else []),
    ]


def wrong_width(settings: Any, query: Any, cached: Any, output: Any) -> Any:
    """The call that one would make with heads of hidden_size / num_attention_heads."""
    width = SIZES["hidden_size"] // SIZES["num_attention_heads"]

    def cut(x: Any) -> Any:  # (tokens, heads, width)
        return x.reshape(len(x), -1, width)[:, : x.shape[1]]

    k, v = (cut(x.transpose(0, 1)).transpose(0, 1) for x in cached)
    settings = settings._replace(scale=width**-0.5)
    return right_call(settings, cut(query), engine_capture.CachedTokens(k, v), cut(output))


right_call = engine_capture.attention_call


@pytest.mark.parametrize("fault", ["scale", "head width", "window", "soft cap", "sink logits"])
def test_a_planted_fault_is_not_certified(
    run: Run, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault not in faults(run.family):
        pytest.skip(f"{run.family} has none")
    read = engine_capture.read_settings

    def planted(layer: Any) -> Any:
        settings = read(layer)
        if fault == "scale":
            return settings._replace(scale=settings.scale * 1.05)
        if fault == "window" and settings.window is not None:
            assert settings.window == WINDOW
            return settings._replace(window=WINDOW + 1)
        if fault == "soft cap":
            return settings._replace(softcap=None)
        if fault == "sink logits":
            return settings._replace(sinks=None)
        return settings

    monkeypatch.setattr(engine_capture, "read_settings", planted)
    if fault == "head width":
        monkeypatch.setattr(engine_capture, "attention_call", wrong_width)
    _, (request,) = captured(run.llm, tmp_path, PROMPTS[:1])
    seen = regard.load(request["folder"])
    affected = [layer for layer in seen.layers if fault != "window" or layer.evidence.window]
    for layer in affected:
        print(f"{run.family} with another {fault}, layer {layer.key}: {layer.evidence}")
    assert affected
    assert not any(layer.evidence.certified for layer in affected)
    assert not request["certified"]
