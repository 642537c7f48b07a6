"""Test cases: the forms of a call, inputs whose sizes cannot be confused, and what the code says of itself.

Lengths, widths and head counts differ on purpose, so that a transposed axis raises an error or gives a wrong
number, and never passes by chance. Everything is drawn in float64 from fixed seeds. What code declares is in
its names, its words and the masks that it holds. A form is a layout, a context, the shape of rotary tables:
the first in which the code is right, or at least runs, is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import HEAD_LAYOUTS, SEQUENCES, MaskForm, RotaryTables, table_forms
from regard.checker.subject.construct import SIZES
from regard.checker.subject.subject import Subject


@dataclass(frozen=True)
class Cases:
    """Makes questions for one subject, in the layout and the widths that it takes."""

    subject: Subject
    width: int = 40  # C of (B, T, C), for queries
    context_width: int = 40  # C of (B, S, C), for keys and, unless `value_width` is given, values
    max_length: int | None = None
    always: dict[str, Any] = field(default_factory=dict)  # softcap, window, rule: part of the module itself
    value_width: int | None = None
    fixed_length: int | None = None  # the only length that it takes
    powers: bool = False  # widths of heads are powers of two, 16 at least, as many kernels want them
    multiple: int = 1  # lengths are multiples of this

    def plain(
        self,
        name: str = "output",
        *,
        B: int = 2,
        T: int = 7,
        S: int | None = None,
        H: int = 4,
        G: int | None = None,
        D: int = 10,
        E: int | None = None,
        seed: int = 0,
        size: float = 1.0,
    ) -> Question:
        """Return a question without a mask; self-attention if the subject takes one sequence.

        `name` is for the report, the letters are sizes, `seed` draws the inputs and `size` scales them.
        """
        T = T if self.max_length is None else min(T, self.max_length)
        T = self.fixed_length or T
        S = T if S is None or self.fixed_length else S if self.max_length is None else min(S, self.max_length)
        layout, inputs, kernel = self.subject.layout, self.subject.inputs, self.subject.kernel_layout
        S = T if kernel is not None and kernel.square else S
        T, S = (-(-n // self.multiple) * self.multiple for n in (T, S))
        T = 1 if kernel is not None and kernel.one_query else T
        if self.powers:  # Triton's tl.dot takes no fewer than 16 columns
            D = max(16, 1 << (D - 1).bit_length())
        if layout in ("BCHW", "BHWC"):
            T = S = max(2, T - T % 2)  # images of more than one row
        D = self.subject.head_width or D
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return size * torch.randn(shape, generator=draw, dtype=torch.float64)

        if layout in SEQUENCES:
            B = 1 if layout == "TC" else B
            x = normal(B, T, self.width)
            if inputs == "x":
                q = k = v = x
            elif inputs == "context":
                q = x
                k = v = normal(B, S, self.context_width)
            else:
                k, v = (normal(B, S, C) for C in (self.context_width, self.value_width or self.context_width))
                q = x
        else:
            H = 1 if layout in ("BTD", "TBD", "TD") else H
            B = 1 if layout == "TD" else B
            G = H if G is None else min(G, H)
            q, k, v = normal(B, H, T, D), normal(B, G, S, D), normal(B, G, S, D if E is None else E)
        return replace(Question(name, q, k, v), **self.always)

    def longer(self, name: str = "longer sequence") -> Question:
        """Return a plain question on one longer sequence, in which windows and blocks show."""
        return self.plain(name, B=1, T=40, seed=92)

    def masked(self, name: str = "mask", seed: int = 0, **sizes: Any) -> Question:
        """Return a question with a random mask: every query sees its own position and some others."""
        question = self.plain(name, seed=seed, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(seed + 1)
        mask = torch.rand(T, S, generator=draw) < 0.5
        # Every row and every column is used, and one earlier key of each query stays visible.
        eye = torch.eye(T, S, dtype=torch.bool)
        mask |= eye.roll(S - T, 1) | eye.roll(-1, 0)
        mask[-1, 0], mask[0, -1], mask[T // 2, 0] = True, False, False
        return replace(question, mask=mask)

    def padded(self, name: str = "padding", **sizes: Any) -> Question:
        """Return a question whose sequences end in padding."""
        question = self.plain(name, **sizes)
        B, S = question.k.shape[0], question.k.shape[-2]
        # A text without any token has no right output.
        lengths = torch.tensor([max(1, S - 2 * b - 1) for b in range(B)])
        return replace(question, padding=torch.arange(S) < lengths[:, None])

    def biased(self, name: str = "float mask", **sizes: Any) -> Question:
        """Return a question with finite numbers added to the scores."""
        question = self.plain(name, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(5)
        return replace(question, bias=torch.randn(T, S, generator=draw, dtype=torch.float64))


def forms(subject: Subject) -> Iterator[Subject]:
    """Yield the subject in every form in which code may be called, the most usual first."""
    if subject.layout not in SEQUENCES:
        yield from (subject.replaced(kernel_layout=layout) for layout in subject.kernel_layouts)
        masks = with_open_masks(subject) if not subject.kernel_layouts else ()
        yield from (form.replaced(layout=layout) for form, layout in itertools.product(masks, HEAD_LAYOUTS))
        return
    for form in with_open_masks(subject):
        yield from (form.replaced(tables=tables) for tables in _tables(subject))
    if subject.inputs == "x" and "context" in subject.arguments:
        context = subject.arguments["context"]
        extra = {name: value for name, value in subject.extra.items() if name != context}
        positional = [*subject.positional, context]
        yield subject.replaced(inputs="context", positional=positional, by_name=True, extra=extra)
    if subject.layout == "BTC":
        # Diffusion models attend over images (B, C, H, W), speech over signals (B, C, T), and window
        # attention of vision over (B, H, W, C).
        for layout in ("TC", "BCHW", "BCT", "BHWC"):
            yield subject.replaced(layout=layout)


def with_open_masks(subject: Subject) -> Iterator[Subject]:
    """Yield the subject as it is; if it needs a mask, also with one that hides nothing."""
    yield subject
    # None is what a required mask gets, so that another value must stand for one that is not passed.
    if subject.extra.get(subject.arguments.get("mask", ""), subject) is not None:
        return  # its mask is optional, or the caller passes one
    # The mask of TensorFlow's tutorial is 1 where it hides, that of The Annotated Transformer 0.
    every = ("look", "hide", "added", "zero-one", "one-zero")
    kinds = (subject.mask_form.kind,) if subject.mask_stated else every
    for kind, rank in itertools.product(kinds, (2, 4, 3)):
        yield subject.replaced(mask_form=MaskForm(kind, rank), open_mask=True)


def is_certain(form: Subject) -> bool:
    """Return whether a form on sequences that runs is the one to call the code in, right or wrong."""
    usual = form.tables is None or form.tables.usual
    return form.layout in SEQUENCES and usual and not form.open_mask


def _tables(subject: Subject) -> list[RotaryTables | None]:
    """Return the rotary tables that a subject may take, in every usual shape; None stands for none."""
    names = tuple(subject.arguments[role] for role in ("cos", "sin", "rotary") if role in subject.arguments)
    if not names or any(name in subject.extra for name in names):
        return [subject.tables]
    # Transformers' tables are (1, T, D); gpt-oss takes half the width under the same name (5.22).
    first = [] if subject.tables is None else [subject.tables]
    # The width of a head is what the module says, or its width divided by its heads.
    sizes = vocabulary.sizes(vars(subject.module) if subject.module is not None else {})
    share = sizes.get("width", SIZES["width"]) // sizes.get("heads", SIZES["heads"])
    return [*first, *table_forms(names, sizes.get("head_width", share))]


def causal_hypotheses(subject: Subject, causal: bool | None, declared: bool | None) -> list[bool]:
    """Return the possible answers to whether the code is causal by itself."""
    if causal is not None:
        return [causal]
    if "causal" in subject.arguments and "causal" not in subject.extra:
        return [False]  # its causal argument decides
    if declared is not None:
        return [declared]
    return [True, False] if described_causality(subject) else [False, True]


def declared_causality(subject: Subject) -> bool | None:
    """Return whether the code declares itself causal: by name, attribute or triangular buffer.

    None if it declares nothing.
    """
    module = subject.module
    if subject.is_transformers:
        return None  # the model passes the mask
    by_name = vocabulary.says_causal(subject.name)
    if by_name is not None:
        return by_name
    if module is not None:
        switch = vocabulary.sizes(vars(module)).get("causal")
        return switch if isinstance(switch, bool) else holds_causal_mask(module) or None
    return None


def described_causality(subject: Subject) -> bool | None:
    """Return whether the docstring calls the code causal; None if it does not say.

    Prose is easily misread: it is where to begin, and never makes code wrong.
    """
    if subject.is_transformers or "mask" in subject.arguments or "causal" in subject.arguments:
        return None  # the model passes the mask, or the docstring describes an option
    module = subject.module
    doc = (type(module).__dict__.get("__doc__") if module is not None else subject.target.__doc__) or ""
    return vocabulary.docstring_says_causal(doc) if len(doc) < 4000 else None


def holds_causal_mask(module: nn.Module) -> bool:
    """Return whether a buffer or an attribute of the module is a causal mask."""
    return any(is_triangular(tensor) for tensor in _held_tensors(module))


def max_length(subject: Subject) -> int | None:
    """Return a module's maximum length: a size of that meaning, or the side of a square mask."""
    module = subject.module
    if module is None:
        return None
    stated = vocabulary.sizes({**vars(module), **subject.init}).get("length")
    if type(stated) is int:
        return stated
    squares = [t.shape[-1] for t in _held_tensors(module) if t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1]
    return max(squares, default=None)


def _held_tensors(module: nn.Module) -> list[Tensor]:
    return [tensor for _, tensor in [*module.named_buffers(), *plain_tensors(module)]]


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the tensors that are attributes, but neither parameters nor buffers, with their paths."""
    return [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]


def is_triangular(tensor: Tensor) -> bool:
    """Return whether a tensor is a causal mask in a usual form: tril or triu of ones, booleans or −inf."""
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    square = tensor.reshape(-1, *tensor.shape[-2:])[0]
    ones = torch.ones_like(square, dtype=torch.bool)
    # A causal mask that is off by one declares causality, too; the output then shows the mistake.
    lower = [ones.tril(d) for d in (-1, 0, 1)]
    # A mask that is added may hold −1e4 or −1e9 in place of −inf.
    marks = [square != 0, *([square < -1e3] if square.dtype.is_floating_point else [])]
    return any(torch.equal(mark, x) or torch.equal(~mark, x) for mark in marks for x in lower)


def declared_scale(subject: Subject) -> float | None:
    """Return the scale that a module of a known family declares. In other code the scale is to be checked."""
    module = subject.module
    if not (subject.is_transformers or type(module).__module__.startswith("regard.")):
        return None
    values = [getattr(module, name, None) for name in ("scaling", "scale")]
    return next((float(x) for x in values if isinstance(x, int | float) and not isinstance(x, bool)), None)


def declared_options(subject: Subject, always: dict[str, Any]) -> dict[str, Any]:
    """Return the soft cap, window and mask that a module holds: the correct answer depends on them."""
    module = subject.module
    declared: dict[str, Any] = {}
    if module is None:
        return {}
    for name in ("mask", "rule"):
        if isinstance(rule := getattr(module, name, None), Mask):
            declared["rule"] = rule
    sizes = vocabulary.sizes(vars(module))
    softcap, window = sizes.get("softcap", False), sizes.get("window")
    if not isinstance(softcap, bool) and softcap > 0 and "softcap" not in always:
        declared["softcap"] = float(softcap)
    # In Transformers the mask that the model passes contains the window.
    if type(window) is int and window > 0 and "window" not in always and not subject.is_transformers:
        declared["window"] = window
    return declared


def module_width(module: nn.Module | None) -> int:
    """Return the width of a module's input, judging by an attribute or by its first layer."""
    if module is None:
        return 40
    if isinstance(width := vocabulary.sizes(vars(module)).get("width"), int):
        return width
    for part in module.modules():
        if isinstance(part, nn.Linear):
            return part.in_features
        if isinstance(part, nn.Conv1d | nn.Conv2d):
            return part.in_channels
    return 48


def head_width(wiring: Wiring, question: Question) -> int:
    """Return the width of a query head under a wiring; 0 if its shapes do not fit the question."""
    try:
        with torch.no_grad():
            return int(wiring.project(question)[0].shape[-1])
    except (RuntimeError, ValueError, IndexError):
        return 0
