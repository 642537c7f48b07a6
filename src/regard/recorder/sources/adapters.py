"""Any module as a source: `regard.capture(model, at={"encoder.attn": adapter})`.

An adapter is a function that looks at one call of a module and says what its attention was:

    def adapter(module, args, kwargs, output):
        q, k, v = …                                   # (B, H, T, D), (B, G, S, D), (B, G, S, E)
        return {"q": q, "k": k, "v": v, "output": …, "mask": regard.causal}

What it says is checked, not believed: without the output of the attention itself, before any projection,
nothing can be certified.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.inputs import check_inputs
from regard.override import override_attribute
from regard.recorder.attention_call import AttentionCall
from regard.recorder.recording import LayerId, Recording

Adapter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]
NEEDED, OPTIONAL = ("q", "k", "v"), ("output", "lse", "mask", "scale", "softcap", "sinks", "problem")


def places(model: nn.Module, at: Mapping[str, Adapter], first: int = 0) -> dict[str, tuple[LayerId, Adapter]]:
    """The modules that are named, in the order in which they stand in the model; a name may be a pattern."""
    names = [name for name, _ in model.named_modules()]
    chosen: dict[str, Adapter] = {}
    for pattern, adapter in at.items():
        if not callable(adapter):
            raise ValueError(
                f"at[{pattern!r}]: expected a function of (module, args, kwargs, output), "
                f"got {type(adapter).__name__}"
            )
        found = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
            raise ValueError(f"at: expected names of modules in the model, got {pattern!r}{hint}")
        chosen |= dict.fromkeys(found, adapter)
    ordered = [name for name in names if name in chosen]
    return {name: (LayerId(first + i, name), chosen[name]) for i, name in enumerate(ordered)}


@contextmanager
def attach(
    model: nn.Module, recording: Recording, at: Mapping[str, Adapter], first: int = 0
) -> Iterator[None]:
    """Ask the adapters at every call of their modules; on leaving, those are as they were."""
    modules, known = dict(model.named_modules()), places(model, at, first)
    recording.expect([place for place, _ in known.values()])
    with ExitStack() as undo:
        for name, (place, adapter) in known.items():
            module = modules[name]
            undo.enter_context(
                override_attribute(module, "forward", _asking(module, place, adapter, recording))
            )
        yield


def _asking(module: nn.Module, place: LayerId, adapter: Adapter, recording: Recording) -> Callable[..., Any]:
    forward = module.forward

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if recording.wants(place):
            with torch.no_grad():
                said = adapter(module, args, kwargs, result)
                if said is not None:  # None: this call was no attention
                    call = _understood(f"at[{place.name!r}]", said)
                    recording.take(place, call, against="the output that its adapter gave")
        return result

    return watched


def _understood(who: str, said: Any) -> AttentionCall:
    """What an adapter said, checked."""
    given = said._asdict() if hasattr(said, "_asdict") else said
    known = ", ".join(NEEDED) + " and, if there are any, " + ", ".join(OPTIONAL)
    if not isinstance(given, Mapping):
        raise ValueError(f"{who}: expected a dict of {known}, got {type(said).__name__}")
    given = {name: x for name, x in given.items() if x is not None}
    if unknown := sorted(given.keys() - {*NEEDED, *OPTIONAL}):
        raise ValueError(f"{who}: expected {known}, got also {', '.join(map(str, unknown))}")
    if missing := [name for name in NEEDED if name not in given]:
        raise ValueError(f"{who}: expected {known}; missing: {', '.join(missing)}")
    for name in (*NEEDED, "output", "lse"):
        x = given.get(name)
        rank = 3 if name == "lse" else 4
        if x is not None and (not isinstance(x, Tensor) or x.ndim not in (rank - 1, rank)):
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{who}: {name}: expected (batch, heads, length, width), got {came}")
        if x is not None and x.ndim == rank - 1:
            given[name] = x[None]  # one sequence, without a batch
    options: dict[str, Any] = {name: given.get(name) for name in ("mask", "scale", "softcap", "sinks")}
    try:
        _, mask, scale = check_inputs(given["q"], given["k"], given["v"], **options)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None
    options |= {"mask": mask, "scale": scale}
    computed, lse = attend(given["q"], given["k"], given["v"], **options, return_lse=True)
    problem = given.get("problem")
    if "output" not in given:
        problem = problem or "its adapter gives no output to compare with"
    elif given["output"].shape != computed.shape:
        raise ValueError(
            f"{who}: output: expected {tuple(computed.shape)}, before it is projected, "
            f"got {tuple(given['output'].shape)}"
        )
    if "lse" in given and given["lse"].shape != lse.shape:
        raise ValueError(f"{who}: lse: expected {tuple(lse.shape)}, got {tuple(given['lse'].shape)}")
    return AttentionCall(
        given["q"],
        given["k"],
        given["v"],
        given.get("output", computed),
        given.get("lse", lse),
        **options,
        own_lse="lse" in given,
        problem=problem,
    )
