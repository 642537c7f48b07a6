"""Finding a module's projections: which weights make queries, keys, values and the output.

They are sought by name: separate layers, a fused qkv in its usual orders, GPT-2's Conv1D, bare parameters,
one set for each head of a list, `nn.MultiheadAttention`. The results are candidates, most plausible first.
None of them is trusted: a candidate counts only once the oracle has reproduced the module's numbers with
it. What has no such names is found by its numbers, in `inside`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.oracle.wiring import Affine, Wiring
from regard.checker.subject import vocabulary

_ROLES = ("query", "key", "value")
_NORM = re.compile(r"(^|\.)(q|k|query|key)_?(norm|ln|layernorm|layer_norm)$")


@dataclass(frozen=True)
class _Weight:
    """One weight of the module, and the matrices (in, out) that it may represent."""

    path: str
    matrices: tuple[Tensor, ...]
    bias: Tensor | None
    role: str | None


def find_wirings(
    module: nn.Module, *, heads: int | None = None, declared: float | None = None
) -> list[Wiring]:
    """Return the possible wirings of a module's weights, most plausible first; at most 96.

    Arguments:
        module: the module.
        heads: the number of heads, if the caller stated it.
        declared: the scale, if it is declared.
    """
    weights = list(_weights(module))
    extras = _find_extras(module, [weight.path for weight in weights])
    by_role: dict[str | None, list[_Weight]] = {}
    for weight in weights:
        by_role.setdefault(weight.role, []).append(weight)
    wirings: list[Wiring] = []
    outs: list[Affine | None] = [
        affine for weight in by_role.get("out", [])[-1:] for affine in _affines(weight)
    ]
    outs = outs or [None]
    for query, key, value, joined in _candidates(by_role, module, heads):
        for out in outs:
            for H in head_counts(module, heads, joined, query.weight.shape[1]):
                if (wiring := _wire(query, key, value, out, H)) is not None:
                    wirings.append(replace(wiring, scale=declared, **extras))
    return wirings[:96]


def _wire(query: Affine, key: Affine, value: Affine, out: Affine | None, H: int) -> Wiring | None:
    """Return the wiring with H heads, or None if the widths do not allow it."""
    if query.weight.shape[1] % H:
        return None
    D = query.weight.shape[1] // H
    G, rest = divmod(key.weight.shape[1], D)
    if rest or G == 0 or H % G or value.weight.shape[1] % G:
        return None
    merged = value.weight.shape[1] // G * H
    if out is not None and out.weight.shape[0] != merged:
        return None
    return Wiring(H, G, query, key, value, out, splits=True, width=query.weight.shape[0])


def _weights(module: nn.Module) -> Iterator[_Weight]:
    """Yield every weight that may be a projection, with its bias."""
    # Tied weights are one tensor with two names, each of which may be a role.
    parameters = dict(module.named_parameters(remove_duplicate=False))
    layers = dict(module.named_modules(remove_duplicate=False))
    for path, weight in parameters.items():
        owner_path, _, name = path.rpartition(".")
        in_norm = any(_NORM.search(path[: match.start()]) for match in re.finditer(r"\.|$", path))
        if weight.ndim not in (2, 3, 4) or in_norm or _bias_role(path) is not None:
            continue
        fused = weight.ndim == 4 and weight.shape[0] == 3  # (3, H, C, D) or (3, C, H, D)
        role = "qkv" if fused else vocabulary.projection(path)
        owner = layers[owner_path]
        layer = name == "weight" and owner is not module
        bias: Tensor | None = parameters.get(f"{owner_path}.bias") if layer else None
        bias = _bare_bias(parameters, path, role) if bias is None else bias
        if matrices := tuple(_matrices(weight, owner if layer else None, role)):
            yield _Weight(path, matrices, bias, role)


def _bare_bias(parameters: dict[str, nn.Parameter], path: str, role: str | None) -> Tensor | None:
    """Return the bias that belongs to a bare parameter: the other one of its layer, or of the same role."""
    place = path.rpartition(".")[0]
    beside = {p: x for p, x in parameters.items() if p.rpartition(".")[0] == place and p != path}
    # `kernel` and `offset`, or `w` and `b` in the Conv1D of openai/finetune-transformer-lm.
    if place and len(beside) == 1:
        return next(iter(beside.values())).flatten()
    for other, tensor in beside.items():
        if tensor.ndim <= 2 and role is not None and _bias_role(other) == role:
            return tensor.flatten()  # (H·D,), or (H, D) beside (H, C, D)
        if tensor.ndim == 1 and role in _ROLES and _bias_role(other) == "qkv":
            return tensor.chunk(3)[_ROLES.index(role)]  # one bias beside three weights: nn.MultiheadAttention
    return None


def _bias_role(path: str) -> str | None:
    name = path.rpartition(".")[2]
    bare = re.sub(r"_?bias$", "", name, flags=re.I) if re.search(r"bias$", name, re.I) else None
    if bare is None and re.match(r"b_?[a-z]+$", name, re.I):
        bare = "W_" + re.sub(r"^b_?", "", name, flags=re.I)
    return vocabulary.projection(bare) if bare else None


def _matrices(weight: Tensor, layer: nn.Module | None, role: str | None) -> Iterator[Tensor]:
    """Yield the matrices (in, out) that a weight may represent."""
    if weight.ndim == 4:
        if weight.shape[0] == 3:
            yield weight.permute(2, 0, 1, 3).flatten(1)
            yield weight.permute(1, 0, 2, 3).flatten(1)
    elif weight.ndim == 3:
        if role == "out":  # (H, D, C) or (C, H, D)
            yield weight.flatten(0, 1)
            yield weight.flatten(1, 2).mT
        else:  # (H, C, D) or (C, H, D)
            yield weight.transpose(0, 1).flatten(1, 2)
            yield weight.flatten(1, 2)
    # By name: GPT-2's Conv1D, which stores (in, out), is copied into many repositories.
    elif layer is not None and type(layer).__name__ == "Conv1D":
        yield weight
    elif isinstance(layer, nn.Linear):
        yield weight.mT
    elif role == "qkv":  # a bare fused weight is wider the way it multiplies out
        yield weight.mT if weight.shape[0] > weight.shape[1] else weight
    else:
        yield weight
        yield weight.mT


def _candidates(
    by_role: dict[str | None, list[_Weight]], module: nn.Module, heads: int | None
) -> Iterator[tuple[Affine, Affine, Affine, int | None]]:
    """Yield query, key and value layers, and the number of heads they were joined from, or None."""
    separate = [_join(by_role.get(role, [])) for role in _ROLES]
    fused, pair = by_role.get("qkv", []), by_role.get("kv", [])
    if all(separate):
        # Bare square weights are x @ W for all three, or x @ W.T for all.
        for way in range(max(len(role) for role in separate)):
            (q, joined), (k, _), (v, _) = (role[min(way, len(role) - 1)] for role in separate)
            yield q, k, v, joined
    elif len(fused) == 1:
        for affine in _affines(fused[0]):
            for H in head_counts(module, heads, None, affine.weight.shape[1]):
                for channels in _orders(affine.weight.shape[1], H):
                    query, key, value = (_pick(affine, index) for index in channels)
                    yield query, key, value, None
    elif separate[0] and len(pair) == 1:
        for affine, (query, joined) in itertools.product(_affines(pair[0]), separate[0]):
            key, value = (_pick(affine, half) for half in torch.arange(affine.weight.shape[1]).chunk(2))
            yield query, key, value, joined


def _join(weights: list[_Weight]) -> list[tuple[Affine, int | None]]:
    """Return one layer from one weight, or from the same weight of every head in a list, concatenated."""
    if len(weights) < 2:
        return [(affine, None) for weight in weights for affine in _affines(weight)]
    matrices = [weight.matrices[0] for weight in weights]
    # Several weights of one role are those of a list of heads only if their paths are numbered.
    numbered = all(re.search(r"\d", weight.path) for weight in weights)
    if not numbered or len({matrix.shape for matrix in matrices}) > 1:
        return []
    biases = [weight.bias for weight in weights if weight.bias is not None]
    bias = torch.cat(biases) if len(biases) == len(weights) else None
    return [(Affine(torch.cat(matrices, 1), bias), len(weights))]


def _affines(weight: _Weight) -> Iterator[Affine]:
    for matrix in weight.matrices:
        fits = weight.bias is not None and weight.bias.numel() == matrix.shape[1]
        yield Affine(matrix, weight.bias.flatten() if fits and weight.bias is not None else None)


def head_counts(module: nn.Module, heads: int | None, joined: int | None, width: int) -> list[int]:
    """Return the possible numbers of heads in a width: stated, joined from a list, named, or any."""
    if heads is not None or joined is not None:
        return [heads or joined or 1]
    # Many layers of Transformers have the number of heads in their configuration alone.
    parts = [vars(part) for part in (*module.modules(), getattr(module, "config", None)) if part is not None]
    named = [vocabulary.sizes(part).get("heads") for part in parts]
    stated = [n for n in named if type(n) is int and n > 0]
    return stated[:1] or [1] + [n for n in range(2, min(width, 33)) if width % n == 0]


def _orders(total: int, H: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the channels of queries, keys and values in a fused projection, in every usual order."""
    channels = torch.arange(total)
    if total % 3 == 0 and (total // 3) % H == 0:
        D = total // 3 // H
        # GPT-2 fuses as (3, H, D) and GPT-NeoX as (H, 3, D).
        for order, shape in itertools.product(
            itertools.permutations(range(3)), ((3, H, D), (H, 3, D), (H, D, 3))
        ):
            parts = channels.view(shape).movedim(shape.index(3), 0)
            yield tuple(parts[i].flatten() for i in order)
    for G in (n for n in range(1, H) if H % n == 0 and total % (H + 2 * n) == 0):
        D = total // (H + 2 * G)
        # GPTBigCode (StarCoder) fuses all queries, one key and one value.
        yield torch.split(channels, [H * D, G * D, G * D])
        # Falcon's newer layers fuse each group's queries, then its key and value.
        groups = channels.view(G, H // G + 2, D)
        yield groups[:, :-2].flatten(), groups[:, -2].flatten(), groups[:, -1].flatten()


def _pick(affine: Affine, index: Tensor) -> Affine:
    return Affine(affine.weight[:, index], None if affine.bias is None else affine.bias[index])


def _find_extras(module: nn.Module, weights: list[str]) -> dict[str, Any]:
    """Return the fields of `Wiring` beside projections: norms, rotation, sinks, and names of unknown parts.

    `weights` are the paths of the weights that may be projections.
    """
    extras: dict[str, Any] = {}
    recognised: list[str] = []
    for path, part in module.named_modules():
        if (match := _NORM.search(path)) is not None:
            extras["query_norm" if match.group(2).startswith("q") else "key_norm"] = _norm_of(part)
            recognised.append(path)
    # The sink logits of gpt-oss have this name.
    if isinstance(sinks := getattr(module, "sinks", None), Tensor) and sinks.ndim == 1:
        extras["sinks"] = sinks
        recognised.append("sinks")
    unknown = []
    for path, tensor in itertools.chain(module.named_parameters(), _positional(module)):
        known = any(f"{path}.".startswith(f"{prefix}.") for prefix in recognised)
        role = vocabulary.projection(path)
        is_bias = tensor.ndim <= 2 and "norm" not in path.lower() and (role or _bias_role(path)) is not None
        if not known and not is_bias and (role is None or path not in weights):
            unknown.append(path)
    return extras | {"unknown": tuple(unknown)}


def _norm_of(part: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a norm that computes in the dtype of its own parameters, whatever it is given."""

    def norm(x: Tensor) -> Tensor:
        dtype = next((p.dtype for p in part.parameters()), x.dtype)
        normed: Tensor = part(x.to(dtype))
        return normed.to(x.dtype)

    return norm


def _positional(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield buffers and attributes named after positions: rotary tables, slopes, relative biases."""
    pattern = re.compile(
        r"freq|rope|rotary|^cos|^sin|\bcos\b|\bsin\b|alibi|slope|relative|rel_pos|pos_emb|theta", re.I
    )
    for path, tensor in module.named_buffers():
        if pattern.search(path):
            yield path, tensor
    for name, value in vars(module).items():
        if pattern.search(name) and not isinstance(value, nn.Module) and value is not None:
            yield name, value if isinstance(value, Tensor) else torch.zeros(())
    yield from ((name, torch.zeros(())) for name, _ in module.named_modules() if pattern.search(name))
