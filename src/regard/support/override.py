"""Temporary wrappers of methods and functions: what a capture puts around a model's code and takes off again.

A wrapper acts in the context (`contextvars`) that activated it and in contexts copied from it. Other threads
run the wrapped code as if nothing had been done to it. Methods are replaced in the class, so that nothing is
stored in an object: a copy of a model that is being captured is an ordinary model.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar

from torch.compiler import is_compiling

T = TypeVar("T")
Wrapper = Callable[..., Any]
"""`wrapper(method, *args, **kwargs)`, called in place of `method(*args, **kwargs)`."""


class Replacement(NamedTuple):
    """An attribute that is replaced: `owner.name` becomes `wrap(owner.name)`."""

    owner: Any
    name: str
    wrap: Callable[[Any], Any]


class SharedOverride:
    """Replaces attributes while at least one block is open, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before: dict[tuple[int, str], tuple[Any, Any, Any]] = {}
        """The owner, its own value or None, and what it has been replaced by."""

    @contextmanager
    def opened(self, replacements: Iterable[Replacement] = ()) -> Iterator[None]:
        """Open a block in which attributes are replaced; when the last one ends, all are restored.

        An attribute that somebody else has set or deleted since stays as it is.
        """
        with self._lock:
            self._open += 1
        try:
            for replacement in replacements:
                self.replace(*replacement)
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    for (_, name), (owner, own, replacement) in self._before.items():
                        # A library may have patched the attribute while the block was open; to restore ours
                        # would undo its patch.
                        if vars(owner).get(name) is replacement:
                            _set_own(owner, name, own)
                    self._before.clear()

    def replaces(self, owner: Any, name: str) -> bool:
        """Whether an attribute is replaced now."""
        return (id(owner), name) in self._before

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `wrap(owner.name)`, once, while a block is open."""
        with self._lock:
            if self._open and (id(owner), name) not in self._before:
                # `own` is None if the attribute is inherited: then the replacement is deleted, and the class
                # speaks again.
                own, replacement = vars(owner).get(name), wrap(getattr(owner, name))
                _set_own(owner, name, replacement)
                self._before[id(owner), name] = (owner, own, replacement)


def _set_own(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a class, a file or an object itself; None removes it."""
    own = vars(owner)
    # A class's `vars` is a mappingproxy, which cannot be written to.
    if isinstance(own, dict):  # nn.Module.__setattr__ would register modules and parameters
        own.update({name: value}) if value is not None else own.pop(name, None)
    elif value is not None:
        setattr(owner, name, value)
    else:
        delattr(owner, name)


class _ContextEntry(Generic[T]):
    """An entry: one value while its block is open, and none after that, in whichever context it is still."""

    def __init__(self, value: T) -> None:
        self.values: tuple[T, ...] = (value,)


class ContextEntries(Generic[T]):
    """A list that belongs to a context. A context copied from it has the entries that are still open.

    A block may be left in another context than it was entered in, as that of an abandoned generator is. Its
    entry then counts in neither.
    """

    def __init__(self, name: str) -> None:
        self._entries: ContextVar[tuple[_ContextEntry[T], ...]] = ContextVar(name, default=())

    def get(self) -> tuple[T, ...]:
        """Return the entries of the current context whose blocks are open, in the order of opening."""
        entries = self._entries.get()
        if len(entries) < 2:  # as nearly always, and attention functions ask at every call
            return entries[0].values if entries else ()
        return tuple(value for entry in entries for value in entry.values)

    @contextmanager
    def added(self, value: T) -> Iterator[None]:
        """Add an entry for the length of the block."""
        entry = _ContextEntry(value)
        self._entries.set((*self._still_open(), entry))
        try:
            yield
        finally:
            # The value is taken out of the entry itself, since contexts that were copied meanwhile share the
            # entry.
            entry.values = ()
            self._entries.set(self._still_open())

    def _still_open(self) -> tuple[_ContextEntry[T], ...]:
        return tuple(entry for entry in self._entries.get() if entry.values)


_Key = tuple[int, str]  # the id of an object and the name of a method
_active: ContextEntries[Mapping[_Key, list[Wrapper]]] = ContextEntries("method_wrappers")
_observers: dict[_Key, list[Callable[[], None]]] = {}
"""What to call when a wrapped method runs in a context that has no wrapper for it."""
_within_own: ContextVar[_Key | None] = ContextVar("within_own_method", default=None)
_override = SharedOverride()


class MethodWrappers:
    """Wrappers of methods of some objects, which act in the context that activates them."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}  # by their ids, which are unique while the objects are stored
        self._wrappers: dict[_Key, list[Wrapper]] = {}
        self._observers: list[tuple[_Key, Callable[[], None]]] = []

    def add(self, obj: Any, name: str, wrapper: Wrapper, elsewhere: Callable[[], None] | None = None) -> None:
        """Wrap `obj.name`. `elsewhere` is called when it runs in a context that does not wrap it."""
        self._objects[id(obj)] = obj
        self._wrappers.setdefault((id(obj), name), []).append(wrapper)
        if elsewhere is not None:
            self._observers.append(((id(obj), name), elsewhere))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block, calls of the methods by this context go through the wrappers."""
        with ExitStack() as undo:
            undo.enter_context(_override.opened())
            for key in self._wrappers:
                _intercept(self._objects[key[0]], key[1])
            undo.callback(self._remove_observers)
            for key, observer in self._observers:
                _observers.setdefault(key, []).append(observer)
            undo.enter_context(_active.added(self._wrappers))
            yield

    def _remove_observers(self) -> None:
        for key, observer in self._observers:
            _observers[key] = [x for x in _observers.get(key, ()) if x is not observer]
            if not _observers[key]:
                del _observers[key]


def _intercept(obj: Any, name: str) -> None:
    """Have each call of a method look for wrappers: in its class, or in an object that has its own method."""
    kind = type(obj)
    if name not in vars(obj) and _override.replaces(kind, name):
        return  # most modules of a model are of few classes
    # Not getattr, which would run a property or a descriptor of the model's class. `inspect.getattr_static`
    # takes a tenth of the time in which a capture opens.
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    if name not in vars(obj) and isinstance(found, FunctionType):
        _override.replace(kind, name, functools.partial(_class_method, kind, name))
    else:
        _override.replace(obj, name, functools.partial(_OwnMethod, obj, name))


def _class_method(kind: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a class that looks for wrappers when objects of just this class call it."""
    if getattr(method, "dispatches", None) == (kind, name):  # somebody has read it in a block and put it back
        return method

    @functools.wraps(method)
    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A subclass calls this by super(), and an own method of the object may have looked for them already.
        # torch.compile would bake the wrappers of this moment into the graph, and serve it after the block.
        if is_compiling() or type(self) is not kind or _within_own.get() == (id(self), name):
            return method(self, *args, **kwargs)
        return _call((id(self), name), functools.partial(method, self), args, kwargs)

    dispatch.dispatches = (kind, name)  # type: ignore[attr-defined]
    return dispatch


class _OwnMethod:
    """A method that an object holds itself, and that looks for wrappers; a copy of it is the plain method."""

    def __init__(self, obj: Any, name: str, method: Callable[..., Any]) -> None:
        self._key, self._method = (id(obj), name), method
        functools.update_wrapper(self, method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return self._method(*args, **kwargs)
        return _call(self._key, self._run, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        token = _within_own.set(self._key)
        try:
            return self._method(*args, **kwargs)
        finally:
            _within_own.reset(token)

    # copy.deepcopy of a model in a block would else share the id of the original, and be captured with it.
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._method, memo)

    def __reduce__(self) -> Any:
        return _identity, (self._method,)


def _identity(x: Any) -> Any:
    return x


def _call(key: _Key, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method through the wrappers that this context has for it, the latest outermost."""
    wrappers = [wrapper for entry in _active.get() for wrapper in entry.get(key, ())]
    if not wrappers:
        for observer in _observers.get(key, ()):
            observer()
    for wrapper in wrappers:
        method = functools.partial(wrapper, method)
    return method(*args, **kwargs)
