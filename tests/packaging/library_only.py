"""The library with torch, NumPy and safetensors alone: run by test_wheel.py in a clean environment."""

import sys
import tempfile
from pathlib import Path

import torch

import regard
from regard.checker import CATALOGUE
from regard.checker.examples import PROPERTY_TESTS, example_program
from regard.gpt import GPT
from regard.heads import describe
from regard.layers import Attention

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp(dir="."))

# Attention without the matrix, and the matrix that nobody stores.
q, k, v = torch.randn(3, 1, 2, 12, 8)
output = regard.attend(q, k, v, mask=regard.causal)
m = regard.attention_map(q, k, mask=regard.causal)
torch.testing.assert_close(m.to_dense() @ v, output)
torch.testing.assert_close(output, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
m.save(folder / "map.safetensors")
torch.testing.assert_close(regard.load(folder / "map.safetensors").to_dense(), m.to_dense())

# Layers.
assert Attention(16, 4)(torch.randn(1, 5, 16)).shape == (1, 5, 16)

# Capture, save, load, a page, and a table of heads.
encoder = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
with regard.capture(encoder) as seen, torch.no_grad():
    encoder(torch.randn(1, 7, 16))
assert seen.certificate.certified
assert seen[0].shape == (1, 4, 7, 7)
seen.save(folder / "capture")
torch.testing.assert_close(regard.load(folder / "capture")[0].to_dense(), seen[0].to_dense())
seen.to_html(folder / "page.html")
assert (folder / "page.html").stat().st_size > 10_000
table = describe([m], torch.randint(9, (1, 12)))
assert len(table) == 2
assert "entropy" in str(table)  # a table prints without Rich
table.save(folder / "heads.csv")

# The checker, in this process.
assert regard.check(torch.nn.functional.scaled_dot_product_attention).ok
assert "softmax" in example_program(CATALOGUE["no-scale"])  # its catalogue and programs are data files
assert PROPERTY_TESTS["rows-sum-to-one"].codes


# What needs more says what to install.
def complaint(ask):
    try:
        ask()
    except ImportError as error:
        return str(error)
    return "nothing was missing"


for ask in (
    lambda: regard.plot(m[0, 0]),
    lambda: regard.causal.plot(8),
    lambda: seen.figure(0, 0),
    lambda: seen.show(),
    lambda: GPT.from_pretrained("default"),
):
    said = complaint(ask)
    assert said.endswith('which is not installed: pip install "regard[app]"'), said

optional = {"matplotlib", "rich", "starlette", "tokenizers", "transformers", "typer", "uvicorn", "triton"}
assert not optional & set(sys.modules)
assert "site-packages" in regard.__file__
print("regard", regard.__version__, "works")
