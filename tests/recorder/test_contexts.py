"""A capture belongs to the context that opened it: threads, copies of contexts, copies of models."""

import asyncio
import contextvars
import copy
import dataclasses
import gc
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.recorder.certificates.certificate import sampled_rows
from tests.patience import HANGING
from tests.recorder.small_models import MODELS, Encoder, llama, state
from tests.sampling import combine, share


def random_ids(T=7):
    return torch.randint(0, 97, (1, T))


def in_thread(run, *args):
    """Run a function in another thread, which has none of this context, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, *args).result()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_another_thread_is_not_heard(name):
    model, ids, others = MODELS[name]().eval(), random_ids(7), random_ids(9)
    with regard.capture(model) as seen:
        in_thread(torch.no_grad()(model), others)
        model(ids)
        in_thread(torch.no_grad()(model), others)
    assert torch.equal(seen.ids, ids)
    assert len(seen.layers) == 3
    assert not seen.passes
    assert not seen.missing
    assert seen.certificate.certified


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_captures_at_once_in_threads_and_tasks_hold_their_own_texts(name):
    model, texts = MODELS[name]().eval(), [random_ids(T) for T in (4, 7, 9)]
    before, alone = state(model), [regard.capture(model, inputs=(ids,)) for ids in texts]
    start = threading.Barrier(len(texts))

    def capture_thrice(ids):
        start.wait(HANGING)
        return [regard.capture(model, inputs=(ids,)) for _ in range(3)]

    async def capture_in_turn(ids):
        with regard.capture(model) as seen:
            await asyncio.sleep(0)
            model(ids)
            await asyncio.sleep(0)
        return [seen]

    async def together():
        return await asyncio.gather(*map(capture_in_turn, texts))

    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(capture_thrice, texts))
    # In a thread of its own: this one may have an event loop that runs, as Playwright's does.
    tasks = in_thread(torch.no_grad()(lambda: asyncio.run(together())))
    for captures in (found, tasks):
        for ids, expected, several in zip(texts, alone, captures, strict=True):
            for seen in several:
                assert torch.equal(seen.ids, ids)
                assert seen.certificate.certified
                assert not seen.passes
                for m, own in zip(seen, expected, strict=True):
                    torch.testing.assert_close(m.to_dense(), own.to_dense(), rtol=0, atol=1e-5)
    assert state(model) == before


def test_a_generator_that_is_given_up_in_another_thread_leaves_no_capture_behind():
    model, ids = llama("sdpa").eval(), random_ids()
    before = state(model)

    def capturing():
        with regard.capture(model):
            model(random_ids(4))
            yield

    given_up = capturing()
    next(given_up)
    assert torch.equal(regard.capture(model, inputs=(ids,)).ids, ids)
    in_thread(given_up.close)
    assert regard.capture(model, inputs=(ids,)).certificate.certified
    assert state(model) == before


@torch.no_grad()
def test_a_model_that_ran_only_in_another_thread_is_an_error_that_says_what_to_do():
    model = llama("sdpa")
    message = "open a capture in the thread that runs the model, or run it there"
    with pytest.raises(RuntimeError, match=message), regard.capture(model):
        in_thread(model, random_ids())


class Waiting(nn.Module):
    """Waits, in the middle of its forward pass, until another thread is in the middle of it too."""

    def __init__(self):
        super().__init__()
        self.encoder, self.meeting = Encoder(), threading.Barrier(2)

    def forward(self, ids):
        self.meeting.wait(timeout=HANGING)
        return self.encoder(ids)


def test_two_threads_at_once_in_one_capture_are_refused():
    model = Waiting().eval()
    refused = pytest.raises(RuntimeError, match="two threads ran the model at once inside one block")
    with refused, regard.capture(model) as seen, ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda context: context.run(model, random_ids()), [contextvars.copy_context() for _ in "ab"]
            )
        )
    assert not seen.layers


class Threaded(nn.Module):
    """Runs the second of its layers in a thread of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.blocks = nn.ModuleList(SelfAttention(layer) for layer in self.layers)

    def forward(self, x):
        x = self.blocks[0](x)
        return in_thread(self.blocks[1], x)


class SelfAttention(nn.Module):
    """Attention of tokens to each other."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_a_layer_that_the_model_runs_in_another_thread_is_named():
    model = Threaded()
    named = pytest.warns(UserWarning, match=r"SelfAttention, which ran in another thread \(blocks.1\)")
    with named, regard.capture(model) as seen:
        model(torch.randn(1, 5, 16))
    assert len(seen.layers) == 1


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_copy_made_inside_a_capture_computes_with_its_own_weights(name):
    model, ids = MODELS[name]().eval(), random_ids()
    with regard.capture(model) as seen:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        model(ids)
    for twin in copies:
        assert [sorted(vars(x)) for x in twin.modules()] == [sorted(vars(x)) for x in model.modules()]
        for parameter in twin.parameters():
            parameter.zero_()
        output = twin(ids)
        assert not bool((output if isinstance(output, Tensor) else output.logits).any())
    assert len(seen.layers) == 3


@torch.no_grad()
def test_an_own_forward_of_a_module_is_kept_and_copied():
    """Other libraries replace the `forward` of an object itself."""
    model, ids = llama("sdpa"), random_ids()
    inner = model.model.layers[0].self_attn
    plain, calls = inner.forward, []

    def own(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    inner.forward = own
    seen = regard.capture(model, inputs=(ids,))
    assert inner.forward is own
    assert len(calls) == 1
    assert len(seen.layers) == 3
    assert seen.certificate.certified
    with regard.capture(model):
        model(ids)
        assert copy.deepcopy(model).model.layers[0].self_attn.forward is own


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda seen: pickle.loads(pickle.dumps(seen)),
    "replace": dataclasses.replace,
}


@pytest.mark.parametrize(
    ("way", "options"),
    [
        *((way, {}) for way in COPIES),
        *combine(["copy", "deepcopy"], [{"budget": 0}, {"contributions": True}]),
    ],
)
def test_a_copy_of_a_capture_keeps_its_certificate(way, options):
    model = llama("sdpa").eval()
    with torch.no_grad(), regard.capture(model, **options) as seen:
        model(random_ids())
    twin = COPIES[way](seen)
    assert twin.certificate.certified, str(twin.certificate)
    weights = twin[1].to_dense()
    assert torch.equal(weights, seen[1].to_dense())
    del seen
    gc.collect()
    assert torch.equal(twin[1].to_dense(), weights)
    if not options:
        twin[1].q.zero_()
        assert "written to after its attention had run" in str(twin.certificate[1])
        assert not COPIES[way](twin).certificate.certified


@torch.no_grad()
def test_a_map_that_was_written_to_before_it_grew_is_not_certified():
    model, ids = llama("sdpa").eval(), random_ids()
    with regard.capture(model) as seen:
        cache = model(ids, use_cache=True).past_key_values
        seen[1].q.zero_()
        model(ids[:, :1], past_key_values=cache)
    assert seen[1].shape[-1] == ids.shape[1] + 1
    assert "written to after its attention had run" in str(seen.certificate[1])
    assert seen.certificate[0].certified


class Plain(nn.Module):
    """Three layers of attention over token ids, which compile much faster than a model of Transformers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 16)
        attentions = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3))
        self.layers = nn.ModuleList(map(SelfAttention, attentions))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_block(model):
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    return model


WAYS_TO_COMPILE = {
    "torch.compile(model)": lambda model: torch.compile(model, backend="eager"),
    "model.compile()": compiled_in_place,
    "model.forward = torch.compile(model.forward)": compiled_forward,
    "a block": compiled_block,
}


@pytest.mark.parametrize("way", share(WAYS_TO_COMPILE, 2))
@torch.no_grad()
def test_a_compiled_model_is_captured_through_its_original(way):
    torch._dynamo.reset()
    model, ids = Plain(), random_ids()
    expected = regard.capture(model, inputs=(ids,))
    compiled = WAYS_TO_COMPILE[way](model)
    compiled(ids)
    for seen in (regard.capture(compiled, inputs=(ids,)), regard.capture(model, inputs=(ids,))):
        assert torch.equal(seen.ids, ids)
        assert [layer.key for layer in seen.layers] == [0, 1, 2]
        assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(seen, expected, strict=True))
        assert seen.certificate.certified
        assert not seen.missing
    compiled(ids)
    # The model that was compiled is captured, and the compiled one is run.
    with regard.capture(model) as seen:
        compiled(ids)
    assert len(seen.layers) == 3
    torch._dynamo.reset()


class Written(nn.Module):
    """Attention in code of its own, which is recognised by what it calls."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@torch.no_grad()
def test_attention_that_is_compiled_by_itself_keeps_its_number():
    torch._dynamo.reset()
    model, ids = Plain(), random_ids()
    model.layers = nn.ModuleList(Written() for _ in range(3))
    expected = regard.capture(model, inputs=(ids,))
    with regard.intervene(model, regard.ablate(1, 0)):
        without_head = model(ids)
    compiled_block(model)
    seen = regard.capture(model, inputs=(ids,))
    assert [layer.key for layer in seen.layers] == [0, 1, 2]
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(seen, expected, strict=True))
    with regard.intervene(model, regard.ablate(1, 0)):
        assert torch.equal(model(ids), without_head)
    torch._dynamo.reset()


@torch.no_grad()
def test_generation_with_a_compiled_step_is_captured(monkeypatch):
    """Transformers compiles the step of a static cache on GPUs, by `get_compiled_call`."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "0")  # which Transformers sets when it compiles
    from transformers import CompileConfig

    torch._dynamo.reset()
    model, ids = llama("sdpa"), random_ids()
    config = CompileConfig(backend="eager", fullgraph=False)
    config._compile_all_devices = True
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    with regard.capture(model) as seen:
        text = model.generate(ids, **options, compile_config=config)
    assert torch.equal(seen.ids, text[:, :-1])
    assert seen[0].shape[-2:] == (10, 10)
    assert seen.certificate.certified
    torch._dynamo.reset()


@torch.no_grad()
def test_the_certificate_covers_ids_and_text():
    model, ids = llama("sdpa"), random_ids()
    seen = regard.capture(model, inputs=(ids,))
    seen.tokens = [[f"t{i}" for i in ids[0].tolist()]]  # there was none
    assert seen.certificate.certified
    seen.seal()
    seen.tokens = [["someone", "else", "'s", "text", "is", "not", "this"]]
    assert not seen.certificate.certified
    seen = regard.capture(model, inputs=(ids,))
    seen.ids = random_ids()
    assert not seen.certificate.certified
    assert "the tokens or the layers of this capture are not those that the model ran with" in str(
        seen.certificate
    )
    seen = regard.capture(model, inputs=(ids,))
    del seen.layers[0]
    assert not seen.certificate.certified


@torch.no_grad()
def test_a_stored_capture_without_its_fingerprint_is_not_certified(tmp_path):
    regard.capture(llama("sdpa"), inputs=(random_ids(),)).save(tmp_path)
    assert regard.load(tmp_path).certificate.certified
    described = json.loads((tmp_path / "capture.json").read_text())
    for change in ({"fingerprint": None}, {"ids": [[1] * 7]}):
        (tmp_path / "capture.json").write_text(json.dumps(described | change))
        assert not regard.load(tmp_path).certificate.certified


@torch.no_grad()
def test_a_capture_is_opened_once():
    model = llama("sdpa")
    block = regard.capture(model)
    with block as seen:
        model(random_ids(7))
    with pytest.raises(RuntimeError, match="has been opened before"), block:
        model(random_ids(4))
    assert len(seen.layers) == 3
    assert seen.certificate.certified


class Towers(nn.Module):
    """Two encoders, each for a text of its own."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList([Encoder(), Encoder()])

    def forward(self, ids, tower):
        return self.towers[tower](ids)


@torch.no_grad()
def test_layers_that_read_other_texts_are_other_passes():
    model, first, second = Towers().eval(), random_ids(), random_ids()
    with regard.capture(model) as seen:
        model(first, 0)
        model(second, 1)
    assert [len(x.layers) for x in (*seen.passes, seen)] == [3, 3]
    assert torch.equal(seen.passes[0].ids, first)
    assert torch.equal(seen.ids, second)
    with regard.capture(model) as seen:  # one text, read by both
        model(first, 0)
        model(first, 1)
    assert len(seen.layers) == 6
    with regard.capture(model, layers=["towers.0.encoder.layers.0.self_attn"]) as seen:
        model(first, 0)
        model(second, 1)
    assert torch.equal(seen.ids, first)


@torch.no_grad()
def test_steps_of_two_caches_are_passes_with_all_their_layers():
    from transformers import DynamicCache

    model, ids = llama("sdpa").eval(), random_ids()
    plain, patched = DynamicCache(), DynamicCache()
    with regard.capture(model) as seen:
        model(ids, past_key_values=plain)
        hook = model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output + 1)
        model(ids, past_key_values=patched)
        hook.remove()
        model(random_ids(1), past_key_values=plain)  # the first layer has the same keys in both caches
    assert [[layer.key for layer in x.layers] for x in (*seen.passes, seen)] == [[0, 1, 2]] * 3
    assert {layer.shape for layer in seen.layers} == {(1, 4, 1, 8)}
    assert {layer.shape for layer in seen.passes[1].layers} == {(1, 4, 7, 7)}
    assert seen.certificate.certified


@torch.no_grad()
def test_a_step_never_continues_a_text_that_differs_in_one_token():
    from transformers import DynamicCache

    model, ids = llama("sdpa").eval(), random_ids(200)
    other = ids.clone()
    other[0, 100] = (other[0, 100] + 1) % 97  # which is none of the keys that a sample has
    assert 100 not in sampled_rows(200)
    cache, other_cache = DynamicCache(), DynamicCache()
    with regard.capture(model, layers=[0]) as seen:
        model(ids, past_key_values=cache)
        model(other, past_key_values=other_cache)
        model(random_ids(1), past_key_values=cache)
        model(random_ids(1), past_key_values=cache)
    assert [x.layers[0].shape[2:] for x in (*seen.passes, seen)] == [(200, 200), (200, 200), (2, 202)]


class TwoTexts(nn.Module):
    """Two models in one, each with a text of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = llama("sdpa"), llama("sdpa")

    def forward(self, x, y):
        self.first(x)
        self.second(y)


@torch.no_grad()
def test_the_second_text_of_a_forward_pass_is_not_certified_as_the_first():
    model, x, y = TwoTexts(), random_ids(), random_ids()
    seen = regard.capture(model, inputs=(x, y))
    assert torch.equal(seen.ids, x)
    certified = {layer.name.split(".")[0]: layer.evidence.certified for layer in seen.layers}
    assert certified == {"first": True, "second": False}
    assert "it read another text than the one of this capture" in str(seen.certificate)
    assert regard.capture(model, inputs=(x, x)).certificate.certified


class Cropping(nn.Module):
    """Hands the end of a text to the model inside it."""

    def __init__(self):
        super().__init__()
        self.inner = llama("sdpa")

    def forward(self, ids):
        return self.inner(ids[:, -5:])


@torch.no_grad()
def test_the_text_is_the_one_that_the_model_inside_reads():
    ids = random_ids(9)
    seen = regard.capture(Cropping(), inputs=(ids,))
    assert torch.equal(seen.ids, ids[:, -5:])
    assert seen.certificate.certified


def test_a_block_in_which_the_model_does_not_run_raises():
    model = llama("sdpa")
    others = {"none": lambda: None, "a copy": lambda: copy.deepcopy(model)(random_ids())}
    for name, run in others.items():
        with (
            pytest.raises(RuntimeError, match="LlamaForCausalLM did not run inside the block"),
            regard.capture(model) as seen,
        ):
            run()
        assert not seen.certificate, name
    with pytest.raises(ZeroDivisionError), regard.capture(model):  # an error of the caller's own goes first
        raise ZeroDivisionError


class CompiledMethod(nn.Module):
    """Attention in a method that is compiled by itself."""

    def __init__(self):
        super().__init__()
        self.attend = torch.compile(self._attend, backend="eager")

    def _attend(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)

    def forward(self, x):
        return self.attend(x)


def test_attention_that_compiled_code_hides_is_said_to_be_compiled():
    model, x = nn.Sequential(CompiledMethod()), torch.randn(1, 2, 5, 8)
    model(x)  # compiled outside of any capture
    with pytest.raises(RuntimeError, match=r"Sequential ran, but 0\.attend is compiled"):
        regard.capture(model, inputs=x)
    with torch.compiler.set_stance("force_eager"):  # as the message says
        assert regard.capture(model, inputs=x).certificate
