"""The guides for those who extend Regard work, and the page of myths is true. Sessions run in `test_docs`."""

import inspect
import re
from pathlib import Path

import pytest
import torch
import typer.main

import regard
from regard.checker.catalogue import CATALOGUE, read_themes
from regard.checker.examples import NAMES, code_of_test, loaded_program, mended_program, plant_mistake
from regard.cli import app
from regard.stages import ProjectedMultiHeadAttention
from scripts import reference
from tests.checker.test_property_tests import passes

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to"


def test_the_mistake_of_the_guide_is_named(tmp_path, monkeypatch):
    guide = (HOW_TO / "add-a-mistake.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"`src/regard/checker/(mistakes/[\w-]+\.toml)`", guide)
    (text,) = re.findall(r"```toml\n(.*?)```", guide, flags=re.DOTALL)
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    (tmp_path / "themes.toml").write_text(f'roles = ["{file.stem}"]\n', encoding="utf-8")
    (mistake,) = read_themes(tmp_path)["roles"]
    assert mistake.name not in CATALOGUE
    for kind in mistake.plants:
        code = code_of_test(mistake, kind)
        assert passes(code, mended_program(mistake, kind))
        assert not passes(code, plant_mistake(mistake, kind))
    monkeypatch.setitem(CATALOGUE, mistake.name, mistake)
    with loaded_program(plant_mistake(mistake, "head"), NAMES["head"]) as head:
        report = regard.check(head)
    assert [diagnosis.name for diagnosis in report.diagnoses] == [mistake.name]


def test_the_table_of_what_works_has_the_numbers_of_the_measurements():
    docs = HOW_TO.parent
    table = (docs / "compatibility.md").read_text(encoding="utf-8")
    survey = (docs / "transformers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (equal and certified|partly|refused) \| (\d+) ", survey, flags=re.MULTILINE)
    counts = dict(rows)
    assert f"{counts['equal and certified']} of Transformers' model types equal and certified" in table
    assert f"certified, {counts['partly']} partly" in table
    assert f"{counts['refused']} types" in table
    (transformers,) = re.findall(r"with Transformers ([\d.]+)\.", survey)
    assert f"| Transformers | {transformers}:" in table
    constraints = (docs.parent / "constraints.txt").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^torch==([\d.]+)$", constraints, flags=re.MULTILINE)
    assert f"| PyTorch | {torch}," in table


@pytest.mark.parametrize("name", ["docs/which-call.md", "AGENTS.md"])
def test_the_calls_and_commands_of_a_page_are_there(name):
    text = (HOW_TO.parents[1] / name).read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    calls = set(re.findall(r"\b(regard(?:\.\w+)+)", code))
    assert len(calls) > 5
    for call in calls - {"regard.gpt"}:
        reference.resolve(call)
    commands = typer.main.get_command(app).commands
    assert set(re.findall(r"\bregard ([a-z-]+)", code)) <= set(commands)
    attributes = re.findall(r"self\.(\w+)", inspect.getsource(regard.Capture))
    assert set(re.findall(r"\bseen\.(\w+)", code)) <= {*dir(regard.Capture), *attributes}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tiny(family, **options):
    """A model of a family with random weights: the smallest there can be."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 11}
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=8, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "biased"),
    [("GPT2", True), ("GPTNeoX", True), ("Qwen2", True), ("Qwen3", False), ("Llama", False)],
)
def test_who_has_a_bias_on_queries_keys_and_values(family, biased):
    """Claim: no bias on Q/K/V follows GPT-2. Measured: GPT-2 has one, and so do GPT-NeoX and Qwen2."""
    names = {name for name, _ in tiny(family).named_parameters()}
    projections = ("c_attn.", "query_key_value.", "q_proj.", "k_proj.", "v_proj.")
    of_attention = {name for name in names if any(projection in name for projection in projections)}
    assert of_attention
    assert any(name.endswith(".bias") for name in of_attention) == biased


@pytest.mark.parametrize(
    ("zero_biases", "transposed", "heads", "same"),
    [(True, True, 1, True), (False, True, 1, False), (True, False, 1, False), (True, True, 2, False)],
)
def test_a_bias_free_single_head_is_gpt2_only_if_three_things_hold(zero_biases, transposed, heads, same):
    """Claim: it gives GPT-2's output. Measured: with one head, no biases and transposed weights, to 1e-6."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=32, n_head=heads, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "sdpa"
    theirs = GPT2Attention(config, layer_idx=0).eval()
    ours = ProjectedMultiHeadAttention(32, num_heads=1).eval()
    with torch.no_grad():
        for projection in (theirs.c_attn, theirs.c_proj):
            projection.weight.normal_(std=0.2)
            projection.bias.normal_(std=0.0 if zero_biases else 0.2)
        for linear, weight in zip(
            (ours.W_q, ours.W_k, ours.W_v, ours.W_o),
            (*theirs.c_attn.weight.split(32, dim=1), theirs.c_proj.weight),
            strict=True,
        ):
            linear.weight.copy_(weight.T if transposed else weight)
        x = drawn(2, 16, 32)
        apart = (ours(x) - theirs(x)[0]).abs().max().item()
    assert (apart < 5e-6) == same
    assert same or apart > 0.05
