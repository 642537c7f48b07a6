"""Attack with odd tensors: every public entrance that takes a tensor gets sparse, nested, quantised, 8-bit,
complex, meta, fake, empty and misshapen ones.

Either the call is served, and the result is that of the same values in an ordinary tensor; or it raises one
ValueError, TypeError or IndexError of our own, in one line that names the argument and says what was
expected or what to pass.
"""

import random
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import heads
from regard.attention.masks.named_masks import as_mask
from regard.attention.steps import trace
from regard.checker import measure_visibility
from regard.gpt import GPT, Config
from regard.layers import Attention, KVCache, Rotary
from tests import truth
from tests.attack.progress import counted

DRAWS = 4000
REFUSALS = (ValueError, TypeError, IndexError)
FLOAT8 = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
FAKE_MODE = FakeTensorMode()


class PlainSubclass(Tensor):
    """A subclass that computes as tensors do."""


def _inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape) if x.ndim else x


# Ordinary in their values, whatever they look like: these must be served.
SERVED: dict[str, Callable[[Tensor], Any]] = {
    "plain": lambda x: x,
    "parameter": lambda x: torch.nn.Parameter(x) if x.is_floating_point() else x,
    "subclass": lambda x: x.as_subclass(PlainSubclass),
    "not contiguous": lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "transposed in memory": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.ndim > 1 else x,
    "expanded": _expanded,
    "negative bit": lambda x: torch.complex(x, -x).conj().imag if x.dtype == torch.float32 else x,
    "inference": _inference,
    "needs a gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
}
# These may be refused.
ODD: dict[str, Callable[[Tensor], Any]] = {
    **{str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in FLOAT8},  # type: ignore[misc]
    "meta": lambda x: x.to("meta"),
    "COO": lambda x: x.to_sparse(),
    "CSR": lambda x: x.to_sparse_csr(),
    "CSC": lambda x: x.to_sparse_csc(),
    "oneDNN": lambda x: x.to_mkldnn(),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "quantised by channel": lambda x: torch.quantize_per_channel(
        x.float(), torch.ones(len(x)), torch.zeros(len(x)), 0, torch.qint8
    ),
    "jagged": lambda x: torch.nested.nested_tensor([*x], layout=torch.jagged),
    "nested": lambda x: torch.nested.nested_tensor([*x]),
    "masked": lambda x: torch.masked.masked_tensor(x.float(), x.float() > -9),
    "fake": lambda x: FAKE_MODE.from_tensor(x),
    "complex": lambda x: x.to(torch.complex64),
    "complex conjugate": lambda x: x.to(torch.complex64).conj(),
    "complex half": lambda x: x.to(torch.complex32),
    "whole": lambda x: x.long(),
    "unsigned": lambda x: x.abs().to(torch.uint16),
    "boolean": lambda x: x > 0,
    "other float": lambda x: x.double(),
    "half": lambda x: x.bfloat16(),
    "array": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "text": lambda x: "tensor",
    "nothing": lambda x: None,
    "number": lambda x: 1.5,
    "0-d": lambda x: torch.tensor(1.5),
    "1-d": lambda x: x.flatten(),
    "one more dimension": lambda x: x.unsqueeze(0),
    "one dimension less": lambda x: x[0] if x.ndim else x,
    "no entries": lambda x: x[:0] if x.ndim else x,
    "no width": lambda x: x[..., :0] if x.ndim else x,
    "too long": lambda x: torch.cat([x, x], -2) if x.ndim > 1 else torch.cat([x, x]),
    "NaN": lambda x: x * torch.nan,
    "infinite": lambda x: x * torch.inf,
}

_layer = Attention(8, 2, rotary=Rotary(4), mask=regard.causal).requires_grad_(False)
_model = GPT(Config(vocab_size=11, context_length=16, num_layers=1, d_model=8, num_heads=2)).requires_grad_(
    False
)


def _detached(x: Any) -> Any:
    """A result without its gradient graph, for comparison."""
    if isinstance(x, Tensor):
        return x.detach().as_subclass(Tensor)
    return tuple(map(_detached, x)) if isinstance(x, tuple) else x


def _map_results(m: regard.AttentionMap) -> tuple[Any, ...]:
    """Everything that a map computes."""
    T, S = m.shape[-2:]
    cells = min(T, 2), min(S, 2)
    results: list[Any] = [m.to_dense(), m.tile(slice(None)), m[..., :1], m[..., 0, :], m[:1].to_dense()]
    results += [*m.pool(*cells, "both"), *m.summary(*cells), *m.statistics()]  # type: ignore[misc]
    results += [m.topk(max(cells[1], 1)).values, m.diagonal(), m.mass(regard.window(2)), m.precise_lse()]
    return tuple(results)


Call = tuple[Callable[..., Any], dict[str, Tensor]]


def entrances(rng: random.Random) -> dict[str, Call]:
    """Functions by name, each with the ordinary tensors that it takes."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    qkv = {"q": normal(2, 4, 3, 8), "k": normal(2, 2, 5, 8), "v": normal(2, 2, 5, 6)}
    qk = {name: qkv[name] for name in "qk"}
    fixed = regard.attention_map(**qk)
    square = regard.attention_map(normal(2, 2, 5, 8), normal(2, 2, 5, 8), mask=regard.causal)
    mask = rng.choice([None, regard.causal, regard.causal & regard.window(2), regard.padding([5, 2])])
    backend = rng.choice(["auto", "tiled", "steps"])
    options: dict[str, Any] = {"softcap": rng.choice([None, 2.0]), "scale": rng.choice([None, -0.5])}
    positions = torch.arange(3)
    ids = torch.randint(0, 11, (2, 5), generator=generator)
    index = torch.tensor([0, 2])
    same = {name: normal(2, 2, 6, 8) for name in "qkv"}

    def attend_all(q: Any, k: Any, v: Any, sinks: Any, bias: Any) -> Any:
        return regard.attend(q, k, v, mask=bias, sinks=sinks, return_lse=True, **options)

    return {
        "attend": (
            lambda **x: regard.attend(**x, mask=mask, backend=backend, return_lse=True, **options),
            qkv,
        ),
        "attend with a bias": (attend_all, qkv | {"sinks": normal(4), "bias": normal(3, 5)}),
        "which_backend": (lambda **x: regard.which_backend(**x, mask=mask, **options).backend, qkv),
        "scaled_dot_product_attention": (
            lambda **x: regard.scaled_dot_product_attention(**x, mask=mask, **options),
            qkv,
        ),
        "trace": (lambda **x: tuple(trace(**x, mask=mask, **options)), qkv),
        "attention_map": (lambda **x: _map_results(regard.attention_map(**x, mask=mask, **options)), qk),
        "attention_map with lse": (
            lambda **x: _map_results(regard.attention_map(**x)),
            qk | {"lse": fixed.lse, "sinks": normal(4)},
        ),
        "map @ v": (lambda v: fixed @ v, {"v": qkv["v"]}),
        "map[rows]": (lambda index: fixed[:, :, index], {"index": index}),
        "map[keys]": (lambda index: fixed[..., index], {"index": index}),
        "map.tile": (lambda rows, keys: fixed.tile(rows, keys), {"rows": index, "keys": index}),
        "map.mass": (lambda rule: fixed.mass(regard.tensor_mask(rule)), {"rule": normal(3, 5) > 0}),
        "tensor_mask": (
            lambda mask: regard.attend(**qkv, mask=regard.tensor_mask(mask)),
            {"mask": rng.choice([normal(3, 5), normal(3, 5) > 0, normal(2, 1, 3, 5)])},
        ),
        "padding": (
            lambda marks: regard.attend(**qkv, mask=regard.padding(marks)),
            {"marks": rng.choice([normal(2, 5) > 0, torch.tensor([5, 2])])},
        ),
        "documents": (lambda ids: regard.attend(**qkv, mask=regard.documents(ids)), {"ids": ids}),
        "Attention": (
            lambda x, context: _layer(x, context, mask=regard.full),
            {"x": normal(2, 3, 8), "context": normal(2, 5, 8)},
        ),
        "Attention with positions": (
            lambda x, positions: _layer(x, positions=positions),
            {"x": normal(2, 3, 8), "positions": positions},
        ),
        "Attention with a cache": (lambda x: _layer(x, cache=KVCache()), {"x": normal(2, 3, 8)}),
        "Rotary": (
            lambda x, positions: Rotary(4)(x, positions),
            {"x": normal(2, 3, 8), "positions": positions},
        ),
        "KVCache": (lambda k, v: KVCache().update(k, v), {"k": qkv["k"], "v": qkv["v"]}),
        "GPT": (lambda input_ids: _model(input_ids), {"input_ids": ids}),
        "GPT with a mask": (
            lambda input_ids, attention_mask: _model(input_ids, attention_mask=attention_mask),
            {"input_ids": ids, "attention_mask": torch.ones(2, 5, dtype=torch.bool)},
        ),
        "GPT.maps": (lambda input_ids: _model.maps(input_ids)[0].to_dense(), {"input_ids": ids}),
        "heads.scores": (lambda ids: tuple(heads.scores(square, ids)), {"ids": ids}),
        "measure_visibility": (lambda **x: len(measure_visibility(**x).mistakes), same),
    }


def check_call(
    name: str, function: Callable[..., Any], tensors: dict[str, Tensor], odd: dict[str, str]
) -> str:
    """Call with some tensors made odd: "served", "refused", or "not made" if PyTorch has no such tensor."""
    arguments: dict[str, Any] = dict(tensors)
    for argument, kind in odd.items():
        try:
            arguments[argument] = (SERVED | ODD)[kind](tensors[argument])
        except Exception:  # a jagged tensor of one dimension, for example
            return "not made"
    try:
        result = function(**arguments)
    except REFUSALS as error:
        refusal = error
    else:
        _check_served(name, function, arguments, odd, result)
        return "served"
    _check_refusal(f"{name}, {odd}", refusal, set(odd.values()))
    return "refused"


def _check_refusal(what: str, error: Exception, kinds: set[str]) -> None:
    """It comes from our code, in one line that says what was expected, and not for ordinary tensors."""
    ours = "regard" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
    assert ours, f"{what}: {type(error).__name__}: {error}"
    assert re.match(r"\w[^:]*: ", str(error)), f"{what}, without the argument: {error}"
    assert "expected" in str(error) or "pass " in str(error), f"{what}, without a way out: {error}"
    assert len(str(error).splitlines()) == 1, f"{what}: {error}"
    gradient = "inference" in kinds and kinds & {"parameter", "needs a gradient"}
    assert gradient or not kinds <= set(SERVED), f"{what}, an ordinary tensor: {error}"


def _check_served(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], odd: dict[str, str], result: Any
) -> None:
    """What was served is what plain tensors with the same values give."""
    if "meta" in odd.values():
        return  # shapes only
    plain = {
        argument: x.detach().as_subclass(Tensor).resolve_neg().clone() if isinstance(x, Tensor) else x
        for argument, x in arguments.items()
    }
    for a, b in zip(_leaves(result), _leaves(function(**plain)), strict=True):
        if isinstance(a, Tensor):
            assert a.shape == b.shape, f"{name}, {odd}: {tuple(a.shape)}, expected {tuple(b.shape)}"
            close = torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
            assert close, f"{name}, {odd}: not the result of a plain tensor"
        else:
            assert a == b, f"{name}, {odd}: {a}, expected {b}"


def _leaves(result: Any) -> list[Any]:
    """The tensors and other values of a result, without gradients."""
    result = _detached(result)
    return list(result) if isinstance(result, tuple) else [result]


def check_empty(rng: random.Random) -> None:
    """A map of any sizes, 0 among them, is like a tensor of that shape; without keys its rows are zeros."""
    B, G, group, T, S = (rng.choice([0, 0, 1, 3]) for _ in range(5))
    group, H = max(group, 1), G * max(group, 1)
    E, softcap = rng.choice([0, 1, 4]), rng.choice([None, 2.0])
    q, k, v = torch.randn(B, H, T, 4), torch.randn(B, G, S, 4), torch.randn(B, G, S, E)
    sinks = rng.choice([None, torch.randn(H)])
    masks = [None, regard.causal, regard.window(2) | regard.prefix(1), regard.padding([1] * B)]
    masks += [torch.ones(T, S, dtype=torch.bool), torch.zeros(B, 1, T, S), regard.chunks(2) & ~regard.causal]
    mask = rng.choice(masks)
    options: dict[str, Any] = {"mask": mask, "softcap": softcap, "sinks": sinks}
    what = f"sizes {(B, H, G, T, S, E)}, mask {mask}"
    m = regard.attention_map(q, k, **options)
    dense, shape = m.to_dense(), (B, H, T, S)
    allowed = as_mask(mask).tile(range(T), range(S), shape).expand(shape)
    right = truth.attention(q, k, v, allowed, softcap=softcap, sinks=sinks)
    assert m.shape == dense.shape == shape, what
    assert truth.error(dense, right.weights) < 1e-5, what
    for backend in ("auto", "steps"):
        output, lse = regard.attend(q, k, v, return_lse=True, backend=backend, **options)
        assert output.shape == (B, H, T, E), what
        assert lse.shape == (B, H, T), what
        assert truth.error(output, right.output) < 1e-5, what
    assert truth.error(m @ v, right.output) < 1e-5, what
    for index in _indices(rng, shape):
        found = m[index]
        found = found.to_dense() if isinstance(found, regard.AttentionMap) else found
        assert found.shape == dense[index].shape, f"{what}, index {index}"
        assert torch.allclose(found, dense[index], atol=1e-6), f"{what}, index {index}"
    cells = min(T, 2), min(S, 2)
    summary = m.summary(*cells)
    assert m.pool(*cells).shape == summary.mass.shape == summary.max.shape == (B, H, *cells), what  # type: ignore[union-attr]
    assert all(x.shape == (B, H, n) for x, n in zip(m.statistics(), (T, T, S, T), strict=True)), what
    assert m.topk(max(S, 1)).values.shape == (B, H, T, max(S, 1)), what
    assert m.diagonal().shape == dense.diagonal(dim1=-2, dim2=-1).shape, what
    assert m.mass(regard.window(2)).shape == (B, H, T), what
    with tempfile.TemporaryDirectory() as folder:
        m.save(Path(folder) / "map.safetensors")
        assert torch.equal(regard.load(Path(folder) / "map.safetensors").to_dense(), dense), what


def _indices(rng: random.Random, shape: tuple[int, int, int, int]) -> list[Any]:
    """Indices that a tensor of this shape takes."""
    indices: list[Any] = [..., slice(0, 0), (slice(None), slice(None), slice(0, 0))]
    choices = [[slice(None), slice(0, 0), slice(0, 1)] + ([rng.randrange(n)] if n else []) for n in shape]
    return [*indices, tuple(rng.choice(choice) for choice in choices)]


def attack(draws: int, seed: int) -> dict[str, int | float]:
    """Make `draws` calls with odd tensors and a quarter as many with empty ones."""
    figures: dict[str, int | float] = {"served": 0, "refused": 0, "not made": 0, "empty": 0}
    for number in counted(draws, "calls"):
        rng = random.Random(f"tensors {seed} {number}")
        name, (function, tensors) = rng.choice(list(entrances(rng).items()))
        kinds = rng.choice([list(SERVED), list(ODD)])
        chosen = rng.sample(list(tensors), rng.randint(1, len(tensors)))
        kind = rng.choice(kinds)
        odd = {argument: kind if rng.random() < 0.7 else rng.choice(kinds) for argument in chosen}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's, of prototypes and of conversions that lose parts
                figures[check_call(name, function, tensors, odd)] += 1
                if number % 4 == 0:
                    torch.manual_seed(number)
                    check_empty(rng)
                    figures["empty"] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, draw {number}: {name}, {odd}: {error!r}") from error
    return figures
