"""Five families in vLLM: certified, and equal to the capture from Transformers.

Run by `make test-vllm`, in an environment that has vLLM.
"""

from dataclasses import dataclass

import pytest
import torch

import regard
from tests.vllm.engine import LLM, captured, engine, generate, prompt
from tests.vllm.tiny_models import save_model

FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss")
PROMPTS = [prompt(149, 0), prompt(70, 1)]
ROUNDING = 2e-4  # of a weight: two float32 models whose layers compute in another order


@dataclass
class Run:
    family: str
    model: torch.nn.Module
    llm: LLM


@pytest.fixture(scope="module", params=FAMILIES)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(request.param, folder)
    with engine(folder) as llm:
        yield Run(request.param, model, llm)


def test_every_layer_is_certified_and_equals_transformers_capture(run, tmp_path):
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
