"""What a batch says of its tokens, and batches that say little, or odd things."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.auditor.batch import read_batch
from tests.auditor.planted import DOCUMENTS, blocks_mask, seq2seq
from tests.auditor.small_models import (
    GROUPED,
    LENGTH,
    PAD,
    VISION,
    PlainGPT,
    packed,
    padded,
    prefixed,
    restarting,
    small_model,
    strengthened,
    tokens,
)

IDS = tokens(1)


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({"position_ids": restarting((5, 7))}, "position_ids"),
        ({"document_ids": DOCUMENTS}, "document_ids"),
        ({"seq_idx": DOCUMENTS.int()}, "seq_idx"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 12])}, "cu_seq_lens_q"),
        ({"attention_mask": DOCUMENTS + 1}, "numbers in the mask"),
    ],
)
def test_documents_are_found_in_the_batch(more, how):
    text = read_batch({"input_ids": IDS} | more, None, None)
    borders = text.documents[0].diff().nonzero().flatten().tolist()
    assert borders == [4]
    assert how in text.assumptions[-1]


def test_positions_of_padding_are_no_documents():
    batch = padded("left")
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).masked_fill(
        batch["attention_mask"] == 0, 1
    )
    assert read_batch(batch, None, None).documents is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_known_by_the_padding_token_if_there_is_no_mask(side):
    ids = padded(side)["input_ids"]
    text = read_batch({"input_ids": ids}, None, SimpleNamespace(pad_token_id=PAD))
    assert torch.equal(text.real, ids != PAD)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"pixel_values": torch.zeros(1, 3, 4, 4)}, "pixel_values: torch.float32"),
        ({}, "nothing"),
        ("a text", "got str"),
        ({"attention_mask": torch.ones(1, 4, dtype=torch.long)}, "expected token ids"),
    ],
)
def test_a_batch_without_token_ids_says_what_it_has(batch, said):
    with pytest.raises(ValueError, match=said):
        regard.audit(small_model("Llama"), batch)


def test_documents_of_another_shape_say_what_is_expected():
    with pytest.raises(ValueError, match=r"documents: expected the document of each token, \(2, 12\)"):
        regard.audit(small_model("Llama"), tokens(), documents=torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="documents: expected a tensor of whole numbers"):
        regard.audit(small_model("Llama"), tokens(), documents=torch.zeros(2, 12))


def test_a_model_that_fails_on_the_batch_is_named_with_its_error():
    with pytest.raises(ValueError, match=r"PlainGPT does not run on this batch \(idx\): IndexError"):
        regard.audit(PlainGPT(), torch.full((1, 4), 1000))


class Odd(nn.Module):
    """A causal model whose forward pass has its own names, needs no more than ids, and returns a tuple."""

    is_causal = True

    def __init__(self):
        super().__init__()
        self.inner = strengthened(PlainGPT())

    def forward(self, sentence):
        return None, self.inner(sentence)[0]


def test_ids_go_to_the_first_argument_and_outputs_are_found_in_a_tuple():
    audit = regard.audit(Odd(), tokens(), expect=regard.causal)
    assert audit.verdict == "right", audit
    assert audit.outside.answers["future"]


def test_what_the_model_does_not_take_is_left_out_and_said():
    batch = {"sentence": tokens(), "files": ["a", "b"], "attention_mask": torch.ones_like(tokens())}
    audit = regard.audit(Odd(), batch, expect=regard.causal)
    assert audit.verdict == "right", audit
    assert "`files`, `attention_mask`: not passed on" in " ".join(audit.assumptions)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "GPT-2", "BERT"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_text_that_is_all_padding_is_no_alarm(kind, implementation):
    audit = regard.audit(small_model(kind, implementation), padded("right", (LENGTH, 6, 0)))
    assert audit.verdict == "right", audit


def test_texts_that_all_end_in_padding_are_judged_with_all_their_keys():
    """The padding token's embedding is 0 here, and so are its keys: as in room that a cache has left."""
    audit = regard.audit(small_model("Llama"), padded("right", (8, 6)), outside=False)
    assert audit.verdict == "right", audit
    assert {layer.shape[3] for layer in audit.layers} == {LENGTH}


@pytest.mark.parametrize("kind", ["T5", "BART"])
def test_the_tokens_of_a_decoder_are_made_of_labels_alone(kind):
    labels = tokens(2, LENGTH, seed=2)
    labels[1, 9:] = -100
    audit = regard.audit(small_model(kind), padded("right") | {"labels": labels})
    assert audit.verdict == "right", audit
    assert "decoder_input_ids are the labels moved by one token" in " ".join(audit.assumptions)
    with pytest.raises(ValueError, match="expected decoder_input_ids or labels"):
        regard.audit(small_model(kind), padded("right"))


def test_a_padded_source_without_its_mask_is_seen_though_the_labels_are_right():
    batch = {"input_ids": seq2seq()["input_ids"], "labels": tokens(2, 7, seed=2)}
    audit = regard.audit(small_model("T5"), batch)
    assert audit.diagnoses[0].name == "padding-seen"


def test_a_prefix_is_read_both_ways_as_its_token_types_say():
    batch = prefixed()
    audit = regard.audit(small_model("PaliGemma"), batch)
    assert audit.verdict == "right", audit
    assert "12 tokens of a prefix read each other both ways" in " ".join(audit.assumptions)
    whole = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    unknown = regard.audit(small_model("PaliGemma", "eager"), whole)
    assert unknown.verdict == "undecided"
    assert "pass token_type_ids" in unknown.summary


def test_pictures_of_gemma_3_are_read_both_ways_each_by_itself():
    torch.manual_seed(0)
    text = transformers.Gemma3TextConfig(
        **GROUPED, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    )
    config = transformers.Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
    model = strengthened(transformers.Gemma3ForConditionalGeneration(config))
    types = torch.zeros(1, LENGTH, dtype=torch.long)
    types[0, 1:4] = types[0, 6:12] = 1
    audit = regard.audit(model, {"input_ids": tokens(1), "token_type_ids": types})
    assert audit.verdict == "right", audit


@pytest.mark.parametrize(
    ("expect", "verdict"),
    [
        (regard.causal, "right"),
        (regard.causal & regard.window(20), "right"),
        (regard.causal & regard.alibi(4), "right"),
        (regard.tensor_mask(torch.ones(LENGTH, LENGTH).tril().bool()), "right"),
        (regard.causal & regard.window(4), "wrong"),
        (regard.causal | regard.prefix(3), "wrong"),
        (regard.full, "wrong"),
        (regard.causal & regard.chunks(3), "wrong"),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [tokens(), padded("left"), packed()], ids=["plain", "padded", "packed"])
def test_any_mask_can_be_expected(expect, verdict, batch):
    audit = regard.audit(small_model("Llama"), batch, expect=expect)
    assert audit.verdict == verdict, audit
    assert str(expect) in audit.assumptions[0]


def test_an_expected_mask_that_does_not_fit_says_so():
    small = regard.tensor_mask(torch.ones(3, 3).bool())
    with pytest.raises(ValueError, match="does not fit the batch of 2 texts of 12 tokens"):
        regard.audit(small_model("Llama"), tokens(), expect=small)
    with pytest.raises(ValueError, match="expect: expected a mask"):
        regard.audit(small_model("Llama"), tokens(), expect=torch.ones(3, 3))


def test_a_whole_mask_in_the_batch_takes_the_place_of_windows_and_that_is_said():
    said = "its windows of 4 keys are only used if they are in yours"
    batch = {"input_ids": tokens(1), "attention_mask": blocks_mask(), "position_ids": restarting((5, 7))}
    audit = regard.audit(small_model("Mistral"), batch)
    assert audit.verdict == "right", audit
    assert said in " ".join(audit.notes)
    without_windows = regard.audit(small_model("Llama"), batch)
    assert without_windows.verdict == "right", without_windows
    assert said not in " ".join(without_windows.notes)
