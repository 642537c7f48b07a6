"""Each stage is complete in its own file, is numbered as its lesson, and uses the one set of names."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import regard
from regard import stages

FOLDER = Path(stages.__file__).parent
STAGES = {
    "simplified": 1,
    "trainable": 2,
    "scaled": 3,
    "causal": 4,
    "head": 5,
    "separate_heads": 6,
    "multi_head": 6,
    "projected": 7,
    "cross": 7,
    "positions": 8,
    "cached": 9,
    "transformer": 10,
}
BESIDE = {"masking": 4, "against_pytorch": 5}
TREES = {name: ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")) for name in STAGES | BESIDE}
OTHER_SPELLINGS = re.compile(
    r"\b(W_[QKV]|Wq|Wk|Wv|n_embd|d_in|head_size|d_head|n_heads?|block_size|context_length|tril_mask|attn|wei)\b"
)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_the_package_lists_its_stages_in_order():
    listed = re.findall(r"(\d+) (\w+)(?:\s+\(?and (\w+)\)?)?", stages.__doc__ or "")
    found = {name: int(number) for number, *names in listed for name in names if name}
    assert found == STAGES | BESIDE
    assert set(regard.stages.__all__) == {
        node.name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "Difference"
    }


def computes_attention(function):
    """Whether a function itself has q·kᵀ, a softmax over the keys, and weights times values."""
    lines = ast.unparse(function)
    return all(part in lines for part in (".mT", "torch.softmax(scores, dim=-1)", "weights @ "))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_shows_its_whole_formula_in_one_function(name):
    assert len([function for function in functions(TREES[name]) if computes_attention(function)]) == 1


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_imports_nothing_of_another_that_it_computes_with(name):
    """`join_heads` compares two stages, and masks of a batch are applied as stage 4 does it."""
    others = {
        alias.name
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("regard.stages")
        for alias in node.names
        if not alias.name.startswith("check_")
    }
    allowed = {
        "multi_head": {"SeparateHeads"},
        "scaled": {"efficient_masking", "visible_keys"},
        "cross": {"efficient_masking", "visible_keys"},
    }
    assert others == allowed.get(name, set())


@pytest.mark.parametrize("name", STAGES | BESIDE)
def test_there_is_one_set_of_names(name):
    assert OTHER_SPELLINGS.findall((FOLDER / f"{name}.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_fits_on_a_page_and_says_every_shape(name):
    (function,) = [function for function in functions(TREES[name]) if computes_attention(function)]
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    body = lines[function.lineno - 1 : function.end_lineno]
    assert len(body) <= 20
    for line in body:
        if re.search(r"(scores|weights|heads) = .*(@|softmax)", line):
            assert re.search(r"#.*\(B, (H, )?T, \w+\)", line), line


def spellings():
    """The rows of the table of spellings in the reference: the names in each cell."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "stages.md").read_text(encoding="utf-8")
    table = text.split("## Each tutorial's spelling")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]


def test_the_names_in_the_table_of_spellings_exist():
    import transformers
    from torch import nn
    from transformers.models.gpt2 import modeling_gpt2

    source = "".join((FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in STAGES)
    pytorch = inspect.getsource(nn.MultiheadAttention)
    gpt2 = inspect.getsource(modeling_gpt2) + inspect.getsource(transformers.GPT2Config)
    assert len(spellings()) == 12
    for ours, _, *_, torch_names, gpt2_names in spellings():
        assert all(re.search(rf"\b{name}\b", source) for name in ours), ours
        assert all(re.search(rf"\b{name}\b", pytorch) for name in torch_names), torch_names
        assert all(re.search(rf"\b{name}\b", gpt2) for name in gpt2_names), gpt2_names
