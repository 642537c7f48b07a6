"""The author's source text: numbers in it, the state that it keeps, names of parts, and where an error arose.

A number is only a candidate, for a window, a cap or a rotary base. It counts once the oracle has reproduced
the code's numbers with it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import itertools
import operator
import re
import textwrap
import tokenize
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checker.subject import vocabulary

if TYPE_CHECKING:
    from regard.checker.subject.subject import Subject

# Br and Bc are FlashAttention's own names.
BLOCK_NAME = re.compile(r"(^|_)(blocks?|buckets?|chunks?|tiles?)(_|$)|(^|_)block[mnqk]$|^b[rc]$", re.I)
# A size of blocks in the source, `BLOCK_M = 128` or `block: int = 4`.
_BLOCK_CONSTANT = re.compile(r"(?:block|bucket|chunk|tile)\w*\s*(?::\s*[\w.]+\s*)?=\s*(\d+)\b", re.I)


def source_of(subject: Subject) -> str:
    """Return the source of a function or class with the helpers that it uses, or "" if there is none."""
    return "\n".join(_source(code) for code in _codes(subject.target))


def _codes(target: Any) -> list[Any]:
    """Return the code under test: a function or the classes of modules, and helpers of the same file."""
    if isinstance(target, nn.Module):
        kinds = [type(part) for part in target.modules() if not type(part).__module__.startswith("torch.")]
        own = [base for kind in kinds for base in kind.__mro__ if base.__module__ == kind.__module__]
        found: list[Any] = list(dict.fromkeys(own))
    else:
        while isinstance(target, functools.partial):
            target = target.func
        found = [target if inspect.isroutine(target) else type(target)]
    for code in found:  # grows while it is read
        found += [helper for helper in _helpers(code) if helper not in found and len(found) < 40]
    return found


def _functions(code: Any) -> Iterator[types.FunctionType]:
    """Yield a function, or the methods of a class."""
    for method in vars(code).values() if isinstance(code, type) else [code]:
        # vars() of a class holds its static methods and class methods as objects around the functions.
        method = inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None
        if isinstance(method, types.FunctionType):
            yield method


def _helpers(code: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that a function or a class's methods name, if they stand in the same file."""
    for method in _functions(code):
        values = [method.__globals__.get(name) for name in method.__code__.co_names]
        for value in [*values, *_contents(method)]:
            value = inspect.unwrap(value) if inspect.isfunction(value) else value
            if isinstance(value, types.FunctionType) and value.__module__ == method.__module__:
                yield value


def _contents(function: Any) -> Iterator[Any]:
    """Yield what a function's closure holds."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents


@functools.cache
def _source(code: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return ""


def _nodes(source: str) -> list[ast.AST]:
    """Return the nodes of source text; none of what cannot be parsed: a lambda inside an expression."""
    try:
        return list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []


def prose_of(source: str) -> str:
    """Return the strings and comments of source text, in one line."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):  # a lambda inside an expression
        return ""
    prose = [t.string.strip("#\"' ") for t in tokens if t.type in (tokenize.STRING, tokenize.COMMENT)]
    return re.sub(r"\s+", " ", " ".join(prose))


def returned_names(source: str) -> set[str]:
    """Return the names of what functions return beside their first result: "attn" of `return out, attn`."""
    returned = [node.value for node in _nodes(source) if isinstance(node, ast.Return)]
    others = [part for value in returned if isinstance(value, ast.Tuple) for part in value.elts[1:]]
    return {node.id for part in others for node in ast.walk(part) if isinstance(node, ast.Name)}


def compared_strings(source: str, name: str) -> list[str]:
    """Return the texts with which code compares a variable or attribute of this name, in their order.

    "local" of `self.kind == "local"`, `kind in ("local", …)`, and of `case "local"` in `match kind`.
    """
    texts: list[str] = []
    others: Sequence[ast.AST]
    for node in _nodes(source):
        if isinstance(node, ast.Compare):
            compared, others = node.left, node.comparators
        elif isinstance(node, ast.Match):
            compared, others = node.subject, [case.pattern for case in node.cases]
        else:
            continue
        if getattr(compared, "attr", getattr(compared, "id", "")) == name:
            parts = [part for other in others for part in ast.walk(other)]
            texts += [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return list(dict.fromkeys(texts))


def numbers_of(subject: Subject) -> list[float]:
    """Return the positive numbers that the code holds: attributes, arguments, defaults and literals."""
    found: set[float] = set()
    for value in _values(subject):
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
            found.add(float(value))
    return sorted(found)


def _values(subject: Subject) -> Iterator[Any]:
    yield from subject.init.values()
    yield from subject.extra.values()
    for part in subject.module.modules() if subject.module is not None else ():
        config = getattr(getattr(part, "config", None), "__dict__", {})
        for values in (vars(part), config, part._parameters, part._buffers):
            yield from values.values()
    for code in _codes(subject.target):
        yield from _contents(code)
        yield from (node.value for node in _nodes(_source(code)) if isinstance(node, ast.Constant))


def block_sizes(subject: Subject) -> list[int]:
    """Return the sizes of blocks that the code names, in its source or as a constant of its file."""
    named = [int(n) for n in _BLOCK_CONSTANT.findall(source_of(subject))]
    return named + [n for name, n in _constants(subject) if BLOCK_NAME.search(name)]


def whole_numbers(subject: Subject) -> list[int]:
    """Return the whole numbers by which the code may cut a text: its literals and its file's constants.

    Defaults of parameters that are known sizes, such as `d_model=512`, are not among them.
    """
    found = [n for _, n in _constants(subject)]
    for code in _codes(subject.target):
        nodes, sizes = _nodes(_source(code)), set[ast.AST]()
        for node in (node for node in nodes if isinstance(node, ast.arguments)):
            # Defaults belong to the last arguments.
            named = [*zip(reversed([*node.posonlyargs, *node.args]), reversed(node.defaults), strict=False)]
            named += [(a, x) for a, x in zip(node.kwonlyargs, node.kw_defaults, strict=True) if x]
            sizes |= {value for arg, value in named if vocabulary.size(arg.arg) is not None}
        literals = [node for node in nodes if isinstance(node, ast.Constant) and node not in sizes]
        found += [node.value for node in literals if type(node.value) is int]
    return found


def _constants(subject: Subject) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers among the globals that the code reads, and in classes of its file, by name."""
    for code in _codes(subject.target):
        for method in _functions(code):
            read = {name: method.__globals__.get(name) for name in set(names_in(method.__code__))}
            for kind in [*read.values(), *(method.__defaults__ or ())]:
                own = getattr(kind, "__module__", None) == method.__module__
                if isinstance(kind, type) and own and not issubclass(kind, nn.Module):
                    read = read | dict(vars(kind))
            yield from ((name, value) for name, value in read.items() if type(value) is int)


def tensors_of(subject: Subject) -> list[tuple[str, Tensor]]:
    """Return every tensor that a module holds, with its path: parameters, buffers and plain attributes."""
    module = subject.module_as(torch.float64)
    if module is None:
        return []
    found = [*module.named_parameters(), *module.named_buffers()]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, Tensor):
                    found.append((f"{path}.{name}".lstrip("."), tensor))
    return [(path, tensor.detach()) for path, tensor in found]


_ATTENTION = re.compile(r"attention|attn", re.I)
# Karpathy's lecture builds its attention of a list of `Head`.
_HEAD = re.compile(r"head(?!s)$|single", re.I)


def attention_parts(module: nn.Module) -> list[str]:
    """Return the paths of the outermost submodules called attention; the heads of a list do not count."""
    found: list[str] = []
    for path, part in module.named_modules():
        name = type(part).__name__
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and not inside and _ATTENTION.search(name) and not _HEAD.search(name):
            found.append(path)
    return found


def is_block(module: nn.Module) -> bool:
    """Return whether a module has layers around a part that may be an attention, such as an MLP.

    An attention module has its projections, of known names, and at most one that follows the heads.
    """
    matrices = [path for path, p in module.named_parameters() if p.ndim > 1]
    for path, part in module.named_modules():
        inside = [p for p in part.parameters() if p.ndim > 1]
        if not path or len(inside) < 2 or isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        outside = [vocabulary.projection(p) for p in matrices if not p.startswith(f"{path}.")]
        if None in outside or outside.count("out") > 1:
            return True
    return False


def attention_unit(model: nn.Module, path: str) -> str:
    """Return the path of the attention module that a call belongs to: of all heads, with its projections."""
    unit = path.partition("#")[0]
    parent = unit
    while parent:
        parent = parent.rpartition(".")[0]
        part = model.get_submodule(parent)
        if not parent or is_block(part):
            break
        if not isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            unit = parent
    return unit


def cache_parts(module: nn.Module) -> list[str]:
    """Return the paths of a module's attributes, buffers and parts that are named like a cache."""
    # vars() of a module holds all its buffers in one dict, and so its parts, not by their names.
    names = [
        (path, name)
        for path, part in module.named_modules()
        for name in (*vars(part), *part._buffers, *part._modules)
    ]
    return [f"{path}.{name}".lstrip(".") for path, name in names if vocabulary.is_cache(name)]


# LLMs-from-scratch has reset_cache.
RESETS = re.compile(
    r"^(reset|clear|flush|empty|free)(_(kv|the|inference))?(_?(cache|caches|state|states|past|memory))?$"
)
# gpt-fast has setup_caches, LitGPT build_kv_cache, and flash-attn allocate_inference_cache.
SETS_UP = re.compile(r"^(setup|init|allocate|create|enable|make|build|alloc)_?(\w*_)?(cache|caches|kvcache)$")
_METHOD = re.compile(
    r"^((forward|attend|decode|generate|infer|inference|run)_)?"
    r"(step|decode|cached|with_cache|incremental|one|next|token|streaming|inference)(_(step|token|forward))?$"
)


def has_cache(subject: Subject) -> str:
    """Name the argument, attribute or method of a module that looks like a cache; "" if there is none."""
    module = subject.module
    if module is None:
        return ""
    if "cache" in subject.arguments or "use_cache" in subject.arguments:
        return f"argument `{subject.arguments.get('cache') or subject.arguments['use_cache']}`"
    if held := cache_parts(module):
        return f"attribute `{held[0]}`"
    methods = [name for name in own_methods(module) if RESETS.search(name) or SETS_UP.search(name)]
    # `reset` and `clear` alone may be about anything.
    methods = [name for name in methods if name not in ("reset", "clear")] or step_methods(module)
    return f"method `{methods[0]}`" if methods else ""


def own_methods(module: nn.Module) -> list[str]:
    """Return the public methods that the author of a module wrote."""
    own = [kind for kind in type(module).__mro__ if kind not in nn.Module.__mro__]
    return [name for kind in own for name, value in vars(kind).items() if inspect.isfunction(value)]


def step_methods(module: nn.Module) -> list[str]:
    """Return the methods that continue a sequence by their name."""
    names = [name for name in own_methods(module) if _METHOD.search(name.strip("_"))]
    return [name for name in names if len(inspect.signature(getattr(module, name)).parameters) > 0]


def model_sentence(parts: list[str]) -> str:
    """Return what to do with a model that holds these attentions."""
    shown = re.sub(r"\.(\d+)", r"[\1]", parts[0])
    return f"this is a model: hand over `.{shown}`, or use regard.capture to see its attention"


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # whose state is not the author's


class FunctionState:
    """What a function can change: globals, a closure, defaults, attributes, a memo. `restore` brings it back.

    A module is copied for a fresh start; a function cannot be.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._restorers: list[Callable[[], object]] = []
        called = getattr(function, "func", function)  # of a functools.partial
        if not inspect.isroutine(called):  # an object that is called
            self._remember(getattr(called, "__dict__", None))
        for method in itertools.chain(*map(_functions, _codes(function))):
            if not _PACKAGES.search(method.__code__.co_filename):
                self._remember_names(method)

    def restore(self) -> None:
        """Bring back the state."""
        for restore in self._restorers:
            restore()

    def _remember_names(self, function: types.FunctionType) -> None:
        """Remember what a function's names are bound to, and what is in it."""
        values: list[Any] = [function.__dict__, *(function.__defaults__ or ())]
        values += (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                values.append(cell.cell_contents)
                self._restorers.append(partial(setattr, cell, "cell_contents", cell.cell_contents))
        named = function.__globals__
        for name in set(names_in(function.__code__)):
            if name in named:
                values.append(named[name])
                self._restorers.append(partial(operator.setitem, named, name, named[name]))
            else:
                self._restorers.append(partial(named.pop, name, None))
        for value in values:
            self._remember(value)
            own = getattr(value, "__module__", None) == function.__module__
            # A memo of functools.cache can be emptied, but not put back.
            if own and hasattr(value, "cache_clear"):
                self._restorers.append(value.cache_clear)
            elif own and not isinstance(value, type):
                self._remember(getattr(value, "__dict__", None))

    def _remember(self, value: Any) -> None:
        """Remember what is in a container or a tensor."""
        # Sparse tensors and those of the meta device can be neither compared nor overwritten in this way.
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta:
            numbers = value.detach().clone()
            self._restorers.append(lambda: torch.equal(value, numbers) or value.detach().copy_(numbers))
        elif isinstance(value, dict | list | set | deque):
            refill = value.extend if isinstance(value, list | deque) else value.update
            self._restorers += [value.clear, partial(refill, value.copy())]
            for part in value.values() if isinstance(value, dict) else value:
                if isinstance(part, Tensor):
                    self._remember(part)


def error_place(error: BaseException | None, target: Callable[..., Any]) -> str:
    """Return " (kernel.py, line 31)", the last line of the author's file on the way to an error, or ""."""
    frames = _author_frames(error, target)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def lines_reached(error: BaseException | None, target: Callable[..., Any]) -> int:
    """Return the line of the function under test, or of the forward pass, at which an error left it.

    0 if it did not even begin. Of several attempts to call the code, the one that reached the last line is
    the one whose error tells the author most.
    """
    code = _called_code(target)
    inside = [f.lineno or 0 for f in _author_frames(error, target) if code and f.name == code.co_name]
    return inside[0] if inside else 0


def _author_frames(error: BaseException | None, target: Callable[..., Any]) -> list[traceback.FrameSummary]:
    """Return the frames of an error and then of its causes that are in the file of the code under test."""
    code, seen = _called_code(target), list[BaseException]()
    # Triton's interpreter wraps a kernel's error. A chain of causes may be a circle.
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__
    frames = [frame for error in seen for frame in traceback.extract_tb(error.__traceback__)]
    return [frame for frame in frames if code is not None and frame.filename == code.co_filename]


def _called_code(target: Callable[..., Any]) -> types.CodeType | None:
    while isinstance(target, functools.partial):
        target = target.func
    # The forward pass, if it is a module.
    code = getattr(getattr(type(target), "forward", inspect.unwrap(target)), "__code__", None)
    return code if isinstance(code, types.CodeType) else None
