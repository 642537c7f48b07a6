"""Which modules of a model mix tokens, told by behaviour: a change at one position is felt at others.

A module that only mixes because its children do is left out. What is felt at no more positions than the
convolutions inside it see is a convolution: its weights do not depend on the text, and are no attention.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_params", "past_buckets_states", "cache")
Call = tuple[tuple[Any, ...], dict[str, Any], Any]


@dataclass(frozen=True)
class Mixer:
    """A module whose output at one position depends on its input at another."""

    name: str
    kind: str  # its class
    convolution: bool  # a change is felt at no more positions than its kernels see


def mixers(model, case):
    """The innermost modules that mix tokens, and the names of those that could not be called again."""
    modules = dict(model.named_modules())
    found = {}
    untested = []
    for name, call in _calls(model, case).items():
        module = modules[name]
        if not _takes_tokens(module, call):
            continue
        try:
            felt = _felt(module, call)
        except Exception as error:
            untested.append(f"{name} ({type(module).__name__}): {type(error).__name__}: {str(error)[:80]}")
            continue
        if felt:
            found[name] = Mixer(name, type(module).__name__, felt < _kernel(module))
    innermost = [
        mixer for name, mixer in found.items() if not any(other.startswith(f"{name}.") for other in found)
    ]
    return innermost, untested


def _calls(model, case):
    """The first call of every module inside a repeated block, with copies of what went in."""
    calls = {}
    hooks = []

    def keep(name):
        def hook(module, args, kwargs, output):
            if name not in calls:
                calls[name] = (_copied(args), _copied(kwargs), _first(output))

        return hook

    for name, module in model.named_modules():
        repeated = any(part.isdigit() for part in name.split("."))
        if repeated and not isinstance(module, (nn.ModuleList, nn.Linear, nn.Embedding)):
            hooks.append(module.register_forward_hook(keep(name), with_kwargs=True))
    try:
        case.run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _copied(x):
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, dict):
        return {k: None if k in CACHES else _copied(v) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(_copied, x))
    return None if "Cache" in type(x).__name__ else x


def _first(output):
    """The first tensor of an output."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (list, tuple)):
        return next((x for x in output if isinstance(x, Tensor)), None)
    return None


def _sequences(module, call):
    """The arguments that are sequences of hidden states, (B, T, C) or (T, C), by position or name."""
    args, kwargs, _ = call
    widths = {m.in_features for m in module.modules() if isinstance(m, nn.Linear)}
    widths |= {m.weight.shape[0] for m in module.modules() if type(m).__name__ == "Conv1D"}
    widths |= {
        m.weight.shape[0] for m in module.modules() if isinstance(m, nn.LayerNorm) and m.elementwise_affine
    }
    arguments = [*enumerate(args), *kwargs.items()]
    return [
        (key, x)
        for key, x in arguments
        if isinstance(x, Tensor)
        and x.dtype.is_floating_point
        and x.ndim in (2, 3, 4)
        and x.shape[-1] in widths
        and x.shape[-2] > 2
        and "position" not in str(key)
        and "mask" not in str(key)
        and "bias" not in str(key)
    ]


def _takes_tokens(module, call):
    """Whether hidden states go in and come out, position by position."""
    sequences, output = _sequences(module, call), call[2]
    if not sequences or output is None or not output.dtype.is_floating_point:
        return False
    first = sequences[0][1]
    return output.ndim == first.ndim and output.shape[:-1] == first.shape[:-1]


def _felt(module, call):
    """At how many other positions a change at one position is felt."""
    args, kwargs, _ = call
    base = _again(module, args, kwargs)
    if not bool(base.isfinite().all()):
        raise ValueError("its output is not finite")
    most = 0
    for order, (key, x) in enumerate(_sequences(module, call)):
        middle = tuple(n // 2 for n in x.shape[:-1])
        changed = x.clone()
        noise = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(3))
        changed[middle] += noise * max(float(x.std()), 0.1)
        if isinstance(key, int):
            other = _again(module, (*args[:key], changed, *args[key + 1 :]), kwargs)
        else:
            other = _again(module, args, kwargs | {key: changed})
        moved = (other - base).abs().amax(-1) > 1e-4 * float(base.abs().max())  # (B, T)
        if moved.shape == x.shape[:-1]:
            if x.ndim > 2:
                moved = moved[middle[0]]  # other entries of the batch are no other positions of the text
            most = max(most, int(moved.sum()) - 1)
        elif order and int(moved.sum()) > 1:
            most = max(most, moved[0].numel())
    return most


def _again(module, args, kwargs):
    """The module's output once more, from copies, without caches."""
    names = inspect.signature(module.forward).parameters
    kwargs = _copied(kwargs)
    if "use_cache" in names and kwargs.get("use_cache"):
        kwargs["use_cache"] = False
    torch.manual_seed(0)
    with torch.no_grad():
        output = _first(module(*_copied(args), **kwargs))
    if output is None:
        raise ValueError("it gave no tensor")
    return output


def _kernel(module):
    """How many positions the convolutions inside a module see together; 0 without any."""
    convolutions = [m for m in module.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d))]
    reach = sum((max(m.kernel_size) - 1) * max(m.dilation) for m in convolutions)
    return (reach + 1) ** max((len(m.kernel_size) for m in convolutions), default=1) if convolutions else 0
