"""What `intervene` promises beside the numbers: captures, generation, PyTorch's own modules, errors."""

import copy
from contextlib import ExitStack

import pytest
import torch
from torch import nn

import regard
from regard.gpt import GPT
from regard.heads.tables.table import HeadRow, HeadTable
from tests.interventions.references import build, inputs_of, logits, small_gpt, transformers


@pytest.fixture
def gpt():
    return small_gpt()


IDS = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("order", ["capture inside", "capture outside"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "regard"])
def test_a_capture_shows_the_edited_run_and_says_so(implementation, order):
    model, inputs = build("llama"), inputs_of("llama")
    model.set_attn_implementation(implementation)
    edits = (regard.block(1, 2, edges=regard.prefix(1) & ~regard.window(2)), regard.ablate(0, 1))
    if order == "capture inside":
        with regard.intervene(model, *edits), regard.capture(model) as seen:
            logits(model, inputs)
    else:
        with regard.capture(model) as seen, regard.intervene(model, *edits):
            logits(model, inputs)
    assert seen.certificate.certified
    cut = torch.arange(11) > 1
    assert not seen[1, 2].to_dense()[:, cut, 0].any()
    assert bool((seen[1, 1].to_dense()[:, cut, 0] > 0).all())
    torch.testing.assert_close(seen[1, 2].to_dense().sum(-1), torch.ones(2, 11))
    assert "head 1.2 without the edges of" in repr(seen)
    assert seen.edits[1] == "head 0.1 set to zero"
    assert not regard.capture(model, inputs=inputs).edits


def test_a_capture_of_two_runs_keeps_the_edits_of_each_apart():
    model, inputs = build("gpt2"), inputs_of("gpt2")
    with regard.capture(model) as seen:
        logits(model, inputs)
        with regard.intervene(model, regard.ablate(1, 2)):
            logits(model, inputs)
    assert seen.edits == ("head 1.2 set to zero",)
    assert [earlier.edits for earlier in seen.passes] == [()]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma 2", "t5", "gpt-oss"])
def test_generate_is_edited_at_every_step(family):
    """Greedy generation with a cache, edited, is the same as reading the text anew for every token."""
    model, ids = build(family), inputs_of(family, batch=1)["input_ids"]
    key = "decoder.1" if family == "t5" else 2 if family == "gemma 2" else 1
    rule = regard.rule(lambda b, h, q, k: (q - k == 3) | (k == 2))
    edits = (regard.ablate(key, 3), regard.block(key, 0, edges=rule))
    options = {
        "max_new_tokens": 9,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with regard.intervene(model, *edits):
        made = model.generate(input_ids=ids, **options)
        start = 0 if family == "t5" else ids.shape[1]
        for step, cached in enumerate(made.logits):
            upto = made.sequences[:, : start + step + (family == "t5")]
            inputs = {"input_ids": ids, "decoder_input_ids": upto} if family == "t5" else {"input_ids": upto}
            torch.testing.assert_close(cached, logits(model, inputs)[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_pytorchs_own_attention_is_edited(need_weights, average):
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    with torch.no_grad():
        with regard.intervene(mha, regard.ablate(0, 1), regard.block(0, 2, edges=(slice(None), 0))):
            output, weights = mha(x, x, x, **options)
        q, k, v = (
            y.view(2, 6, 4, 4).transpose(1, 2)
            for y in nn.functional.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1)
        )
        scores = q @ k.mT / 2
        scores[:, 2, :, 0] = -torch.inf
        dense = scores.softmax(-1)
        heads = dense @ v
        heads[:, 1] = 0
        expected = mha.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    if need_weights:
        torch.testing.assert_close(weights, dense.mean(1) if average else dense)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padding", [False, True])
def test_an_encoder_of_pytorch_leaves_its_fused_kernel_to_be_edited(padding):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 6, 16)
    mask = torch.tensor([[False] * 6, [False] * 4 + [True] * 2]) if padding else None
    with torch.no_grad(), regard.intervene(model, regard.ablate(1, 1)) as run:
        edited = model(x, src_key_padding_mask=mask)
    assert run.acted == [1]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layers[1].self_attn.out_proj.weight[:, 4:8] = 0
        expected = other(x, src_key_padding_mask=mask)
    torch.testing.assert_close(edited[:, :4], expected[:, :4], rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_is_edited_in_its_recomputation():
    model, inputs = build("llama"), inputs_of("llama")
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        model.zero_grad()
        with regard.intervene(model, regard.ablate(1, 2), regard.block(1, 0, edges=(slice(2, None), 0))):
            model(**inputs, use_cache=False).logits.square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_heads_by_pairs_by_rows_and_by_label(gpt):
    row = HeadRow(1, 2, 1, ("sink",), 0, {})
    both = {}
    for name, heads in {"pairs": [(1, 2)], "rows": [row], "table": HeadTable([row])}.items():
        with regard.intervene(gpt, regard.ablate(heads=heads)):
            both[name] = gpt(IDS)
    assert torch.equal(both["pairs"], both["rows"])
    assert torch.equal(both["pairs"], both["table"])
    trained = GPT.from_pretrained("default")
    with regard.intervene(trained, regard.ablate(heads="induction")) as run:
        trained(IDS)
    assert run.acted[0] >= 1
    with pytest.raises(ValueError, match="none is labelled 'retrieval'"):
        regard.intervene(gpt, regard.ablate(heads="retrieval"))
    assert regard.ablate(heads="previous-token") == regard.ablate(heads="previous token")


def test_edges_between_single_spans_are_those_of_their_positions():
    model, inputs = build("llama"), inputs_of("llama")
    words = regard.spans.custom([0, 2, 5, 9], ["a", "b", "c"])
    edited = []
    for edges in [(words[2], words[1]), (slice(5, 9), slice(2, 5)), ([5, 6, 7, 8], [2, 3, 4])]:
        with regard.intervene(model, regard.block(1, 3, edges=edges)):
            edited.append(logits(model, inputs))
    assert torch.equal(edited[0], edited[1])
    assert torch.equal(edited[0], edited[2])
    assert not torch.equal(edited[0], logits(model, inputs))
    assert str(regard.block(1, 3, edges=(-1, words[1]))) == "head 1.3 without the edges from -1 to 2–4"


def test_nothing_is_left_behind(gpt):
    plain = gpt(IDS)
    with pytest.raises(ZeroDivisionError), regard.intervene(gpt, regard.ablate(0, 0)):
        raise ZeroDivisionError(gpt(IDS))
    assert torch.equal(gpt(IDS), plain)
    assert torch.equal(copy.deepcopy(gpt)(IDS), plain)


WRONG = [
    (lambda m: regard.intervene(m, "head 3"), "what regard.ablate"),
    (lambda m: regard.intervene(m), "expected at least one"),
    (lambda m: regard.intervene(3, regard.ablate(0, 0)), "expected a torch.nn.Module"),
    (lambda m: regard.ablate(), "expected a layer's number"),
    (lambda m: regard.ablate(0, 1, heads=[(0, 1)]), "either layer and head or heads"),
    (lambda m: regard.ablate(0, -1), "expected a whole number of at least 0"),
    (lambda m: regard.ablate(0, []), "expected a head's number"),
    (lambda m: regard.ablate(heads=[]), "at least one head"),
    (lambda m: regard.ablate(0, 0, by="mean"), "the means of regard.interventions.mean_outputs"),
    (lambda m: regard.ablate(heads="indution"), "label: expected one of induction, "),
    (lambda m: regard.ablate(heads=5), "a label, a table of heads or pairs"),
    (lambda m: regard.ablate(0, 0, positions=slice(0.5, 2)), "whole numbers"),
    (lambda m: regard.block(0, 0), "expected a mask rule or a pair"),
    (lambda m: regard.block(0, 0, edges=torch.ones(3, 3) > 0), r"Tensor: write regard.tensor_mask\(edges\)"),
    (lambda m: regard.block(0, 0, edges=regard.alibi(4)), "adds to the scores"),
    (lambda m: regard.block(0, 0, edges=(torch.ones(3) > 0, 0)), "got booleans"),
    (lambda m: regard.patch(0, 0), "expected the capture of another run"),
    (lambda m: regard.patch(0, 0, regard.capture(m, inputs=(IDS,)), what="key"), "'output' or 'pattern'"),
]


def test_wrong_use_is_one_sentence(gpt):
    for wrong, message in WRONG:
        with pytest.raises(ValueError, match=message):
            wrong(gpt)


# Edits that do not fit the model or the text, and those that would change nothing.
THREE_HEADS, SMALL = regard.tensor_mask(torch.ones(3, 12, 12) > 0), regard.tensor_mask(torch.ones(3, 3) > 0)
UNFIT = [
    (lambda run: regard.ablate(7, 0), r"those that ran softmax attention \(0, 1\), got 7"),
    (lambda run: regard.ablate(1, 4), "from 0 to 3, got 4"),
    (lambda run: regard.ablate(1, 0, by={0: torch.zeros(4, 8)}), "expected means of layer 1"),
    (lambda run: regard.ablate(1, 0, by={1: torch.zeros(3, 8)}), r"expected means \(4, 8\)"),
    (lambda run: regard.ablate(1, 0, by=torch.zeros(5)), r"broadcasts to \(2, 12, 8\)"),
    (lambda run: regard.patch(1, 0, run(IDS[:, :5], values=True)), "a run of the same length"),
    (lambda run: regard.patch(1, 0, run(IDS)), "values=True"),
    (lambda run: regard.patch(1, 0, run(IDS, layers=[0])), "one of those captured"),
    (lambda run: regard.block(1, 0, edges=THREE_HEADS), "edges: expected a shape"),
    (lambda run: regard.block(1, 0, edges=SMALL), "edges: "),
]
IDLE = [
    regard.block(1, 0, edges=regard.rule(lambda b, h, q, k: k > q)),
    regard.block(1, 0, edges=regard.rule(lambda b, h, q, k: (h == 1) & (k == 0))),
    regard.block(1, 0, edges=(50, 60)),
]


def test_an_edit_that_cannot_act_is_one_sentence(gpt):
    def run(ids, **options):
        return regard.capture(gpt, inputs=(ids,), **options)

    plain = gpt(IDS)
    rows = [(make, ValueError, message) for make, message in UNFIT]
    rows += [(lambda run, edit=edit: edit, RuntimeError, "did not act") for edit in IDLE]
    for make, error, message in rows:
        with pytest.raises(error, match=message), regard.intervene(gpt, make(run)):
            gpt(IDS)
        assert torch.equal(gpt(IDS), plain)


def test_a_model_that_does_not_run_is_an_error(gpt):
    with pytest.raises(RuntimeError, match="did not run"), regard.intervene(gpt, regard.ablate(0, 0)):
        pass


def test_a_number_is_not_enough_where_a_model_has_several_stacks():
    model, inputs = build("t5"), inputs_of("t5")
    message = r"'encoder.0', 'encoder.1', 'decoder.0', 'cross.0'"
    with pytest.raises(ValueError, match=message), regard.intervene(model, regard.ablate(0, 1)):
        logits(model, inputs)


def test_a_compiled_model_is_edited(gpt):
    with regard.intervene(gpt, regard.ablate(1, 2)):
        expected = gpt(IDS)
    compiled = torch.compile(gpt, backend="eager")
    compiled(IDS)
    with regard.intervene(compiled, regard.ablate(1, 2)):
        edited = compiled(IDS)
    torch.testing.assert_close(edited, expected)


@pytest.mark.parametrize("outer", ["ablation", "block"])
def test_nested_blocks_edit_weights_before_outputs_too(gpt, outer):
    edits = [regard.ablate(1, 2, positions=slice(6, None)), regard.block(1, 2, edges=(slice(3, None), 0))]
    with regard.intervene(gpt, *edits):
        expected = gpt(IDS)
    first, second = edits if outer == "ablation" else reversed(edits)
    with regard.intervene(gpt, first), regard.intervene(gpt, second):
        torch.testing.assert_close(gpt(IDS), expected)


@pytest.mark.parametrize("first", ["pattern", "block"])
def test_edges_are_cut_of_a_patched_pattern_in_either_order(gpt, first):
    source = regard.capture(gpt, inputs=(IDS.flip(1),))
    edits = [regard.patch(1, 2, source, what="pattern"), regard.block(1, 2, edges=(slice(3, None), 0))]
    with regard.intervene(gpt, *(edits if first == "pattern" else reversed(edits))):
        seen = regard.capture(gpt, inputs=(IDS,))
    expected = source[1, 2].to_dense()
    expected[:, 3:, 0] = 0
    torch.testing.assert_close(seen[1, 2].to_dense(), expected / expected.sum(-1, keepdim=True))
    assert seen.certificate.certified


@pytest.mark.parametrize("stored", [False, True])
def test_a_source_whose_output_was_replaced_is_refused(gpt, stored, tmp_path):
    with regard.intervene(gpt, regard.ablate(1, 2)):
        source = regard.capture(gpt, inputs=(IDS,), values=True)
    assert "an edit then replaced the output of head 2" in str(source.certificate[1])
    if stored:
        source.save(tmp_path)
        source = regard.load(tmp_path)
    lost = pytest.raises(ValueError, match="an edit replaced the output")
    with lost, regard.intervene(gpt, regard.patch(1, 2, source)):
        gpt(IDS)
    with regard.intervene(gpt, regard.patch(1, 3, source)):  # another head of that run
        gpt(IDS)


@pytest.mark.parametrize("split", [4, 6])
@pytest.mark.parametrize("inside", [False, True])
def test_cross_attention_is_edited_at_the_positions_of_its_decoder(split, inside):
    """A decoder reads its text in two parts, the first of them before the block or inside it."""
    model, inputs = build("t5"), inputs_of("t5")
    ids = inputs["decoder_input_ids"]
    edits = (regard.ablate("cross.1", 3, positions=6), regard.block("cross.0", 1, edges=(6, slice(0, 3))))
    with regard.intervene(model, *edits):
        expected = logits(model, inputs)[:, -1]
    with torch.no_grad(), ExitStack() as block:
        if inside:
            block.enter_context(regard.intervene(model, *edits))
        begun = model(input_ids=inputs["input_ids"], decoder_input_ids=ids[:, :split], use_cache=True)
        if not inside:
            block.enter_context(regard.intervene(model, *edits))
        ended = model(
            encoder_outputs=(begun.encoder_last_hidden_state,),
            decoder_input_ids=ids[:, split:],
            past_key_values=begun.past_key_values,
        )
    torch.testing.assert_close(ended.logits[:, -1], expected, rtol=1e-3, atol=1e-3)


def test_a_cache_that_evicted_keys_before_the_block_is_refused_after_another_text():
    model, ids = build("gemma 2"), inputs_of("gemma 2", batch=1)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    with torch.no_grad(), regard.intervene(model, regard.block(0, 1, edges=(slice(None), 10))):
        model(ids.flip(1))
        with pytest.raises(RuntimeError, match="may have evicted keys"):
            model(ids[:, :1], past_key_values=cache)
