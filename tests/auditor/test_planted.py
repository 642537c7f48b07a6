"""Every planted fault is called wrong, by its name first; the same models unharmed are called right."""

import contextlib
from collections import Counter

import pytest
import torch

import regard
from regard.auditor.catalogue import reading_mistakes
from tests.auditor.planted import (
    DOCUMENTS,
    FAULTS,
    flattened,
    packed_idx,
    padded_idx,
    pairs,
    registered,
    seq2seq,
)
from tests.auditor.small_models import LENGTH, MODELS, packed, padded, prefixed, small_model, tokens
from tests.sampling import combine, share


@pytest.fixture(scope="module", autouse=True)
def _implementations():
    with registered():
        yield


@contextlib.contextmanager
def flex_runs_here(implementation):
    """FlexAttention is compiled, for which not every processor serves; PyTorch computes it eagerly too."""
    stance = (
        torch.compiler.set_stance("force_eager")
        if implementation == "flex_attention"
        else contextlib.nullcontext()
    )
    with stance:
        yield


FIRST = {fault.mistake: fault for fault in FAULTS[::-1]}  # one for every mistake
OTHERS = [fault for fault in FAULTS if fault is not FIRST[fault.mistake]]


@pytest.mark.parametrize("fault", [*FIRST.values(), *share(OTHERS, 8)], ids=str)
def test_a_planted_fault_is_wrong_and_has_its_name_first(fault):
    with flex_runs_here(fault.implementation):
        audit = fault.audit()
    assert audit.verdict == "wrong", audit
    assert audit.diagnoses[0].name == fault.mistake, audit


def test_every_mistake_is_planted_in_several_models():
    planted = Counter(fault.mistake for fault in FAULTS)
    assert set(planted) | {"ranks-apart"} == set(reading_mistakes())  # which needs ranks: `test_ranks`
    assert len(FAULTS) >= 60
    assert len({fault.model for fault in FAULTS}) >= 12


def _left_with_positions():
    """As `generate` makes them: absolute positions count from the first token."""
    batch = padded("left")
    return batch | {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)}


BATCHES = {
    "plain": lambda: {"input_ids": tokens()},
    "left-padded": lambda: padded("left"),
    "right-padded": lambda: padded("right"),
    "packed": packed,
}
COUNTED = {"GPT-2", "BERT"}  # absolute positions
JOINED = {"gpt-oss", "BERT", "Qwen3-Next"}  # these do not look at restarting positions: see FAULTS
OWN = {"T5", "BART", "GPT", "GPT with learned positions", "plain GPT", "PaliGemma"}
CONTROLS = {
    f"{model}, {name}": (model, _left_with_positions if model in COUNTED and name == "left-padded" else make)
    for model in MODELS
    for name, make in BATCHES.items()
    if model not in OWN and not (name == "packed" and model in JOINED)
}
CONTROLS |= {
    "T5, plain": ("T5", pairs),
    "T5, left-padded": ("T5", lambda: seq2seq("left")),
    "T5, right-padded": ("T5", seq2seq),
    "BART, plain": ("BART", pairs),
    "BART, right-padded": ("BART", seq2seq),
    "GPT, left-padded": ("GPT", lambda: padded("left")),
    "GPT, right-padded": ("GPT", lambda: padded("right")),
    "GPT, packed": ("GPT", lambda: {"input_ids": tokens(1), "mask": regard.documents(DOCUMENTS)}),
    "GPT with learned positions, left-padded": ("GPT with learned positions", lambda: padded("left")),
    "plain GPT, plain": ("plain GPT", tokens),
    "plain GPT, right-padded": ("plain GPT", lambda: padded_idx("right")),
    "plain GPT, packed": ("plain GPT", packed_idx),
    "PaliGemma, prefix": ("PaliGemma", prefixed),
    "Llama, flattened": ("Llama", lambda: flattened(use_cache=False)),
}


# These are eager without being asked.
ONE_IMPLEMENTATION = ("GPT", "plain GPT", "GPT with learned positions", "Gemma 2", "gpt-oss")


@pytest.mark.parametrize(("name", "implementation"), share(combine(CONTROLS, [None, "eager"]), 3))
def test_an_unharmed_model_is_right(name, implementation):
    kind, make = CONTROLS[name]
    model = small_model(kind, None if kind in ONE_IMPLEMENTATION else implementation)
    documents = DOCUMENTS if name == "GPT, packed" else None
    audit = regard.audit(model, make(), documents=documents)
    assert audit.verdict == "right", audit
    assert not any(answer.differs for answer in audit.answers)


@pytest.mark.parametrize(
    ("kind", "name"),
    share(combine(["Llama", "Mistral", "Gemma 2"], ["plain", "left-padded", "packed"]), 3),
)
def test_an_unharmed_model_with_flex_attention_is_right(kind, name):
    with flex_runs_here("flex_attention"):
        audit = regard.audit(small_model(kind, "flex_attention"), BATCHES[name]())
    assert audit.verdict == "right", audit


def test_an_attention_function_of_a_user_that_is_right_is_called_right():
    audit = regard.audit(small_model("Llama", "only_mask"), packed())
    assert audit.verdict == "right", audit
    assert audit.layers[0].shape[2] == LENGTH
