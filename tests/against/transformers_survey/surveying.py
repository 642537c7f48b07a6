"""One model type surveyed: its classes built small, run in every case and implementation, and judged."""

import contextlib
import copy
import dataclasses
import time
import warnings

from tests.against.transformers_survey import verdict as v
from tests.against.transformers_survey.building import SIZES, build, class_names, find_class, small_config
from tests.against.transformers_survey.cases import Case, cases_of, finite, first_that_runs
from tests.against.transformers_survey.judging import judge
from tests.against.transformers_survey.mixers import mixers

BUILDING = 20.0  # seconds of looking for a size and for inputs with which a class runs


def survey(model_type):
    """The outcome of a model type with its reasons, as plain data."""
    names = class_names(model_type)
    if not names:
        return {"type": model_type, "outcome": v.NO_MODEL, "reasons": [], "classes": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = [survey_class(model_type, name) for name in names]
    judged = [x for x in classes if x["outcome"] != v.NOT_BUILT] or classes
    outcomes = [x["outcome"] for x in judged]
    outcome = v.worst(outcomes)
    if outcome == v.REFUSED and v.EQUAL in outcomes:
        outcome = v.PARTLY
    reasons = list(dict.fromkeys(reason for x in judged for reason in x["reasons"]))
    return {"type": model_type, "outcome": outcome, "reasons": reasons, "classes": classes}


def survey_class(model_type, name):
    try:
        model, inputs = small_model(model_type, name)
        token_mixers, untested = mixers(model, Case("given", inputs))
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:400]}"
        return {"class": name, "outcome": v.NOT_BUILT, "reasons": [reason], "cases": []}
    verdicts, notes = [], [f"not called again: {x}" for x in untested]
    for implementation in _implementations(model):
        for case in cases_of(model, inputs):
            try:
                case.run(model)
            except Exception as error:
                notes.append(f"{case.name}, {implementation}: {type(error).__name__}: {str(error)[:120]}")
                continue
            verdicts.append(judge(model, case, implementation, token_mixers))
    return {
        "class": name,
        "outcome": v.worst([x.outcome for x in verdicts]),
        "reasons": list(dict.fromkeys(reason for x in verdicts for reason in x.reasons)),
        "inputs": {k: list(x.shape) if hasattr(x, "shape") else str(x) for k, x in inputs.items()},
        "mixers": [dataclasses.asdict(mixer) for mixer in token_mixers],
        "cases": [dataclasses.asdict(x) for x in verdicts],
        "notes": notes,
    }


def small_model(model_type, name):
    """A small model and inputs that it runs with; the error of the first attempt is raised if none does."""
    kind = find_class(name, model_type)
    first = None
    tried = set()
    deadline = time.monotonic() + BUILDING
    for picture, patch in SIZES:
        try:
            config = small_config(model_type, picture, patch)
            if str(config) in tried or time.monotonic() > deadline:
                continue  # sizes of pictures make no difference to it
            tried.add(str(config))
            for spread in (0.3, 0.1, 0.02):
                model = build(kind, copy.deepcopy(config), spread)
                inputs = first_that_runs(model, deadline)
                if finite(Case("given", inputs).run(model)):
                    return model, inputs
            raise ValueError("its output is not finite with small weights either")
        except Exception as error:
            first = first or error
    raise first or ValueError("no size")


def _implementations(model):
    """The model's own attention implementation, then "eager" and "sdpa" where it takes them; each is set."""
    default = str(getattr(model.config, "_attn_implementation", None))
    yield default
    for name in ("eager", "sdpa"):
        if name != default:
            with contextlib.suppress(Exception):  # models say in many ways that they have only one
                model.set_attn_implementation(name)
            if getattr(model.config, "_attn_implementation", None) == name:
                yield name
