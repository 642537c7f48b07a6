"""Functions that are called in a layout of their own, judged by the names of their arguments.

Kernels are one kind. Others are called by Transformers and FlexAttention: those of `AttentionInterface` and
of Transformers' mask interface, `mask_mod(b, h, q_idx, kv_idx)` and `score_mod(score, b, h, …)`. Running the
code verifies the guess: without a GPU, `TRITON_INTERPRET=1 regard check kernel.py:attend` runs kernels on the
CPU.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT, CaseSizes, past
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import to_device
from regard.checker.subject.kernel_layouts import KernelLayout, TensorLayout, find_optional, find_shape
from regard.checker.subject.vocabulary import is_required, missing_argument, parameters_of

_OPTIONS = {"causal", "window", "softcap", "scale", "lse", "mask", "dropout", "training", "weights", "sinks"}
_OPTIONS |= {"splits", "left window", "right window"}
_MODS = (("b", "batch", "batch_idx"), ("h", "head", "head_idx"), ("q_idx", "q", "query_idx", "q_index"))
# Lengths of this name belong to a cache. `lengths` beside q, k and v may mean padding.
_CACHE_LENGTHS = re.compile(r"^(context|cache)_(len|length|seqlen)s$|^seqused_k$")
# Several queries come before one, so that code that takes several is tried on several.
_QUERY_FORMS: tuple[tuple[str, bool], ...] = (
    ("BTHD", False),
    ("BHTD", False),
    ("BHD", False),
    ("BTHD", True),
    ("BHTD", True),
)
_MEANINGS, _MASK_MEANINGS = map(vocabulary.meanings, ("kernels", "masks"))


def recognize_layouts(
    function: Callable[..., Any], init: dict[str, Any]
) -> tuple[list[KernelLayout], dict[str, str]] | None:
    """Return the layouts that a function may take, likeliest first, and its options by their meaning.

    None if it takes plain tensors. `init` are the arguments that the caller gave.
    """
    parameters = parameters_of(function)
    order = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if (mod := _mod(order)) is not None:
        return [mod], {}
    layouts: list[KernelLayout]
    options: dict[str, str] = {}
    # Every mask function of Transformers takes these two.
    if "mask_function" in order and "kv_length" in order:
        layouts = [MaskInterfaceLayout(vocabulary.by_meaning(order, _MASK_MEANINGS.get))]
        options = {"causal": "mask_function", "mask": "mask_function"}
        if "padding" in layouts[0].names:
            options["padding"] = layouts[0].names["padding"]
    else:
        names = vocabulary.by_meaning(order, _MEANINGS.get)
        layouts = _candidates(names, parameters, order)
        if not layouts:
            return None
        given = [*order, *_read_from_keywords(function, parameters)]
        meanings = {name: _MEANINGS.get(name) or vocabulary.argument(name) for name in given}
        asked = [name for name in given if meanings[name] in _OPTIONS and name not in init]
        options = vocabulary.by_meaning(asked, meanings.get)
        scale = options.get("scale")
        if scale is not None and (scale not in parameters or is_required(parameters[scale])):
            layouts = [replace(layout, names=layout.names | {"scale": scale}) for layout in layouts]
    for name, parameter in parameters.items():
        if is_required(parameter) and name not in {*layouts[0].names.values(), *options.values(), *init}:
            raise CheckError(missing_argument(getattr(function, "__name__", "the kernel"), name))
    return layouts, options


def _read_from_keywords(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names that a function takes out of its `**kwargs`, read from its source text.

    A sink logit that it takes from the module it is called with is one of them.
    """
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    try:
        source = inspect.getsource(function) if rest is not None else ""
    except (OSError, TypeError):
        return []
    names: list[str] = re.findall(rf"\b{rest}(?:\.get\(|\.pop\(|\[)\s*[\"'](\w+)", source)
    # Transformers hands the sink logits of gpt-oss over as `s_aux`.
    sinks = ["s_aux"] if "module.sinks" in source else []
    return [name for name in names if vocabulary.argument(name) != "weights"] + sinks


def _candidates(
    names: dict[str, str], parameters: dict[str, inspect.Parameter], order: list[str]
) -> list[KernelLayout]:
    """Return the layouts that fit the names, likeliest first."""
    has_inputs = {"query", "key", "value"} <= names.keys()
    # Transformers passes the module that calls first.
    if order[:1] == ["module"] and has_inputs:
        return [InterfaceLayout(names | ({"scale": "scaling"} if "scaling" in order else {}))]
    required = {meaning for meaning, name in names.items() if is_required(parameters[name])}
    cached = "cache" in names.get("key", "") or _CACHE_LENGTHS.search(names.get("lengths", ""))
    forms, kind = _QUERY_FORMS, "cache"
    if "page table" in names and has_inputs and not required >= {"query starts", "key starts"}:
        kind = "paged" if "page table" in required else "paged or not"
        forms = (("packed", False),) if "query starts" in required else forms
    elif "query starts" in names and (has_inputs or "qkv" in names or {"query", "kv"} <= names.keys()):
        words = f"packed sequences (total, H, D) with {names['query starts']}"
        square = "key starts" not in names  # one `cu_seqlens` holds for queries and keys
        return [TensorLayout(names, "packed", words, ragged_queries=True, square=square)]
    elif not (has_inputs and cached):
        return []
    layouts: list[KernelLayout] = []
    for keys, (queries, single) in itertools.product(("SG", "GS"), forms):
        shape = {"BHD": "(B, H, D)", "packed": "(total, H, D)"}.get(queries)
        shape = shape or f"({', '.join(queries.replace('T', '1') if single else queries)})"
        where = f"a cache {'(B, S, G, D)' if keys == 'SG' else '(B, G, S, D)'}"
        where = f"pages found by {names['page table']}" if "page table" in names else where
        one, packed = queries == "BHD" or single, queries == "packed"
        layout = TensorLayout(names, kind, f"queries {shape}, keys in {where}", one, ragged_queries=packed)
        layouts.append(replace(layout, queries=queries, keys=keys, single=single))
    return layouts


@dataclass(frozen=True)
class InterfaceLayout(KernelLayout):
    """`(module, query, key, value, attention_mask, scaling, dropout, **kwargs) -> (output, weights)`.

    Queries are (B, H, T, D), keys and values (B, G, S, D), the output is (B, T, H, D).
    """

    kind: str = "interface"
    description: str = "those of Transformers' AttentionInterface"

    def encode(self, question: Question) -> dict[str, Any]:
        return {
            "module": _calling_module(question),
            "query": question.q,
            "key": question.k,
            "value": question.v,
        }

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        B, H, T, E = (*question.q.shape[:3], question.v.shape[-1])
        output = find_shape(tensors, (B, T, H, E))
        weights = find_optional(tensors, output, (B, H, T, question.k.shape[2]))
        return Answer(output.transpose(1, 2), weights, None)


def _calling_module(question: Question) -> nn.Module:
    """Return a module with the attributes that Transformers' own attention has."""
    H, G, D = question.q.shape[1], question.k.shape[1], question.q.shape[-1]
    module: Any = nn.Module().eval()
    module.num_key_value_groups, module.head_dim, module.scaling = H // G, D, D**-0.5
    module.num_heads = module.num_attention_heads = H
    module.num_key_value_heads = G
    module.is_causal = question.flag is True
    module.layer_idx, module.attention_dropout, module.sliding_window = 0, 0.0, None
    module.config = SimpleNamespace(
        num_attention_heads=H, num_key_value_heads=G, head_dim=D, _attn_implementation="checked"
    )
    none = question.q.new_full((H,), -torch.inf)  # takes no share of the softmax
    module.sinks = none if question.sinks is None else question.sinks.to(question.dtype)
    assert isinstance(module, nn.Module)
    return module


@dataclass(frozen=True)
class MaskInterfaceLayout(KernelLayout):
    """`(batch_size, q_length, kv_length, …, mask_function, attention_mask) -> mask`, (B, 1, T, S).

    The answer is the checker's own attention with that mask.
    """

    kind: str = "mask interface"
    description: str = "those of Transformers' mask interface"
    makes_mask: bool = True

    def encode(self, question: Question) -> dict[str, Any]:
        B, T, S = question.q.shape[0], question.q.shape[2], question.k.shape[2]
        return {
            "batch": B,
            "query length": T,
            "key length": S,
            "query offset": S - T,
            "key offset": 0,
            # Transformers 4 passes these, and 5 the query's length and offset.
            "positions": torch.arange(S - T, S),
            "mask function": _mask_function(question),
            "padding": question.padding,
            "window": question.window,
            # Else they return None where SDPA needs no mask, and there is nothing to check.
            "may skip": False,
            "may skip both": False,
            "dtype": question.dtype,
        }

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        """Attend with the mask that the function returned; None hides nothing."""
        return attend_with_mask(question, tensors[0] if tensors else None)


def attend_with_mask(question: Question, mask: Tensor | None) -> Answer:
    """Return attention with a mask that the code under test made, boolean or added to the scores."""
    plain = replace(
        question, causal=False, window=None, ahead=None, rule=None, mask=None, padding=None, layout=""
    )
    B, H, T, S = (*question.q.shape[:3], question.k.shape[2])
    if mask is None:
        return CORRECT.answer(plain, Wiring())
    mask = mask.expand(B, H if mask.shape[1] == H else 1, T, S)  # RuntimeError if it does not fit
    if mask.dtype == torch.bool:
        return CORRECT.answer(replace(plain, mask=mask), Wiring())
    return CORRECT.answer(replace(plain, bias=mask.to(question.dtype)), Wiring())


def _mask_function(question: Question) -> Callable[..., Any]:
    """Return the question's mask as a function of batch, head, query and key, counted from the first key."""
    T, S = question.q.shape[2], question.k.shape[2]
    table = question.mask

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        # Transformers maps it by vmap, which needs a tensor even where everything is visible.
        seen = (query >= 0) & (key >= 0)
        if question.flag:
            seen = seen & past(query, key, CaseSizes(1, 1, 1, 1, 1, 1, 1))
        if question.window is not None:
            seen = seen & (key > query - question.window)
        if table is not None:
            seen = seen & table.to(getattr(query, "device", "cpu"))[query - (S - T), key]
        return seen

    return visible


@dataclass(frozen=True)
class ModLayout(KernelLayout):
    """A function of the places in the matrix, run on all of them. The attention is the checker's own."""

    kind: str = "mod"
    square: bool = True  # where the queries start is not a mod's to say
    makes_mask: bool = True
    scores: bool = False  # it takes the score first, and returns the new one

    def run(
        self, target: Callable[..., Any], question: Question, options: dict[str, Any], device: str
    ) -> Answer:
        """Run the mod on every place, and attend with the mask or the scores that it gives."""
        q, k, v = question.q, question.k, question.v
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        places = [torch.arange(n, device=device) for n in (*q.shape[:3], k.shape[2])]
        if not self.scores:
            mask = _everywhere(target, 0)(*places)
            if mask.dtype != torch.bool:
                raise RuntimeError(f"a mask_mod returns booleans, and this one returned {mask.dtype}")
            return attend_with_mask(question, mask.cpu())
        scores = (q @ k.mT) * q.shape[-1] ** -0.5  # (B, H, T, S)
        changed = to_device(_everywhere(target, 1)(scores.to(device), *places), "cpu")
        weights = torch.softmax(changed, -1)
        return Answer(weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), None, None)


def _everywhere(mod: Callable[..., Any], first: int) -> Callable[..., Tensor]:
    """Return the mod for all places at once; `first` is 1 if a score comes first."""
    for axis in range(4):  # innermost is the key
        places = tuple(0 if i == 3 - axis else None for i in range(4))
        mod = torch.vmap(mod, in_dims=((0,) * first) + places)
    return mod


def _mod(order: list[str]) -> ModLayout | None:
    """Return the layout of a FlexAttention mod, if the arguments are those of one."""
    scores = len(order) == 5 and order[0] in ("score", "scores", "s")
    places = order[1:] if scores else order
    if len(places) != 4 or not places[3].startswith(("kv", "k")):
        return None
    # The fourth name was looked at above.
    if any(name not in known for name, known in zip(places, _MODS, strict=False)):
        return None
    words = f"those of a FlexAttention {'score_mod' if scores else 'mask_mod'}"
    return ModLayout(description=words, scores=scores)


def is_interpreting() -> bool:
    """Return whether Triton is imported, and interprets the kernels that are defined from now on."""
    return "triton" in sys.modules and os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def prepare_interpreter() -> None:
    """Make Triton's interpreter work with NumPy 2.4, if kernels are interpreted and it does not yet.

    Triton 3.6 turns a tensor of one element into an index by `int(array)`, an array of shape (1,). NumPy 2.4
    raises a TypeError for that: "only 0-dimensional arrays can be converted to Python scalars".
    """
    if not is_interpreting():
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    # An earlier check has repaired it.
    if hasattr(patch_tensor, "before_regard"):
        return

    def patch_tensor_for_numpy(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    patch_tensor_for_numpy.before_regard = patch_tensor  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch_tensor_for_numpy
