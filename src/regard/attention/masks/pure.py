"""Pure functions: what identifies a function of index tensors whose answer cannot change unseen.

Nothing is taken on trust. A function is pure if its bytecode does nothing but compute:

- every instruction is one of `INSTRUCTIONS`, which load, compute and jump forward. None of them writes to
  anything but a local variable, and in-place operators are excluded;
- every value that it takes from outside (closures, globals, defaults) is a number, None, a plain tensor, a
  tuple of these, the module `torch`, one of `BUILTINS`, or another pure function;
- every attribute is one of `ATTRIBUTES`, which exist on tensors and on `torch` only, compute each entry for
  itself and change nothing.

So it can reach nothing else, and its answer follows from its code and these values, which identify it (see
`identify_tensor` for tensors). Any other function, an instruction of a later Python among them, is not pure.
What is not noticed: another function put in the place of one of PyTorch's own.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Hashable
from hashlib import blake2b
from types import BuiltinFunctionType, CellType, CodeType, EllipsisType, FunctionType, NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter

from regard.lru import LRUCache

INSTRUCTIONS = frozenset(
    """
    RESUME NOP EXTENDED_ARG COPY_FREE_VARS PUSH_NULL POP_TOP COPY SWAP RETURN_VALUE RETURN_CONST
    LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_LOAD_FAST
    STORE_FAST_STORE_FAST LOAD_DEREF LOAD_GLOBAL LOAD_ATTR LOAD_METHOD PRECALL CALL CALL_KW KW_NAMES
    UNARY_NEGATIVE UNARY_INVERT UNARY_NOT TO_BOOL BINARY_OP COMPARE_OP IS_OP
    BINARY_SUBSCR BINARY_SLICE BUILD_TUPLE BUILD_SLICE
    JUMP_FORWARD JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP
    POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE
    POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE
    """.split()  # noqa: SIM905
)
"""The instructions of Python 3.11 to 3.13 that a pure function may have."""
OPERATORS = frozenset({"+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>"})
"""Not `**` and `@`, whose digits depend on settings of PyTorch, and none that works in place."""
ATTRIBUTES = frozenset(
    """
    abs neg sign square floor ceil round trunc add sub mul div floor_divide remainder fmod
    minimum maximum min max clamp where eq ne lt le gt ge
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not
    bool byte short int long half float double uint8 int16 int32 int64 float16 float32 float64
    to device unsqueeze
    """.split()  # noqa: SIM905
)
WORDS = frozenset({"dim", "min", "max", "rounding_mode", "floor", "trunc"})
"""The strings that a pure function may hold, as names of arguments (not `out`) or as values."""
BUILTINS = (abs, min, max)
LARGE = 1 << 24
"""Bytes of a tensor from which on its values are not compared."""
MAX_DEPTH = 4
"""How deep pure functions may call each other."""


def identify_tensor(tensor: Tensor, tensors: list[Tensor]) -> Hashable | None:
    """What identifies a tensor and its values, or None if nothing does.

    A tensor of a CPU, unless it is large, counts by its values, which NumPy may change unseen; any other by
    PyTorch's number of its modifications, which leaves out writes to its `.data` or through DLPack. Nothing
    identifies a tensor that requires gradients, since fused optimizers do not count their modifications, nor
    one of inference mode. The tensor is added to `tensors`: its identity is good for as long as it lives.
    """
    if tensor.is_inference() or tensor.requires_grad:
        return None
    values = b""
    if tensor.is_cpu and type(tensor) is Tensor and tensor.nbytes <= LARGE:
        try:
            data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
            values = blake2b(data.tobytes(), digest_size=16).digest()
        except RuntimeError:  # a wrapper of torch.func has no values
            return None
    tensors.append(tensor)
    return id(tensor), tensor._version, values


def identify_function(function: object, tensors: list[Tensor], depth: int = MAX_DEPTH) -> Hashable | None:
    """What identifies a pure function and its answers, or None if it is not pure. Tensors are collected."""
    if is_compiling() or type(function) is not FunctionType or function.__dict__ or not depth:
        return None
    code, scope = _read(function.__code__), function.__globals__
    builtins: dict[str, object] = getattr(function, "__builtins__")  # noqa: B009  # mypy knows it at times
    keyword_defaults = function.__kwdefaults__ or {}
    if not code.only_computes or any(type(x) is not dict for x in (scope, builtins, keyword_defaults)):
        return None
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        named = tuple(scope[name] if name in scope else builtins[name] for name in code.names)
    except (ValueError, KeyError):  # a variable that has no value yet
        return None
    defaults = function.__defaults__ or (), tuple(keyword_defaults.values())
    values = _identify((cells, named, *defaults), tensors, depth)
    # Python's floats become tensors of the default dtype.
    return (
        None
        if values is None
        else (function.__code__, (*keyword_defaults,), torch.get_default_dtype(), values)
    )


def reads_positions_only(predicate: object) -> bool:
    """Whether a predicate (b, h, q, k) is pure and does not look at b and h."""
    if type(predicate) is not FunctionType or identify_function(predicate, []) is None:
        return False
    code = predicate.__code__
    return code.co_argcount >= 2 and _read(code).variables.isdisjoint(code.co_varnames[:2])


def _identify(value: object, tensors: list[Tensor], depth: int) -> Hashable | None:
    """What identifies a value that a function takes from outside, or None if nothing does."""
    kind = type(value)
    if isinstance(value, Tensor):
        # Attributes of its own could stand in for its methods.
        return identify_tensor(value, tensors) if kind in (Tensor, Parameter) and not vars(value) else None
    if kind is tuple:
        parts = tuple(_identify(part, tensors, depth) for part in value)  # type: ignore[attr-defined]
        return None if None in parts else parts
    if kind is float:
        return kind, value.hex()  # type: ignore[attr-defined]  # 0.0 == −0.0
    if kind in (bool, int, NoneType) or value is torch:
        return kind, value
    if kind is BuiltinFunctionType:
        return (kind, value) if value in BUILTINS else None
    return identify_function(value, tensors, depth - 1)


def freeze_function(function: FunctionType, copy_tensor: Callable[[Tensor], Tensor]) -> FunctionType:
    """A pure function that reads its variables as they are now, for good, and copies of its tensors."""
    names, scope, cells = _read(function.__code__).names, function.__globals__, function.__closure__ or ()
    if not (names or cells or function.__defaults__ or function.__kwdefaults__):
        return function

    def freeze(value: Any) -> Any:
        if isinstance(value, Tensor):
            return copy_tensor(value)
        if type(value) is tuple:
            return tuple(map(freeze, value))
        return freeze_function(value, copy_tensor) if type(value) is FunctionType else value

    frozen = FunctionType(
        function.__code__,
        {name: freeze(scope[name]) for name in (*names, "__builtins__") if name in scope},
        function.__name__,
        freeze(function.__defaults__),
        tuple(CellType(freeze(cell.cell_contents)) for cell in cells),
    )
    frozen.__kwdefaults__ = {name: freeze(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return frozen


class _Code(NamedTuple):
    """What code does."""

    only_computes: bool
    names: tuple[str, ...]  # that it looks up in its globals
    variables: frozenset[str]  # the local ones that it reads


_codes: LRUCache[_Code] = LRUCache(256)


def _read(code: CodeType) -> _Code:
    return _codes.get(code, lambda: _read_instructions(code))


def _read_instructions(code: CodeType) -> _Code:
    only_computes, names, variables = True, dict[str, None](), set[str]()
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        only_computes &= name in INSTRUCTIONS
        if name == "LOAD_GLOBAL":
            names[argument] = None
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            only_computes &= argument in ATTRIBUTES
        elif name == "BINARY_OP":
            only_computes &= instruction.argrepr in OPERATORS
        elif "LOAD_FAST" in name:  # which may load two
            variables.update(argument if isinstance(argument, tuple) else (argument,))
        elif instruction.opcode in dis.hasconst:
            only_computes &= _is_plain(code.co_consts[instruction.arg or 0])
    return _Code(only_computes, tuple(names), frozenset(variables))


def _is_plain(constant: object) -> bool:
    """Whether a constant is a number, None, an ellipsis, one of the `WORDS`, or a tuple of these."""
    if isinstance(constant, tuple):
        return all(map(_is_plain, constant))
    return isinstance(constant, bool | int | float | NoneType | EllipsisType) or constant in WORDS
