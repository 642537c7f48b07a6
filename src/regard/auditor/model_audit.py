"""`regard.audit`: does this model, on this batch, read what it should?"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from regard.attention.masks.base import Mask
from regard.auditor.answers import answer, decide
from regard.auditor.batch import ID_NAMES, TextBatch, read_batch
from regard.auditor.diagnosis import diagnose
from regard.auditor.expectation import is_causal_model
from regard.auditor.inside import join_readings, read_layers
from regard.auditor.outside import Prober
from regard.auditor.ranks import Ranks, join_ranks
from regard.auditor.result import QUESTIONS, Audit
from regard.interventions.effects import evaluating
from regard.recorder import capture
from regard.recorder.capture_result import Capture

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def audit(
    model: nn.Module,
    batch: Mapping[str, Any] | Tensor,
    *,
    expect: Mask | None = None,
    documents: Tensor | None = None,
    layers: Sequence[int | str] | None = None,
    outside: bool = True,
    group: Any = None,
    rows: Tensor | None = None,
) -> Audit:
    """Audit what a model reads on a batch, from inside by its layers' masks, from outside by changing tokens.

    What it should read comes from the batch (padding, restarting positions, document ids) and from the
    model's configuration (causal or not, windows, layer types). What was assumed is said first. The model is
    run in evaluation mode, without gradients, and is left as it was.

    Arguments:
        model: any model that capture hears; one that it does not hear is audited from outside only.
        batch: what the trainer passes to the model: a dict from the collator, or token ids (B, T).
        expect: the mask that every self-attention layer should have, as regard.causal; instead of what the
            model's class and configuration say.
        documents: the document of each token, (B, T) or (T,), if the batch does not say it.
        layers: the keys of the layers to hear, as of `capture`; None for all.
        outside: whether to change tokens and run again, nine times at most, or twelve to find what moves.
        group: the processes that run the model together, each with its own tokens as `batch`; all of them
            call this, and all get the same verdict. Those of a tensor-parallel model are found.
        rows: the positions in the whole text of this process's tokens, (T,), as
            `regard.attention.ring_positions` gives them; None if `position_ids` count through the whole text
            and say so.

    >>> import regard, torch
    >>> from regard.gpt import GPT, Config
    >>> _ = torch.manual_seed(0)
    >>> model = GPT(Config(vocab_size=32, context_length=16, num_layers=1, d_model=16, num_heads=2))
    >>> regard.audit(model, torch.randint(0, 32, (1, 12))).verdict
    'right'
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if expect is not None and not isinstance(expect, Mask):
        raise ValueError(f"expect: expected a mask, as regard.causal, got {type(expect).__name__}")
    if isinstance(batch, Tensor):
        batch = {_ids_name(model): batch}
    result = Audit(type(model).__name__)
    config = getattr(model, "config", None)
    if isinstance(batch, Mapping):
        batch = _with_decoder_ids(model, _placed(model, batch), result)
    text = read_batch(batch, documents, config)
    ranks, whole = join_ranks(model, text.arguments, text.name, group, rows)
    if ranks.positions:
        result.is_split = True
        count, own = len(ranks.positions), len(ranks.positions[0])
        result.assumptions.append(f"{count} ranks hold parts of each text, rank 0 {own} of its tokens")
        text = read_batch(whole, _joined(documents, ranks, text), config)
    order, said = is_causal_model(model)
    if expect is not None:
        # It may hide every later token, no token at all, or others.
        order = True if expect.is_causal else None if expect.conjuncts() else False
        said = f"every layer sees {expect}, as you said"
        _check_fits(expect, text)
    elif text.given_mask is not None:
        order = None
    elif text.blocks is not None:
        order, said = True, f"{result.subject} is causal but for its prefix"
    result.assumptions[:0] = [said] if order is not None or expect is not None else []
    result.assumptions += list(text.assumptions)
    text = _as_trained(model, _accepted(model, text, result), result)
    seen, output = _hear(model, text, layers, ranks, result)
    if seen is not None:
        result.layers = read_layers(model, seen, text, order, expect, ranks)
    result.layers = join_readings(result.layers, ranks)
    result.not_heard = tuple(dict.fromkeys(x for xs in ranks.exchange(result.not_heard) for x in xs))
    heard = [x for x in result.layers if x.kind != "other"]
    all_heard = bool(heard) and not result.not_heard and all(x.certified for x in heard)
    all_heard = all_heard and len(heard) == len(result.layers)
    if outside:
        right = all_heard and not any(x.wrong for x in heard)
        prober = Prober(model, text, ranks)
        try:
            result.outside = prober.probe(order, right, output)
        finally:
            prober.wait()
    if not bool(text.real.any()):
        result.undecided = "every token of the batch is padding"
        return result
    answer(result, text, order, expect, all_heard)
    result.diagnoses = diagnose(result, text, config, expect)
    decide(result, text, order, said, expect)
    result.notes += _notes(text, config, result)
    return result


def _joined(documents: Tensor | None, ranks: Ranks, text: TextBatch) -> Tensor | None:
    """Return the documents of the tokens of all ranks, if they are told to each."""
    if not all(ranks.exchange(documents is not None)) or documents is None:
        return None
    assert text.documents is not None
    return ranks.join(text.documents).long()


def _notes(text: TextBatch, config: Any, result: Audit) -> list[str]:
    """Return what else the user should know, in sentences."""
    notes = []
    if result.verdict == "right" and "texts" not in result.outside.answers:
        one = int(text.real.any(1).sum()) < 2
        why = "there is one" if one else result.outside.why or "no other tokens were tried"
        notes.append(f"not asked: whether {QUESTIONS['texts']}; {why}")
    eos = getattr(config, "eos_token_id", None)
    inner = text.real[:, 1:] & text.real[:, :-1]
    has_ends = isinstance(eos, int) and bool(((text.ids[:, :-1] == eos).cpu() & inner).any())
    if text.documents is None and has_ends:
        notes.append("end-of-text tokens lie inside the texts: if they end documents, pass documents=")
    windows = {
        x for x in (getattr(config, "sliding_window", None),) if isinstance(x, int) and x < text.shape[1]
    }
    types = getattr(config, "layer_types", None) or ()
    if text.given_mask is not None and windows and (not types or "sliding_attention" in types):
        notes.append(
            f"a mask {tuple(text.given_mask.shape)} takes the place of the model's own in every layer: "
            f"its windows of {windows.pop()} keys are only used if they are in yours"
        )
    alone = not result.is_split and distributed.is_available() and distributed.is_initialized()
    if result.verdict == "undecided" and alone and distributed.get_world_size() > 1:
        notes.append("this process was audited alone: if other ranks hold parts of its texts, pass group=")
    return notes


def _ids_name(model: nn.Module) -> str:
    named = [x.name for x in inspect.signature(model.forward).parameters.values() if x.kind in NAMED]
    return next((x for x in named if x in ID_NAMES), named[0] if named else ID_NAMES[0])


def _placed(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}


def _with_decoder_ids(model: nn.Module, batch: dict[str, Any], result: Audit) -> dict[str, Any]:
    """Return a batch with the decoder's tokens, which a model with an encoder else makes of the labels."""
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or isinstance(batch.get("decoder_input_ids"), Tensor):
        return batch
    labels, make = batch.get("labels"), getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if not isinstance(labels, Tensor) or make is None:
        raise ValueError(
            f"batch: expected decoder_input_ids or labels, since {type(model).__name__} has an encoder and a "
            f"decoder, got {', '.join(batch) or 'nothing'}"
        )
    result.assumptions.append("decoder_input_ids are the labels moved by one token, as the model makes them")
    return batch | {"decoder_input_ids": make(labels)}


def _check_fits(expect: Mask, text: TextBatch) -> None:
    B, T = text.shape
    if (reason := expect.shape_error(B, None, T, T)) is not None:
        raise ValueError(f"expect: {expect} does not fit the batch of {B} texts of {T} tokens: {reason}")


def _accepted(model: nn.Module, text: TextBatch, result: Audit) -> TextBatch:
    """Return the batch without what the model's forward pass does not take, as the names of files."""
    parameters = inspect.signature(model.forward).parameters.values()
    named = {x.name for x in parameters if x.kind in NAMED}
    takes_more = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters)
    dropped = [
        name
        for name, x in text.arguments.items()
        if name not in named
        and name != text.name
        and not (takes_more and isinstance(x, Tensor | Mask | bool | int | float | None))
    ]
    if not dropped:
        return text
    names = ", ".join(f"`{name}`" for name in dropped)
    result.assumptions.append(f"{names}: not passed on, since the model takes no argument of that name")
    return replace(text, arguments={k: v for k, v in text.arguments.items() if k not in dropped})


def _as_trained(model: nn.Module, text: TextBatch, result: Audit) -> TextBatch:
    """Return the batch as the model gets it in training: checkpointing switches its cache off."""
    checkpoints = model.training and bool(getattr(model, "is_gradient_checkpointing", False))
    if not checkpoints or "use_cache" in text.arguments:
        return text
    result.assumptions.append("use_cache=False, as gradient checkpointing sets it in training")
    text.arguments["use_cache"] = False
    return text


def _hear(
    model: nn.Module, text: TextBatch, layers: Sequence[int | str] | None, ranks: Ranks, result: Audit
) -> tuple[Capture | None, Any]:
    """Run the model once under capture, and return what was seen and what the model returned.

    If nothing can be heard both are None, and why is in the result.
    """
    arguments = ranks.own_arguments(text.arguments)
    group = None if ranks.group is None else ranks.group.group
    with warnings.catch_warnings(), torch.no_grad(), evaluating(model), ranks.placing(text):
        # What capture warns of stands in the report.
        warnings.simplefilter("ignore")
        try:
            with capture(model, layers=layers, group=group) as seen:
                output = model(**arguments)
        except Exception as error:  # whatever capture or the model says, the model alone must run
            _check_runs(model, arguments)
            result.not_heard = (f"nothing was heard from inside: {_first_line(error)}",)
            return None, None
    missing = [f"{name}: {reason}" for name, reason in seen.missing.items()]
    others = [
        f"{name} mixes tokens, and is no attention" for name in getattr(seen.certificate, "other_mixers", ())
    ]
    result.not_heard = tuple(f"not heard: {sentence}" for sentence in (*missing, *others))
    return seen, output


def _check_runs(model: nn.Module, arguments: dict[str, Any]) -> None:
    try:
        model(**arguments)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} does not run on this batch ({', '.join(arguments)}): "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
