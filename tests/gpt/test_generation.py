"""Generation: equal tokens with and without cache, alone and in a batch; sampling; stops; streams."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.gpt import GPT, Config, tokens
from regard.gpt.cache_demo import compare_with_and_without_cache
from regard.gpt.sampler import Sampler
from tests.gpt.architectures import ARCHITECTURES, small
from tests.sampling import combine

names = pytest.mark.parametrize("name", ARCHITECTURES)
cached_or_not = pytest.mark.parametrize(("name", "cache"), combine(ARCHITECTURES, [True, False]))
PROMPTS = [[5, 9, 2, 33, 17, 4, 60, 8], [7], [11, 12, 13], [1, 2, 3, 4, 5, 6]]


def with_text(model):
    """The model with a tokenizer of bytes: token i is byte i + 65, and bytes in pairs make é."""
    letters = {chr(65 + i): i for i in range(58)}
    vocabulary = letters | {"Ã": 58, "©": 59, "<end>": 60}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    model.tokenizer = tokenizer
    return model


class Fixed(GPT):
    """A model that continues every prompt with the tokens of its script."""

    def logits(self, states):
        scores = torch.zeros(*states.shape[:-1], self.config.vocab_size)
        scores[..., self.script.pop(0)] = 1.0
        return scores


def fixed(*script):
    model = Fixed(small("llama").config)
    model.script = list(script)
    return with_text(model)


@names
def test_cached_tokens_are_the_uncached_ones(name):
    model, ids = small(name), torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    for options in ({}, {"temperature": 1.0, "seed": 3}):
        cached = model.generate(ids, max_new_tokens=14, **options)
        assert cached.shape == (2, 22)
        assert torch.equal(cached[:, :8], ids)
        assert torch.equal(cached, model.generate(ids, max_new_tokens=14, cache=False, **options))


@cached_or_not
def test_a_batch_of_different_lengths_is_each_prompt_alone(name, cache):
    model = small(name, tie_word_embeddings=False)  # tied models of this size repeat one token
    alone = [model.generate(prompt, max_new_tokens=12) for prompt in PROMPTS]
    assert model.generate(PROMPTS, max_new_tokens=12, cache=cache) == alone
    assert (
        len({token for row, prompt in zip(alone, PROMPTS, strict=True) for token in row[len(prompt) :]}) > 3
    )


def test_the_result_has_the_type_of_the_prompt():
    model = with_text(small("llama"))
    row = model.generate([1, 2, 3], max_new_tokens=4)
    assert isinstance(row, list)
    assert row[:3] == [1, 2, 3]
    assert model.generate([[1, 2, 3]], max_new_tokens=4) == [row]
    one = model.generate(torch.tensor([1, 2, 3]), max_new_tokens=4)
    assert one.tolist() == row
    assert model.generate(torch.tensor([[1, 2, 3]], dtype=torch.int32), max_new_tokens=4).dtype == torch.int32
    text = model.generate("BCD", max_new_tokens=4)
    assert text == model.tokenizer.decode(row)
    assert text.startswith("BCD")
    assert model.generate(["BCD", "BCD"], max_new_tokens=4) == [text, text]


def test_seeds():
    model = small("gpt2")
    draws = [model.generate([1, 2], max_new_tokens=20, temperature=2.0, seed=seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    torch.manual_seed(5)
    first = model.generate([1, 2], max_new_tokens=20, temperature=2.0)
    assert model.generate([1, 2], max_new_tokens=20, temperature=2.0) != first
    torch.manual_seed(5)
    assert model.generate([1, 2], max_new_tokens=20, temperature=2.0) == first
    # A seed of its own leaves PyTorch's state alone.
    state = torch.get_rng_state()
    model.generate([1, 2], max_new_tokens=3, temperature=2.0, seed=7)
    assert torch.equal(torch.get_rng_state(), state)


def shares(logits, **options):
    """How often each token is drawn from these logits, in 20,000 draws."""
    drawn = Sampler(seed=0, **options).sample(torch.tensor([logits]).expand(20_000, -1))
    return (torch.bincount(drawn, minlength=len(logits)) / 20_000).tolist()


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    close = {"abs": 0.015}
    assert shares(logits, temperature=1.0) == pytest.approx([0.5, 0.3, 0.15, 0.05], **close)
    squared = torch.tensor([0.25, 0.09, 0.0225, 0.0025])
    assert shares(logits, temperature=0.5) == pytest.approx((squared / squared.sum()).tolist(), **close)
    assert shares(logits, temperature=1.0, top_k=2) == pytest.approx([0.625, 0.375, 0, 0], **close)
    assert shares(logits, temperature=1.0, top_k=9) == pytest.approx([0.5, 0.3, 0.15, 0.05], **close)
    # The fewest best ones that have 0.6 together are two; of 0.5 exactly, one.
    assert shares(logits, temperature=1.0, top_p=0.6) == pytest.approx([0.625, 0.375, 0, 0], **close)
    assert shares(logits, temperature=1.0, top_p=0.45) == [1, 0, 0, 0]
    assert shares(logits, temperature=1.0, top_p=1.0) == pytest.approx([0.5, 0.3, 0.15, 0.05], **close)
    # After top_k=2 the first has 0.625 of what is left.
    assert shares(logits, temperature=1.0, top_k=2, top_p=0.6) == [1, 0, 0, 0]
    assert shares(logits[::-1], temperature=1.0, top_k=2) == pytest.approx([0, 0, 0.375, 0.625], **close)
    assert shares(logits, temperature=0.0, top_k=3, top_p=0.9) == [1, 0, 0, 0]


def test_stop_tokens():
    assert fixed(4, 5, 6, 7).generate([1], max_new_tokens=4, stop=6) == [1, 4, 5, 6]
    assert fixed(4, 5, 6, 7).generate([1], max_new_tokens=4, stop=[7, 5]) == [1, 4, 5]
    assert fixed(4, 5, 6, 7).generate([6], max_new_tokens=4, stop=6) == [6, 4, 5, 6]  # not in the prompt


def test_stop_strings():
    assert fixed(4, 5, 6, 7).generate("A", max_new_tokens=4, stop="FG") == "AEFG"
    assert fixed(4, 5, 6, 7).generate("E", max_new_tokens=2, stop="EE") == "EEF"  # half of it in the prompt
    # A special token is a stop by its name, though it never shows in the text.
    assert fixed(4, 60, 6, 7).generate([1], max_new_tokens=4, stop=["no", "<end>"]) == [1, 4, 60]


def test_rows_of_a_batch_stop_one_by_one():
    model = small("llama")
    free = model.generate(PROMPTS, max_new_tokens=20)
    stop = free[0][len(PROMPTS[0]) + 5]
    expected = []
    for row, prompt in zip(free, PROMPTS, strict=True):
        new = row[len(prompt) :]
        expected.append(prompt + (new[: new.index(stop) + 1] if stop in new else new))
    assert model.generate(PROMPTS, max_new_tokens=20, stop=stop) == expected
    assert len({len(row) - len(prompt) for row, prompt in zip(expected, PROMPTS, strict=True)}) > 1

    # In a tensor, what ends early is filled up with its last token.
    table = model.generate(torch.tensor([p[:1] for p in PROMPTS]), max_new_tokens=20, stop=stop)
    lists = model.generate([p[:1] for p in PROMPTS], max_new_tokens=20, stop=stop)
    longest = max(map(len, lists))
    assert table.tolist() == [row + row[-1:] * (longest - len(row)) for row in lists]


def test_streams_are_what_generate_adds():
    model = with_text(small("llama"))
    tokens = list(model.stream([1, 2, 3], max_new_tokens=12))
    assert [1, 2, 3, *tokens] == model.generate([1, 2, 3], max_new_tokens=12)
    assert "".join(model.stream("BCD", max_new_tokens=12)) == model.generate("BCD", max_new_tokens=12)[3:]


def test_a_stream_comes_token_by_token():
    model = fixed(4, 5, 6)
    pieces = model.stream("A", max_new_tokens=3)
    assert next(pieces) == "E"
    assert model.script == [5, 6]  # the rest is computed on demand


def test_a_character_of_two_tokens_comes_whole():
    assert list(fixed(4, 58, 59, 5).stream("A", max_new_tokens=4)) == ["E", "é", "F"]
    # Half a character at the end is shown as what it is.
    assert list(fixed(4, 58).stream("A", max_new_tokens=2)) == ["E", "\N{REPLACEMENT CHARACTER}"]


WRONG = [
    (list(range(49)), {}, "prompt: expected at most context_length=48 tokens, got 49"),
    (list(range(40)), {"max_new_tokens": 9}, "max_new_tokens: expected at most 8, .* 40 tokens .* got 9"),
    ([], {}, "prompt: expected text, .* got list of 0"),
    ([[1], []], {}, "prompt: expected at least one token in each, got an empty one"),
    (torch.zeros(1, 0, dtype=torch.long), {}, "prompt: expected at least one token"),
    (torch.zeros(1, 2), {}, "prompt: expected integers"),
    ([1, 61], {}, "prompt: expected tokens from 0 to 60, got 1 to 61"),
    ([1, "two"], {}, "prompt: expected text, a list of texts, token ids"),
    ("text", {}, "this model has no tokenizer: give token ids"),
    ([1], {"stop": "text"}, "this model has no tokenizer"),
    ([1], {"stop": 61}, "stop: expected tokens from 0 to 60 or strings, got 61"),
    ([1], {"stop": [""]}, "stop: expected tokens .* got ''"),
    ([1], {"max_new_tokens": -1}, "max_new_tokens: expected a whole number of at least 0, got -1"),
    ([1], {"temperature": -0.5}, "temperature: expected 0 .greedy. or a number above 0, got -0.5"),
    ([1], {"temperature": float("nan")}, "temperature: expected 0"),
    ([1], {"top_k": 0}, "top_k: expected a whole number of at least 1, got 0"),
    ([1], {"top_p": 0.0}, "top_p: expected a probability above 0 and up to 1, got 0.0"),
    ([1], {"seed": "x"}, "seed: expected a whole number"),
]


@pytest.mark.parametrize("way", ["generate", "stream"])
def test_bad_arguments(way):
    """At once, before anything is computed, from a stream too."""
    run = getattr(model := small("gpt2"), way)
    for prompt, options, message in WRONG:
        with pytest.raises(ValueError, match=message):
            run(prompt, **{"max_new_tokens": 5, **options})
    model.tokenizer = tokens.character_tokenizer("abc")
    with pytest.raises(ValueError, match=r"expected only characters of the model's vocabulary, got \['x'\]"):
        run("abxa", max_new_tokens=1)


SMALL = Config(
    vocab_size=64,
    context_length=48,
    num_layers=3,
    num_heads=4,
    d_model=32,
    num_kv_heads=2,
    positions="rotary",
)
PROMPT = [5, 9, 2, 33, 5, 9, 2, 40, 1, 7]


def model(config=SMALL):
    gpt = GPT(config).eval()
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv.weight *= 20  # sharper than that of an untrained model
    return gpt


def test_it_writes_what_generate_writes_and_both_ways_agree():
    gpt = model()
    steps = list(compare_with_and_without_cache(gpt, PROMPT, tokens=12))
    assert PROMPT + [step.token_id for step in steps] == gpt.generate(PROMPT, max_new_tokens=12)
    assert all(step.same and step.difference < 1e-3 for step in steps)
    assert any(step.difference > 0 for step in steps), "two ways of computing never agree to the last bit"
    assert [step.position for step in steps] == list(range(10, 22))
    assert all(step.seconds.cached > 0 and step.seconds.recomputed > 0 for step in steps)


def test_computed_tokens_read_keys_and_cached_bytes_are_counted():
    first, second, *_ = compare_with_and_without_cache(model(), PROMPT, tokens=3)
    layers, kv_heads, width = 3, 2, 8
    assert first.computed == (10, 10)
    assert second.computed == (1, 11)
    assert first.keys_read == (layers * kv_heads * 55, layers * kv_heads * 55)
    assert second.keys_read == (layers * kv_heads * 11, layers * kv_heads * 66)
    one_token = layers * kv_heads * width * 2 * 4  # keys and values in float32
    assert (first.cache_bytes, second.cache_bytes) == (10 * one_token, 11 * one_token)


def test_layers_with_a_window_cache_and_read_less():
    config = Config(vocab_size=64, context_length=48, num_layers=2, num_heads=4, d_model=32, window=(None, 6))
    gpt = model(config)
    *_, last = compare_with_and_without_cache(gpt, PROMPT, tokens=5)
    full, short = 14, 6  # keys that the newest token sees
    assert last.cache_bytes == (full + short) * 4 * 8 * 2 * 4
    assert last.keys_read.cached == (full + short) * 4
    assert last.same


def test_it_ends_with_an_end_token_and_with_the_context():
    gpt = model()
    written = [step.token_id for step in compare_with_and_without_cache(gpt, PROMPT, tokens=100)]
    assert len(written) == 48 - 10
    ending = GPT(Config(**{**vars(SMALL), "eos_token_id": (written[2],)})).eval()
    ending.load_state_dict(gpt.state_dict())
    stopped = [step.token_id for step in compare_with_and_without_cache(ending, PROMPT, tokens=100)]
    assert stopped == written[: written.index(written[2]) + 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens"),
        ({"prompt": []}, "prompt: expected from 1 to 47 tokens, got 0"),
        ({"prompt": [1] * 48}, "prompt: expected from 1 to 47 tokens, got 48"),
    ],
)
def test_bad_arguments_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        compare_with_and_without_cache(model(), **{"prompt": PROMPT, **options})
