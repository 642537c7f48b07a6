"""Who receives the attention calls of a running model: the listeners whose blocks are open in a context.

Every source passes what it hears to `current_listeners`, or to `listeners_to` a module that it knows, by
`notify`. This file knows calls and modules; it does not know how a call was intercepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import nn

from regard.recorder.attention_call import Call, UnreadableCall
from regard.recorder.map_preparation import without_gradients
from regard.recorder.sources import token_order
from regard.recorder.sources.structure_of_models.calling_modules import calling_module
from regard.support.override import ContextEntries

if TYPE_CHECKING:
    from regard.recorder.sources.listener import Listener

T = TypeVar("T")


class CallListener(NamedTuple):
    """A function that receives attention calls and returns them as the model goes on with them."""

    hear: Callable[[Call], Call]
    is_editor: bool = False
    """Whether it may change the output; the others then receive the edited call."""
    wants_overview: bool = False
    """Whether the attention that is called should hand out an overview."""
    query_shape: Sequence[int] | None = None
    """The shape (B, H, T, D) of the queries before a function of Transformers packs heads; None elsewhere."""


open_listeners: ContextEntries[Listener] = ContextEntries("attention_listeners")
"""The listeners of the captures and interventions that are open in a context."""
_instead: ContextVar[tuple[CallListener, ...] | None] = ContextVar("listeners_instead", default=None)


class Listening(token_order.Pause):
    """Inside the block, these listeners and no others receive the calls that this context makes.

    Without any a call is being computed or read, by operators that are not the model's.
    """

    def __init__(self, *listeners: CallListener) -> None:
        self._listeners = listeners

    def __enter__(self) -> None:
        self._outer = _instead.set(self._listeners)
        if not self._listeners:
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        if not self._listeners:
            super().__exit__(*error)
        _instead.reset(self._outer)


def is_nested() -> bool:
    """Whether some listeners stand in for those of the open blocks."""
    return _instead.get() is not None


def is_reading() -> bool:
    """Whether a call is being computed or read, so that the functions that this calls are not heard."""
    return _instead.get() == ()


def current_listeners() -> tuple[CallListener, ...]:
    """Return the listeners to the module whose code is running, those that edit first."""
    if (instead := _instead.get()) is not None:
        return instead
    return listeners_to(calling_module()) if open_listeners.get() else ()


def listeners_to(*modules: nn.Module) -> tuple[CallListener, ...]:
    """Return the open listeners, each to the innermost of some modules, outermost first, that it knows."""
    known = ((x, next((m for m in reversed(modules) if m in x.names), None)) for x in open_listeners.get())
    listeners = (x.to(module) for x, module in known if module is not None)
    # A recording is to receive each call as it was edited.
    return tuple(sorted(listeners, key=lambda listener: not listener.is_editor))


def notify(listeners: Iterable[CallListener], call: Call) -> Call:
    """Pass a call to listeners, one after another, and return it as the last one returns it."""
    for listener in listeners:
        call = listener.hear(call)
    return call


def collecting(
    calls: list[Call],
    listeners: Sequence[CallListener] = (),
    overview: bool = False,
    query_shape: Sequence[int] | None = None,
) -> CallListener:
    """Return a listener that passes calls to others, and appends them to a list as these return them."""

    def collect(call: Call) -> Call:
        calls.append(notify(listeners, call))
        return calls[-1]

    return CallListener(collect, any(x.is_editor for x in listeners), overview, query_shape)


def wants_overview(listeners: Sequence[CallListener]) -> bool:
    """Return whether a call should hand out an overview. Edited weights would have another one."""
    return any(x.wants_overview for x in listeners) and not any(x.is_editor for x in listeners)


def reading_mode(listeners: Iterable[CallListener]) -> AbstractContextManager[Any]:
    """Return the mode to read a call in: without gradients, unless an edited output needs them."""
    return nullcontext() if any(listener.is_editor for listener in listeners) else without_gradients()


def read_or_explain(read: Callable[..., T], *args: Any, **kwargs: Any) -> T | UnreadableCall:
    """Return `read(*args, **kwargs)`, or why it failed, since that must not stop the model."""
    try:
        return read(*args, **kwargs)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, RuntimeError) as error:
        return UnreadableCall(f"{type(error).__name__}: {error}")
