"""Models that two processes run together: one capture, with the numbers that heads have in the model."""

import json
import signal

import pytest
import torch

import regard
from regard.support.files import CaptureFileError
from tests import ranks
from tests.recorder.distributed.sharded_models_program import IDS, KV_HEADS, OTHER_IDS, edited_logits, llama

pytest.importorskip("transformers.distributed.tensor_parallel")

PATIENCE = 900.0  # seconds for all processes to end; on a free machine they take a minute
PROGRAM = "tests.recorder.distributed.sharded_models_program"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of what two ranks have captured, how they ended, and what they wrote to standard error.

    The processes are started once for all tests.
    """
    folder = tmp_path_factory.mktemp("ranks")
    with ranks.started(PROGRAM, 2, folder) as processes:
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        for rank, error in enumerate(errors):
            assert (folder / f"about-{rank}.json").exists(), error
        return folder, [process.returncode for process in processes], errors


@pytest.fixture
def folder(ended):
    return ended[0]


def about(folder, rank):
    return json.loads((folder / f"about-{rank}.json").read_text())


def assert_same_maps(seen, whole):
    """Every head of every layer has the same weights, to rounding: ranks add up parts of sums."""
    assert seen.certificate.certified
    assert [layer.key for layer in seen.layers] == [layer.key for layer in whole.layers]
    for layer, other in zip(seen.layers, whole.layers, strict=True):
        assert layer.heads == other.heads
        torch.testing.assert_close(layer.map.to_dense(), other.map.to_dense(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_tensor_parallel_ranks_give_the_capture_of_one_process(folder, kv_heads):
    model = llama(kv_heads)
    seen = regard.load(folder / f"tp-{kv_heads}")
    whole = regard.capture(model, inputs={"input_ids": IDS}, values=True)
    assert_same_maps(seen, whole)
    for layer, other in zip(seen.layers, whole.layers, strict=True):
        assert layer.map.k.shape == other.map.k.shape  # key/value heads that both ranks have are kept once
    assert torch.equal(seen.layers[0].map.q, whole.layers[0].map.q)  # before the first sum over ranks
    assert regard.capture_size(model, IDS.shape[1], values=True) == seen.nbytes == whole.nbytes


@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_numbers_its_heads_as_the_model_does(folder, rank, kv_heads):
    own = about(folder, rank)[f"tp-{kv_heads}"]
    heads = [2 * rank, 2 * rank + 1]
    assert own["heads"] == [heads] * 4
    assert own["kv_heads"] == [{4: heads, 2: [rank], 1: [0]}[kv_heads]] * 4
    assert own["table"] == [[layer, head] for layer in range(4) for head in heads]
    assert own["size"] == regard.capture_size(llama(kv_heads), IDS.shape[1], values=True)


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_every_rank_knows_the_certificate_of_all(folder, kv_heads):
    joined = str(regard.load(folder / f"tp-{kv_heads}").certificate[0])
    for rank in (0, 1):
        own = about(folder, rank)[f"tp-{kv_heads}"]
        assert own["certified"]
        assert own["evidence"] == joined


def test_swapping_the_outputs_of_two_ranks_breaks_the_certificate(folder):
    for rank in (0, 1):
        swapped = about(folder, rank)["swapped"]
        assert swapped["certified"] == [False] * 4
        assert "not certified" in swapped["sentence"]


def test_edits_name_the_heads_of_the_model(folder):
    model = llama()
    expected = torch.tensor(edited_logits(model))
    with torch.no_grad():
        plain = model(IDS).logits[0, -1]
    assert ((expected - plain).abs().amax(1) > 1e-4).all()
    for rank in (0, 1):
        torch.testing.assert_close(torch.tensor(about(folder, rank)["edits"]), expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_numbered_is_refused_by_name(folder):
    for rank in (0, 1):
        said = about(folder, rank)["refusals"]
        assert (
            "model.layers.0.self_attn: nothing shows which of the model's heads this rank has"
            in said["order"]
        )
        assert (
            "contributions: expected a model in one process, got one that 2 run together"
            in said["contributions"]
        )


def test_a_generated_text_is_joined(folder):
    model = llama()
    with regard.capture(model) as whole, torch.no_grad():
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    seen = regard.load(folder / "generated")
    assert seen.boundary == whole.boundary == IDS.shape[1]
    assert_same_maps(seen, whole)


def test_the_layers_of_a_pipeline_are_one_capture(folder):
    whole = regard.capture(llama(), inputs={"input_ids": IDS}, layers=[0, 2, 3])
    assert_same_maps(regard.load(folder / "pipeline"), whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_data_parallel_rank_has_its_own_text(folder, rank):
    ids = (IDS, OTHER_IDS)[rank]
    seen = regard.load(folder / f"fsdp-{rank}")
    assert seen.shard is None
    assert torch.equal(seen.ids, ids)
    assert_same_maps(seen, regard.capture(llama(), inputs={"input_ids": ids}))


def test_a_killed_rank_ends_the_others_with_one_sentence(ended):
    folder, statuses, errors = ended
    assert statuses == [1, -signal.SIGKILL]
    last = errors[0].strip().splitlines()[-1]
    assert "LostRankError: rank 0 ends, since another of the 2 processes that run together has ended" in last
    with pytest.raises(CaptureFileError, match="its writing was cut short"):
        regard.load(folder / "lost")
