"""Watches what a model does to its texts and tokens between their ids and its attention.

Shapes alone do not show that row 3 of a map is token 3: a model may read its text backwards, sort its batch,
send parts of it elsewhere, or read a second text. A `TokenOrder` sees the operators of one forward pass and
notes the first that may have done so; the maps that are recorded after it then carry no tokens. It is for
code that nobody here knows: the models of Transformers and Regard's own keep their tokens in order. What it
cannot see, such as a product with a permutation matrix, `capture(…, verify=True)` finds by changing tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from regard.support.torch_internals import (
    TorchDispatchMode,
    dispatch_mode_count,
    dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)

_active: ContextVar[TokenOrder | None] = ContextVar("token_order", default=None)
_paused: ContextVar[bool] = ContextVar("token_order_paused", default=False)


class Pause:
    """Inside the block nothing is noted: the operators are not the model's own, or keep tokens in order."""

    # A class, since a generator takes twice as long, and an attention call enters several such blocks.
    def __enter__(self) -> None:
        self._token = _paused.set(True)
        # A mode that is off the stack costs nothing; one under another mode stays there.
        is_on = dispatch_mode_count() and isinstance(dispatch_modes()[-1], TokenOrder)
        self._watch = pop_dispatch_mode() if is_on else None

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            push_dispatch_mode(self._watch)
        _paused.reset(self._token)


def why_independent(q: Tensor, k: Tensor) -> str | None:
    """Return why queries and keys, as the model has them, are not those of tokens; None if they may be."""
    if (order := _active.get()) is None or not (order.is_independent(q) or order.is_independent(k)):
        return None
    if order.is_independent(q) and order.reason is None:
        # The layers after it have rows for these queries, not for tokens.
        order.reason = "a layer before it attended from queries of its own, such as latents"
    return "its queries or keys do not depend on the token ids"


def note_departure(x: Any, how: str) -> None:
    """Note that code takes a tensor out of PyTorch."""
    if (order := _active.get()) is not None and not _paused.get():
        order.leave(x, how)


class TokenOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator of a forward pass after which texts or tokens may stand in another order.

    It also follows which tensors depend on the token ids, by the memory that they are views of.

    - `ids` (B, T): the token ids that the model was given; `read` the same as a copy on the CPU.
    - `others`: other arguments of the forward pass that may hold token ids.
    - `model`: its parameters and buffers are tables, which may be cut in any way.
    """

    # flex_attention is such an operator, and refuses to run in a mode without this.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions inside the model run as they do without the mode."""
        return True

    def __enter__(self) -> TokenOrder:
        self._token = _active.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _active.reset(self._token)

    def __init__(self, ids: Tensor, read: Tensor, others: Sequence[Tensor], model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read, (self.B, self.T) = read, read.shape
        self.others = {_memory(x) for x in others}
        self.tables = {_memory(x) for x in itertools.chain(model.parameters(), model.buffers())}
        self.reason: str | None = None
        """Why the maps that are recorded from now on may be of other texts or tokens; None if nothing is."""
        self._dependent, self._independent = {_memory(ids)}, set(self.tables)
        self._tables_read: set[int] = set()  # the tables in which the ids were looked up
        self._tables_otherwise: set[int] = set()  # and those in which other whole numbers were

    def explain(self) -> str | None:
        """Return why an attention that is called now may be of other texts or tokens; None if nothing is."""
        if self.reason is None and not self._tables_read:
            return "the model did not look up the token ids as it was given them"
        return self.reason

    def is_independent(self, x: Tensor) -> bool:
        """Whether one of the model's own tensors, which is in use, certainly does not depend on the ids."""
        return _memory(x) in self._independent

    def leave(self, x: Any, how: str) -> None:
        """Note that a tensor left PyTorch, as to NumPy, where nothing is seen."""
        if self.reason is None and isinstance(x, Tensor) and _memory(x) in self._dependent:
            self.reason = f"it took its tensors out of PyTorch ({how}) before this layer"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        # Higher-order operators such as flex_attention have no schema.
        if self.reason is None and not _paused.get() and hasattr(func, "_schema"):
            # An operator that writes in place does to the order what its namesake does.
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            try:
                # A literal such as torch.tensor([1, 2]) is a constant, whatever its memory held before.
                inputs = [] if name == "lift_fresh" else _tensors((*args, *(kwargs or {}).values()))
                self.reason = self._explain(func, name, args, kwargs or {})
                self._follow(inputs, [_memory(x) for x in _tensors((output,))])
            # Some kinds of tensors have no memory or no shape.
            except (RuntimeError, TypeError, IndexError) as error:
                self.reason = f"its operator {name} could not be followed ({error})"
        return output

    def _follow(self, inputs: Sequence[Tensor], outputs: Collection[int]) -> None:
        """Note whether the outputs of an operator depend on the ids, or certainly do not."""
        depends = any(_memory(x) in self._dependent for x in inputs)
        # Whole numbers and single ones that come from elsewhere are constants.
        numbers = (x for x in inputs if x.is_floating_point() and x.ndim)
        is_independent = not depends and all(_memory(x) in self._independent for x in numbers)
        # PyTorch may have given the memory of an earlier tensor to an output.
        for memory in outputs:
            (self._dependent.add if depends else self._dependent.discard)(memory)
            if memory not in self.tables:
                (self._independent.add if is_independent else self._independent.discard)(memory)

    def _explain(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> str | None:
        """Return what an operator may have done to the order of texts and tokens, or None."""
        if name == "embedding":
            return self._explain_lookup(args[0], args[1])
        if name == "index" and _memory(args[0]) in self.tables:  # table[ids]
            # With two indices it is a cut of a table, not a lookup of ids.
            return self._explain_lookup(args[0], args[1][0]) if len(args[1]) == 1 else None
        if name in ("stack", "cat"):
            return self._explain_join(args)
        x = args[0] if args else None
        # Tables of rotary positions and masks may be cut in any way: they hold no tokens.
        if not isinstance(x, Tensor) or x.is_nested or _memory(x) in self._independent:
            return None
        if name in ("view", "_unsafe_view", "reshape"):
            return self._explain_view(x, args[1])
        # With other numbers of texts and tokens the shape of the map shows an exchange.
        if name in EXCHANGING and self.B == self.T and self._is_exchanged(x, args[1:]):
            return "its texts are as many as their tokens, and it exchanged the two (transpose)"
        if name in ("slice", "constant_pad_nd") and self._is_shifted(name, x, args[1:]):
            return f"it shifted its tokens ({name}) before this layer"
        if name not in CUTTING:
            return None
        for axis in _cut_axes(func, name, args, kwargs):
            if (what := self._axis_of(x, axis % x.ndim)) is not None:
                return f"it picked or reordered {what} ({name}) before this layer"
        return None

    def _axis_of(self, x: Tensor, axis: int) -> str | None:
        """Return what an axis of a tensor holds, if it has as many entries as there are texts or tokens."""
        # The last axis of numbers holds channels, which rotary positions cut in halves.
        is_channels = axis == x.ndim - 1 and x.ndim > 1 and x.is_floating_point()
        # Another axis of that length may be the one: B heads, or the three of (3, B, H, T, D) for 3 texts.
        if is_channels or list(x.shape).count(x.shape[axis]) > 1:
            return None
        lengths = {self.T: "tokens", self.B: "texts", self.B * self.T: "tokens"}
        return lengths.get(x.shape[axis]) if x.shape[axis] > 1 else None

    def _explain_lookup(self, table: Tensor, ids: Tensor) -> str | None:
        """Note a lookup of whole numbers in a table; return a reason if a second text was looked up."""
        is_text = ids.numel() == self.read.numel()
        if is_text and torch.equal(ids.detach().cpu().reshape(-1), self.read.view(-1)):
            self._tables_read.add(_memory(table))
        else:
            self._tables_otherwise.add(_memory(table))
            if _memory(ids) in self.others and len(table) > TYPES:
                return "the model read the ids of a second argument, too"
        # A Siamese model reads a second text by the same table.
        if self._tables_read & self._tables_otherwise:
            return "the model also read other token ids than those it was given"
        return None

    def _explain_join(self, args: tuple[Any, ...]) -> str | None:
        """Return a reason if tensors of all texts were put in front of one another, as separate heads are."""
        tensors, axis = args[0], args[1] if len(args) > 1 else 0
        if axis != 0 or len(tensors) < 2 or self._independent.issuperset(map(_memory, tensors)):
            return None
        if all(x.ndim > 2 and x.is_floating_point() and self._has_texts(x) for x in tensors):
            return "it put several tensors of its texts in front of one another (stack), as heads or texts"
        return None

    def _is_shifted(self, name: str, x: Tensor, args: tuple[Any, ...]) -> bool:
        """Whether tokens were padded in front, or something that stood before them now counts as one."""
        if name == "constant_pad_nd":
            # Its list begins at the last axis, with the padding in front.
            lengths = reversed(x.shape)
            return any(n == self.T and front for n, front in zip(lengths, args[0][::2], strict=False))
        axis, length = _slice(x, args)
        # Ids (B, T) or states (B, T, C); with more axes the second one counts heads.
        is_sequence = x.ndim <= 3 and axis == 1 and x.shape[0] == self.B
        return is_sequence and length == self.T < x.shape[1]

    def _has_texts(self, x: Tensor) -> bool:
        return set(x.shape[:2]) == {self.B, self.T}

    def _explain_view(self, x: Tensor, shape: Sequence[int]) -> str | None:
        """Return a reason if a new shape cuts the tokens of x (…, T, …) into groups, or counts others."""
        # Two axes as long as the text cannot be told apart, and the last one is that of the channels.
        if x.ndim < 2 or self.T < 2 or list(x.shape).count(self.T) != 1 or x.shape[-1] == self.T:
            return None
        inside = x.shape[list(x.shape).index(self.T) + 1 :].numel()
        lengths = _whole_shape(x, shape)[::-1]
        after = [1, *itertools.accumulate(lengths, lambda a, b: a * b)]  # entries inside each new axis
        places = [size for n, size in zip(lengths, after, strict=False) if n == self.T]
        if (places and inside not in places) or any(inside < size < inside * self.T for size in after):
            return "it cut its tokens into groups (view) before this layer"
        return None

    def _is_exchanged(self, x: Tensor, args: tuple[Any, ...]) -> bool:
        """Whether the first two axes of x, which hold texts and tokens, are exchanged."""
        axes = args[0] if isinstance(args[0], list | tuple) else args
        moved = [n % x.ndim for n in axes[:2]]
        # permute(1, 0, …) names the new order, and transpose(0, 1) the two axes.
        return self.B > 1 and x.ndim > 2 and (moved == [1, 0] or (moved == [0, 1] and axes is args))


# A table with no more rows is not one of words, but of token types or segments.
TYPES = 8


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among some values, and in lists and tuples among them."""
    flat = (x for value in values for x in (value if isinstance(value, list | tuple) else (value,)))
    return [x for x in flat if isinstance(x, Tensor) and not x.is_nested]


def _memory(x: Tensor) -> int:
    """The address of the memory that a tensor is a view of; a DTensor of FSDP has none."""
    try:
        return x.untyped_storage().data_ptr()
    # A DTensor has no storage of its own.
    except RuntimeError:
        # Negative, so that it is no address.
        return -id(x)


def _whole_shape(x: Tensor, shape: Sequence[int]) -> list[int]:
    """The shape of a view, with the length that −1 stands for."""
    known = [n for n in shape if n != -1]
    rest = x.numel() // max(torch.Size(known).numel(), 1)
    return [rest if n == -1 else n for n in shape]


def _slice(x: Tensor, args: tuple[Any, ...]) -> tuple[int, int]:
    """The axis of a slice, and how many entries it takes."""
    defaults: list[Any] = [0, None, None, 1]
    axis, start, stop, step = [*args, *defaults[len(args) :]]
    return axis % x.ndim, len(range(*slice(start, stop, step).indices(x.shape[axis])))


def _cut_axes(func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Collection[int]:
    """The axes of an operator's first argument along which entries are picked, cut or reordered."""
    x = args[0]
    if name == "slice":
        axis, length = _slice(x, args[1:])
        return (axis,) if length < x.shape[axis] else ()
    if name.startswith("index") and isinstance(args[1], list | tuple):  # x[…, index], or a write to it
        return [axis for axis, index in enumerate(args[1]) if index is not None]
    # Its signature says where it names its axes: all of them by an empty list.
    arguments = enumerate(func._schema.arguments)
    at, named = next((i, argument) for i, argument in arguments if argument.name in AXES)
    axes = args[at] if at < len(args) else kwargs.get(named.name, named.default_value)
    return (axes,) if isinstance(axes, int) else tuple(axes) or range(x.ndim)


EXCHANGING = ("transpose", "permute", "swapaxes")
CUTTING = frozenset(
    (
        *("flip", "roll", "slice", "split", "split_with_sizes", "topk", "sort", "gather", "select", "unbind"),
        *("index", "index_put", "index_select", "index_add", "index_copy"),
        *("unfold", "scatter", "scatter_add", "scatter_reduce"),
    )
)
"""Operators that pick, cut or reorder entries of their first argument."""
AXES = ("dim", "dims", "dimension")
"""What they call the argument that names its axes."""
