"""`regard.audit`: does this model, on this batch, read what it should?"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.auditor.batch import ID_NAMES, IGNORED, TextBatch, read_batch
from regard.auditor.catalogue import reading_mistakes
from regard.auditor.expectation import is_causal_model, mask_parts
from regard.auditor.inside import LayerReading, read_layers
from regard.auditor.outside import Prober
from regard.auditor.result import QUESTIONS, Audit, ReadingAnswer, ReadingDiagnosis
from regard.interventions.effects import evaluating
from regard.recorder import capture
from regard.recorder.result import Capture

INSIDE = ("future", "documents", "padding", "window", "given", "hidden")
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def audit(
    model: nn.Module,
    batch: Mapping[str, Any] | Tensor,
    *,
    expect: Mask | None = None,
    documents: Tensor | None = None,
    layers: Sequence[int | str] | None = None,
    outside: bool = True,
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
        outside: whether to change tokens and run again, twelve times at most.

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
    order, said = is_causal_model(model)
    if expect is not None:
        order, said = _expected_order(expect), f"every layer sees {expect}, as you said"
        _check_fits(expect, text)
    elif text.given_mask is not None:
        order = None
    elif text.blocks is not None:
        order, said = True, f"{result.subject} is causal but for its prefix"
    result.assumptions[:0] = [said] if order is not None or expect is not None else []
    result.assumptions += list(text.assumptions)
    text = _as_trained(model, _accepted(model, text, result), result)
    seen = _hear(model, text, layers, result)
    if seen is not None:
        result.layers = read_layers(model, seen, text, order, expect)
    heard = [x for x in result.layers if x.kind != "other"]
    all_heard = bool(heard) and not result.not_heard and all(x.certified for x in heard)
    all_heard = all_heard and len(heard) == len(result.layers)
    if outside:
        right = all_heard and not any(x.wrong for x in heard)
        result.outside = Prober(model, text).probe(order, right)
    if not bool(text.real.any()):
        result.undecided = "every token of the batch is padding"
        return result
    _answer(result, text, order, expect, all_heard)
    _diagnose(result, text, config, expect)
    _decide(result, text, order, said, expect)
    eos = getattr(config, "eos_token_id", None)
    inner = text.real[:, 1:] & text.real[:, :-1]
    if (
        text.documents is None
        and isinstance(eos, int)
        and bool(((text.ids[:, :-1] == eos).cpu() & inner).any())
    ):
        result.notes.append("end-of-text tokens lie inside the texts: if they end documents, pass documents=")
    return result


def _ids_name(model: nn.Module) -> str:
    """Return the name of the argument of a model that takes token ids."""
    named = [x.name for x in inspect.signature(model.forward).parameters.values() if x.kind in NAMED]
    return next((x for x in named if x in ID_NAMES), named[0] if named else ID_NAMES[0])


def _placed(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch on the model's device."""
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


def _expected_order(expect: Mask) -> bool | None:
    """Return whether an expected mask hides every later token (True), no token at all (False), or others."""
    return True if expect.is_causal else None if expect.conjuncts() else False


def _check_fits(expect: Mask, text: TextBatch) -> None:
    """Raise ValueError if an expected mask is not one for the tokens of a batch."""
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
        if name not in named and name != text.name and not (takes_more and _is_plain(x))
    ]
    if not dropped:
        return text
    names = ", ".join(f"`{name}`" for name in dropped)
    result.assumptions.append(f"{names}: not passed on, since the model takes no argument of that name")
    return replace(text, arguments={k: v for k, v in text.arguments.items() if k not in dropped})


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, Tensor | Mask | bool | int | float)


def _as_trained(model: nn.Module, text: TextBatch, result: Audit) -> TextBatch:
    """Return the batch as the model gets it in training: checkpointing switches its cache off."""
    checkpoints = model.training and bool(getattr(model, "is_gradient_checkpointing", False))
    if not checkpoints or "use_cache" in text.arguments:
        return text
    result.assumptions.append("use_cache=False, as gradient checkpointing sets it in training")
    text.arguments["use_cache"] = False
    return text


def _hear(
    model: nn.Module, text: TextBatch, layers: Sequence[int | str] | None, result: Audit
) -> Capture | None:
    """Run the model once under capture; None if nothing can be heard, and why is in the result."""
    with warnings.catch_warnings(), torch.no_grad(), evaluating(model):
        warnings.simplefilter("ignore")
        try:
            with capture(model, layers=layers) as seen:
                model(**text.arguments)
        except Exception as error:  # whatever capture or the model says, the model alone must run
            _check_runs(model, text)
            result.not_heard = (f"nothing was heard from inside: {_first_line(error)}",)
            return None
    missing = [f"{name}: {reason}" for name, reason in seen.missing.items()]
    others = [
        f"{name} mixes tokens, and is no attention" for name in getattr(seen.certificate, "other_mixers", ())
    ]
    result.not_heard = tuple(f"not heard: {sentence}" for sentence in (*missing, *others))
    return seen


def _check_runs(model: nn.Module, text: TextBatch) -> None:
    """Raise ValueError if a model does not run on a batch."""
    try:
        model(**text.arguments)
    except Exception as error:
        kinds = ", ".join(text.arguments)
        raise ValueError(
            f"{type(model).__name__} does not run on this batch ({kinds}): "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _answer(result: Audit, text: TextBatch, order: bool | None, expect: Mask | None, all_heard: bool) -> None:
    """Put together what inside and outside say to each question that the batch asks."""
    judged = [x for x in result.layers if x.kind != "other"]
    outside = result.outside
    for question in QUESTIONS:
        asked = [x for x in judged if question in x.asked]
        inside: bool | None = None
        evidence = outside.evidence.get(question, "")
        if question in INSIDE and asked:
            wrong = [x for x in asked if question in x.wrong and x.certified]
            # A linear layer's mask does not say what it keeps of other documents and of padding.
            is_told = question not in ("documents", "padding") or not any(x.is_linear for x in judged)
            inside = False if wrong else True if all_heard and is_told else None
            evidence = _inside_evidence(question, wrong, len(asked)) if wrong else evidence
        elif question == "sinks":
            lost = [x for x in judged if x.lost]
            inside = False if lost else None
            evidence = ", ".join(str(x.key) for x in lost)
        elif question == "targets":
            found = _crossing_targets(text)
            inside = None if found is None else not found
            evidence = "" if not found else f"{len(found)} targets, the first at position {found[0][1]}"
        out = outside.answers.get(question)
        if inside is None and out is None and not _is_relevant(question, text, order, expect, judged):
            continue
        result.answers.append(ReadingAnswer(question, inside, out, evidence))


def _is_relevant(
    question: str, text: TextBatch, order: bool | None, expect: Mask | None, judged: list[LayerReading]
) -> bool:
    """Return whether a question must be answered before the verdict can be "right"."""
    if question == "future":
        return bool(order) and text.shape[1] > 1
    if question == "documents":
        return text.documents is not None
    if question == "padding":
        return text.has_padding
    parts = {} if expect is None else mask_parts(expect)
    if question == "given":
        return "given" in parts or text.given_mask is not None
    if question == "window" and "window" in parts and not judged:
        return True
    return question == "window" and any(
        x.expected_window is not None and x.expected_window < text.shape[1] for x in judged
    )


def _inside_evidence(question: str, wrong: list[LayerReading], asked: int) -> str:
    """Describe the cells of the layers that are wrong, in a sentence."""
    layer = wrong[0]
    cells = layer.wrong[question]
    assert cells.first is not None
    b, q, k = cells.first
    names = ", ".join(str(x.key) for x in wrong[:4]) + (", …" if len(wrong) > 4 else "")
    verb = "does not see" if question == "hidden" else "sees"
    where = f"{len(wrong)} of {asked} layers ({names})"
    where = f"{where}; in layer {layer.key}, query {q} of text {b} {verb} key {k}"
    shares = {x.key: x.shares[question] for x in wrong if question in x.shares}
    if not shares:
        return f"{where}, one of {cells.number:,} cells"
    key = max(shares, key=lambda key: float(shares[key].max()))
    head = int(shares[key].argmax())
    share = float(shares[key].max())
    return (
        f"{where}, one of {cells.number:,} cells; head {key}.{head} gives them {share:.0%} of its attention"
    )


def _crossing_targets(text: TextBatch) -> list[tuple[int, int]] | None:
    """Return the targets (text, position) that are predicted from another document; None if not asked."""
    labels, documents = text.labels, text.documents
    if labels is None or documents is None or text.source is not None:
        return None
    ids, real = text.ids.cpu(), text.real
    border = (documents[:, 1:] != documents[:, :-1]) & real[:, 1:] & real[:, :-1]
    used = labels != IGNORED
    # Labels that a trainer has shifted itself stand one token earlier.
    here = (labels == ids)[used].float().mean() if bool(used.any()) else torch.tensor(1.0, device="cpu")
    ahead = (labels[:, :-1] == ids[:, 1:])[used[:, :-1]].float().mean() if bool(used[:, :-1].any()) else here
    targets = used[:, :-1] if float(ahead) > float(here) else used[:, 1:]
    return [(b, t + 1) for b, t in (targets & border).nonzero().tolist()]


def _diagnose(result: Audit, text: TextBatch, config: Any, expect: Mask | None) -> None:
    """Name the mistakes that explain the questions which failed."""
    failed = {a.question: a for a in result.answers if a.right is False}
    judged = [x for x in result.layers if x.kind != "other" and x.certified]
    named: dict[str, str] = {}
    inverted = _inverted_mask(text, config)
    if inverted:
        named["mask-inverted"] = inverted
    if "future" in failed:
        named["future-seen"] = failed["future"].evidence
    if "documents" in failed:
        named["documents-leak"] = failed["documents"].evidence
    if "padding" in failed:
        seeing = [x for x in judged if "padding" in x.wrong]
        passed = isinstance(text.arguments.get("attention_mask"), Tensor)
        dropped = passed and bool(seeing) and not any(x.hears_padding for x in judged)
        name = "mask-dropped" if dropped else "padding-seen"
        name = "mask-inverted" if any(x.sees_only_padding for x in seeing) else name
        named.setdefault(name, failed["padding"].evidence)
    if "given" in failed:
        # A mask in the batch was passed, and dropped; one that is only expected may never have been passed.
        name = "mask-dropped" if text.given_mask is not None else "unexpected-mask"
        named.setdefault(name, failed["given"].evidence)
    _name_windows(named, failed, judged)
    if "hidden" in failed and not named:
        hiding = [x for x in judged if "hidden" in x.wrong]
        ordered = any(
            x.is_causal and x.expected_mask is not None and not x.expected_mask.is_causal for x in hiding
        )
        if ordered:
            named["causal-where-bidirectional"] = failed["hidden"].evidence
        elif expect is not None or text.given_mask is not None:
            named["unexpected-mask"] = failed["hidden"].evidence
    if "both ways" in failed and not named:
        named["causal-where-bidirectional"] = failed["both ways"].evidence
    for lost in ("sinks", "softcap"):
        layers = [x for x in judged if lost in x.lost]
        if layers:
            keys = ", ".join(str(x.key) for x in layers[:4])
            named[f"{lost}-lost"] = f"{len(layers)} layers ({keys}) have them, and did not use them"
    if "alone" in failed and not named and (text.documents is not None or text.has_left_padding):
        name = "positions-do-not-restart" if text.documents is not None else "left-padding-shifts-positions"
        named[name] = failed["alone"].evidence
    if "targets" in failed:
        named["targets-cross-documents"] = failed["targets"].evidence
    if "eager" in failed and not named:
        named["implementations-differ"] = failed["eager"].evidence
    for name, mistake in reading_mistakes().items():
        if name in named:
            what = f"The model {mistake.what}: {named[name]}."
            case = _leak_case(result, failed["documents"], text, config) if name == "documents-leak" else ""
            told = {"cause": mistake.cause, "fix": mistake.fix} | mistake.cases.get(case, {})
            result.diagnoses.append(ReadingDiagnosis(name, what, mistake.symptom, **told))


def _leak_case(result: Audit, answer: ReadingAnswer, text: TextBatch, config: Any) -> str:
    """Return which case of leaking documents this is: "" where a mask or a cache may be in the way."""
    if answer.inside is not False:
        return "other-layers" if any("documents" in layer.asked for layer in result.layers) else ""
    arguments = text.arguments
    has_cache = bool(arguments.get("use_cache", getattr(config, "use_cache", False)))
    return "" if has_cache or arguments.get("attention_mask") is not None else "positions-unused"


def _name_windows(
    named: dict[str, str], failed: dict[str, ReadingAnswer], judged: list[LayerReading]
) -> None:
    """Name what is wrong with the windows of layers."""
    wide = [x for x in judged if "window" in x.wrong]
    narrow = [x for x in judged if "hidden" in x.wrong and x.window is not None]
    narrow = [x for x in narrow if x.expected_window is None or x.window != x.expected_window]
    if not wide and not narrow:
        return
    evidence = failed["window"].evidence if wide else failed["hidden"].evidence
    pairs = {(x.window, x.expected_window) for x in (*wide, *narrow)}
    if wide and any(x.expected_window is None for x in narrow):
        named["window-on-wrong-layers"] = evidence
    elif all(a is not None and b is not None and abs(a - b) == 1 for a, b in pairs):
        named["window-off-by-one"] = evidence
    elif wide and all(x.window is None for x in wide):
        named["window-ignored"] = evidence
    else:
        named["window-wrong-size"] = evidence


def _inverted_mask(text: TextBatch, config: Any) -> str:
    """Say how the mask of a batch is inverted: it shows the padding token and hides all others."""
    pad, mask = getattr(config, "pad_token_id", None), text.arguments.get("attention_mask")
    if pad is None or not isinstance(mask, Tensor) or mask.shape != text.ids.shape:
        return ""
    padding, real = (text.ids.cpu() == pad), text.real
    shown, hidden = int((padding & real).sum()), int((~padding & ~real).sum())
    if shown and hidden and not bool((padding & ~real).any()) and not bool((~padding & real).any()):
        return f"it is 1 at the {shown} padding tokens (id {pad}), and 0 at the {hidden} others"
    return ""


def _decide(result: Audit, text: TextBatch, order: bool | None, said: str, expect: Mask | None) -> None:
    """Say why there is no verdict, if something that the batch asks was not answered."""
    if result.diagnoses:
        differing = [a for a in result.answers if a.differs]
        result.notes += [
            f"inside and outside differ on whether {QUESTIONS[a.question]}: "
            f"{result.outside.evidence.get(a.question, '')}"
            for a in differing
        ]
        return
    unanswered = [
        a for a in result.answers if a.right is None and a.question not in ("hidden", "sinks", "targets")
    ]
    failed = [a for a in result.answers if a.right is False]
    if failed:
        first = failed[0]
        known = "and no known mistake explains it"
        result.undecided = f"it is not so that {QUESTIONS[first.question]}, {known}: {first.evidence}"
    elif order is None and expect is None and text.given_mask is None:
        result.undecided = said
    elif unanswered:
        why = next(iter(result.not_heard), "") or next((x.why for x in result.layers if not x.certified), "")
        result.undecided = f"whether {QUESTIONS[unanswered[0].question]} could not be found out; {why}"
    elif not result.answers:
        result.undecided = "no layer was heard, and no change showed in its outputs"
