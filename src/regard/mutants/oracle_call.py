"""The oracle's call with which a test compares the target's output, as text."""

from __future__ import annotations

from regard.mutants.call_reader import Reading


def views(layout: str) -> tuple[str, str]:
    """Return how a tensor of a layout becomes one that the oracle takes, and how its output goes back."""
    return {
        "BTHD": (".transpose(1, 2)", ".transpose(1, 2)"),
        "TBHD": (".permute(1, 2, 0, 3)", ".permute(2, 0, 1, 3)"),
        "TBD": (".transpose(0, 1)", ".transpose(0, 1)"),
    }.get(layout, ("", ""))


def expected_options(reading: Reading) -> dict[str, str]:
    """Return the oracle's arguments for what a call asks, as text."""
    question, masks = reading.question, []
    top_left = reading.convention.aligned == "top left" and question.q.shape[2] != question.k.shape[2]
    if question.causal:
        masks.append("regard.causal.top_left" if top_left else "regard.causal")
    if question.window is not None:
        ahead = "" if question.ahead is None else f", ahead={question.ahead}"
        masks.append(f"regard.window({question.window}{ahead})")
    if question.mask is not None:
        is_padding = bool((question.mask == question.mask[..., :1, :]).all()) and question.mask.ndim == 4
        masks.append("regard.padding(tokens)" if is_padding else "regard.tensor_mask(mask)")
    if question.padding is not None:
        masks.append("regard.padding(tokens)")
    if question.bias is not None:
        masks.append("regard.tensor_mask(bias)")
    options = {"mask": " & ".join(masks)} if masks else {}
    if reading.wiring.scale is not None:
        options["scale"] = repr(reading.wiring.scale)
    if question.softcap is not None:
        options["softcap"] = repr(question.softcap)
    if question.sinks is not None:
        options["sinks"] = "sinks.double()"
    return options
