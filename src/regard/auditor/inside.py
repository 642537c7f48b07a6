"""From inside: the mask that each layer was heard to use, against the one that it should have."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.position_masks import Window
from regard.auditor.batch import TextBatch
from regard.auditor.cells import NO_CELLS, Cells, FirstKeys, are_equal, cells_beyond, on_cpu
from regard.auditor.expectation import Expectation, expect_layer, head_shares, rows_of
from regard.recorder.layer import Layer
from regard.recorder.result import Capture


@dataclass(frozen=True)
class LayerReading:
    """What one layer saw on a batch, and what it should have seen."""

    name: str
    """The module's name in the model."""
    key: int | str
    """Its key in a capture."""
    kind: str
    """"self", "encoder", "cross", or "other" for a layer whose tokens are not those of the batch."""
    mask: str
    """The mask that was heard."""
    expected: str
    """The mask that it should have; "" if that is not known."""
    certified: bool
    why: str = ""
    """Why it is not certified, or not judged."""
    wrong: dict[str, Cells] = field(default_factory=dict)
    """By question ("future", "documents", "padding", "window", "given"): the cells that it sees and should
    not. "hidden": the cells that it should see and does not."""
    shares: dict[str, Tensor] = field(default_factory=dict)
    """By question: the mean share of its attention that each head gives to those cells, (H,)."""
    window: int | None = None
    """The size of the window that was heard."""
    expected_window: int | None = None
    lost: tuple[str, ...] = ()
    """"sinks" or "softcap", which the model has and the layer's attention did not use."""
    sees_only_padding: bool = False
    hears_padding: bool = False
    """Whether the mask that was heard hides padding."""
    is_causal: bool = False
    is_linear: bool = False
    asked: tuple[str, ...] = ()
    """The questions that this layer answers."""
    heard_mask: Mask | None = field(default=None, repr=False)
    expected_mask: Mask | None = field(default=None, repr=False)
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    """(B, H, T, S)"""


def read_layers(
    model: nn.Module, seen: Capture, batch: TextBatch, order: bool | None, expect: Mask | None
) -> list[LayerReading]:
    """Return what each captured layer saw, and where that differs from what it should see."""
    known: dict[tuple[int, str], Cells] = {}  # layers mostly share their masks
    masks: list[Mask] = []
    readings = []
    for layer in seen.layers:
        if layer.placement is not None and not layer.placement.is_map:
            why = "this rank has a part of its rows or keys only"
            readings.append(LayerReading(layer.name, layer.key, "other", "", "", False, why))
            continue
        heard = on_cpu(layer.map.mask)
        heard = next((mask for mask in masks if are_equal(mask, heard)), heard)
        masks.append(heard)
        expected = expect_layer(model, layer, batch, order, expect)
        readings.append(read_layer(layer, heard, expected, batch, known))
    return readings


def read_layer(
    layer: Layer,
    heard: Mask,
    expected: Expectation,
    batch: TextBatch,
    known: dict[tuple[int, str], Cells],
) -> LayerReading:
    """Compare the mask of one layer with what it should see; `known` holds the cells of layers before it."""
    certified, why = layer.evidence.certified, layer.evidence.problem or ""
    if expected.kind == "other":
        why = "its queries and keys are not the tokens of the batch"
        return LayerReading(
            layer.name,
            layer.key,
            "other",
            str(heard),
            "",
            certified,
            why,
            heard_mask=heard,
            shape=layer.shape,
        )
    rows = rows_of(batch, expected.kind)
    B, H, T, S = layer.shape
    shape, inner = layer.shape, heard
    # Keys at the end that nobody sees and that are all alike are taken for room in a cache: padding is.
    if expected.kind == "self" and S < T:
        shape, heard = (B, H, T, T), FirstKeys(inner, S)
    parts = expected.parts()
    # What a linear layer keeps of padding and other documents may be 0, which its mask does not show.
    if layer.is_linear:
        parts = {name: part for name, part in parts.items() if name == "future"}
    wrong: dict[str, Cells] = {}
    shares: dict[str, Tensor] = {}
    for question, part in parts.items():
        at = (id(inner), f"{question} {expected.kind} {part} {shape}")
        cells = known[at] if at in known else cells_beyond(heard, part, shape, rows)
        known[at] = cells
        if cells.number:
            wrong[question] = cells
            if not layer.is_linear and not part.biased and shape == layer.shape:
                shares[question] = head_shares(layer, ~part, rows)
    whole, is_known = expected.mask(), expected.is_known
    hidden = NO_CELLS
    answers_hidden = is_known and expected.window_known and not layer.is_linear
    if answers_hidden:
        at = (id(inner), f"hidden {expected.kind} {whole} {shape}")
        hidden = known[at] if at in known else cells_beyond(whole, heard, shape, rows)
        known[at] = hidden
    if hidden.number:
        wrong["hidden"] = hidden
    lost = []
    if not layer.is_linear:
        settings = layer.settings
        lost += ["sinks"] if expected.sinks and not settings.has_sinks else []
        lost += ["softcap"] if expected.softcap is not None and settings.softcap is None else []
    only_padding = False
    if expected.padding is not None and "padding" in wrong:
        # A query may see itself all the same: else its softmax would have nothing to sum.
        only_padding = not cells_beyond(heard, ~expected.padding | Window(1), shape, rows).number
    asked = [*parts, *(["hidden"] if answers_hidden else [])]
    return LayerReading(
        layer.name,
        layer.key,
        expected.kind,
        str(heard),
        str(whole) if is_known else "",
        certified,
        why,
        wrong,
        shares,
        window=inner.window_size(),
        expected_window=None if expected.window is None else expected.window.window_size(),
        lost=tuple(lost),
        sees_only_padding=only_padding,
        hears_padding=any(part.is_padding for part in inner.conjuncts()),
        is_causal=inner.is_causal,
        is_linear=layer.is_linear,
        asked=tuple(asked),
        heard_mask=heard,
        expected_mask=whole if is_known else None,
        shape=shape,
    )


def layer_keys(layers: list[LayerReading]) -> str:
    """Return the keys of layers in a few words."""
    return ", ".join(str(layer.key) for layer in layers[:6]) + (", …" if len(layers) > 6 else "")
