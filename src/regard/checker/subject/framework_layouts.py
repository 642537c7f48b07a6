"""Functions that Transformers and FlexAttention call: their attention, their masks and their scores.

They are those of `AttentionInterface`, of Transformers' mask interface, `mask_mod(b, h, q_idx, kv_idx)` and
`score_mod(score, b, h, …)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT, CaseSizes, past
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.call_tensors import to_device
from regard.checker.subject.kernel_layouts import KernelLayout, find_optional, find_shape


@dataclass(frozen=True)
class InterfaceLayout(KernelLayout):
    """`(module, query, key, value, attention_mask, scaling, dropout, **kwargs) -> (output, weights)`.

    Queries are (B, H, T, D), keys and values (B, G, S, D), the output is (B, T, H, D).
    """

    kind: ClassVar[str] = "interface"
    description: ClassVar[str] = "those of Transformers' AttentionInterface"

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

    makes_mask: ClassVar[bool] = True

    kind: ClassVar[str] = "mask interface"
    description: ClassVar[str] = "those of Transformers' mask interface"

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

    scores: bool = False  # it takes the score first, and returns the new one
    makes_mask: ClassVar[bool] = True

    kind: ClassVar[str] = "mod"
    square: ClassVar[bool] = True  # where the queries start is not a mod's to say

    @property
    def description(self) -> str:
        return "those of a FlexAttention " + ("score_mod" if self.scores else "mask_mod")

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
