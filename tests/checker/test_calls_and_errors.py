"""What a caller types: arguments of a call, packages, configurations; and what an error says."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import regard
from regard.checker import CheckError
from regard.cli import app
from regard.testing import assert_attention
from tests.checker.corpus import right, undecided

GATED = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self, d_model=48, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, block_idx, *, ve, mode="plain"):
        assert block_idx == 3 and mode in ("plain", "none") and ve.shape == x.shape
        B, T, C = x.shape
        heads = lambda y: y.view(B, T, self.num_heads, -1).transpose(1, 2)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x) + ve)
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))
"""


def run(*words):
    return CliRunner().invoke(app, ["check", *words])


@pytest.fixture
def folder(tmp_path, monkeypatch, in_this_process):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gated.py").write_text(GATED)
    return tmp_path


def test_arguments_of_a_call_from_a_shell(folder):
    missing = run("gated.py:Gated")
    assert missing.exit_code == 2
    assert "--call block_idx=…" in missing.output
    assert "lambda" not in missing.output
    assert "--call ve=…" in run("gated.py:Gated", "--call", "block_idx=3").output
    words = ["--call", "block_idx=3", "--call", "ve=zeros(B,T,C)", "--call", "mode=plain"]
    right = run("gated.py:Gated", *words)
    assert right.exit_code == 0, right.output
    assert run("gated.py:Gated", "--call", "nothing").exit_code == 2
    assert "takes no `head`" in run("gated.py:Gated", *words, "--call", "head=1").output


def test_arguments_of_a_call_in_python():
    def scaled(q, k, v, factor):
        if factor != 1.5:
            raise OSError(f"the factor is {factor}")
        return torch.softmax(factor / 1.5 * q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v

    assert_attention(scaled, call={"factor": 1.5})
    with pytest.raises(CheckError, match=r"the factor is 2\.0"):
        regard.check(scaled, call={"factor": 2.0})
    with pytest.raises(CheckError, match=r"--call factor=…, or check\(scaled, call=\{'factor': …\}\)"):
        regard.check(scaled)


class Shifted(nn.Module):
    def __init__(self, d_model=48):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x, shift=None):
        scores = self.q_proj(x) @ self.k_proj(x).mT / x.shape[-1] ** 0.5
        return torch.softmax(scores if shift is None else scores + shift, dim=-1) @ self.v_proj(x)


@pytest.mark.at_length("test_arguments_of_a_call_in_python")
def test_a_tensor_whose_effect_is_unknown_leaves_the_verdict_open():
    right(Shifted, call={"shift": "zeros(T, T)"}).judge()
    undecided(Shifted, "`shift`", call={"shift": "randn(T, T)"}).judge()


def four_dimensions(q, k, v):
    _, _, _, D = q.shape
    weights = torch.softmax(q @ k.mT / D**0.5, dim=-1)
    raise OSError("the kernel failed")
    return weights @ v


def three_dimensions(q, k, v):
    _, _, _ = q.shape
    raise OSError("the kernel failed")


@pytest.mark.parametrize(
    ("function", "shape"), [(four_dimensions, (2, 4, 7, 10)), (three_dimensions, (2, 7, 10))]
)
def test_an_error_is_shown_with_the_shapes_that_raised_it(function, shape):
    line = function.__code__.co_firstlineno + (3 if function is four_dimensions else 2)
    with pytest.raises(CheckError) as caught:
        regard.check(function)
    message = str(caught.value)
    assert f"could not be run on q {shape}, k {shape}, v {shape}: OSError: the kernel failed" in message
    assert f"({Path(__file__).name}, line {line})" in message


def half_only(q, k, v):
    if q.dtype == torch.float64:
        raise TypeError("float64 is not supported")
    raise OSError("no driver")


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(48, 48)

    def forward(self, x, table, index):
        return self.proj(x) if index > 3 else x


@pytest.mark.parametrize(
    ("thing", "call", "says"),
    [
        (half_only, {}, "OSError: no driver"),  # of the precision that came further
        (Blocks, {}, "pass --call table=… --call index=…"),
        (Shifted, {"shift": "zeros(T, Q)"}, r"expected sizes of numbers and of B, T, S, C, H and D.*got 'Q'"),
    ],
)
def test_what_the_caller_has_to_say_is_in_the_error(thing, call, says):
    with pytest.raises(CheckError, match=says):
        regard.check(thing, call=call)


def test_a_file_of_a_package_is_named_as_a_module(tmp_path, monkeypatch, in_this_process):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "package" / "power.py").write_text("POWER = 0.5\n")
    (inner / "layer.py").write_text(
        "import torch\nfrom ..power import POWER\n\n"
        "def attend(q, k, v):\n    return torch.softmax(q @ k.mT / q.shape[-1] ** POWER, dim=-1) @ v\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run("package/inner/layer.py:attend")
    assert result.exit_code == 2
    assert result.output.strip().endswith("name it as a module: regard check package.inner.layer:attend")
    assert run("package.inner.layer:attend").exit_code == 0
    monkeypatch.chdir(inner)
    assert f"in the folder {os.path.join('..', '..')}: regard" in run("layer.py:attend").output
    (inner / "__init__.py").touch()  # a part of a package says less than the imports
    monkeypatch.chdir(tmp_path)
    assert "regard check package.inner.layer:attend" in run("package/inner/layer.py:attend").output


CONFIGURED = """
import torch
from torch import nn

class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.heads = config, config.vit_n_heads
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.qkv_bias)
        self.factor = config.vit_factor if hasattr(config, "vit_flavour") else 1.0

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
        return y.transpose(1, 2).reshape(B, T, C)

class Failing(Configured):
    def __init__(self, config):
        raise OSError(f"no checkpoint for {config.n_embd}")
"""


def test_a_field_of_a_configuration_that_cannot_be_guessed_is_named(folder):
    (folder / "configured.py").write_text(CONFIGURED)
    missing = run("configured.py:Configured").output
    assert "reads `config.vit_n_heads`, which cannot be guessed" in missing
    assert "--with vit_n_heads=…, or" in missing
    assert "Guessed" not in missing
    assert run("configured.py:Configured", "vit_n_heads=4").exit_code == 0
    failing = run("configured.py:Failing").output
    assert "a configuration) raised OSError: no checkpoint for 48" in failing
