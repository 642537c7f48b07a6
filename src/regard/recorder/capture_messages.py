"""What a capture says when attention was not heard, and how to have it heard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from regard.recorder.sources.compilation import compiled_methods

ADAPTERS = "regard.capture(model, adapters={name: adapter}) serves any softmax attention"


def nothing_heard_message(model: nn.Module, unreadable: Mapping[str, str]) -> str:
    """Explain why a model that ran has no captured layer, the cause first."""
    name = type(model).__name__
    if unreadable:
        module, reason = next(iter(unreadable.items()))
        more = f"; and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        return f"{name} ran, but its attention could not be read ({module}: {reason}{more}). {ADAPTERS}"
    if compiled := next(compiled_methods(model), None):
        return (
            f"{name} ran, but {compiled} is compiled, and nothing can be heard inside compiled code: open "
            'the capture inside `with torch.compiler.set_stance("force_eager"):`'
        )
    return (
        f"{name} ran, but no attention call was heard. Heard are scaled_dot_product_attention, "
        "regard.attend, Transformers' AttentionInterface and a softmax between two matrix products, unless "
        f"compiled code calls them. {ADAPTERS}"
    )


def not_captured_messages(
    model: nn.Module, missing: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[str]:
    """Yield the warnings about modules that mix tokens and were not captured, grouped by their classes.

    `missing` maps the name of each module to its class, or to the reason why it could not be read; `others`
    are not attention.
    """
    name = type(model).__name__
    if missing:
        modules, are = ("modules that mix", "are") if len(missing) > 1 else ("module that mixes", "is")
        yield (
            f"{name}: {len(missing)} {modules} tokens could not be captured and {are} missing: "
            f"{_by_kind(missing)}. seen.missing names them all. {ADAPTERS}"
        )
    if others:
        modules, have = ("modules mix", "have") if len(others) > 1 else ("module mixes", "has")
        yield (
            f"{name}: {len(others)} {modules} tokens in another way than by attention and {have} no map: "
            f"{_by_kind(others)}. seen.other_mixers names them all"
        )


def _by_kind(modules: Mapping[str, str]) -> str:
    """Return the classes of modules, with the names of the first ones of each."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in modules.items():
        by_kind.setdefault(kind, []).append(name)
    return "; ".join(
        f"{kind} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
        for kind, names in by_kind.items()
    )
