"""Small models of every way in which attention is captured, and all that a capture might leave in one."""

import torch
from torch import Tensor, nn

import regard
from regard.gpt import GPT, Config
from tests.recorder.small_llama import SIZES

LAYERS, VOCABULARY = SIZES["num_hidden_layers"], SIZES["vocab_size"]


class Encoder(nn.Module):
    """PyTorch's own encoder over token ids."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.embedding(ids))


class Projected(nn.Module):
    """Attends by a function of queries, keys and values (B, H, T, D), whose first result is the output."""

    def __init__(self, function, *, heads=4, kv_heads=2, width=4, **options):
        super().__init__()
        self.function, self.options, self.width = function, options, width
        self.sizes = [heads * width, kv_heads * width, kv_heads * width]
        self.qkv, self.out = (
            nn.Linear(heads * width, sum(self.sizes)),
            nn.Linear(heads * width, heads * width),
        )

    def heads(self, x):
        parts = self.qkv(x).split(self.sizes, -1)
        return [y.unflatten(-1, (-1, self.width)).transpose(1, 2) for y in parts]

    def forward(self, x):
        result = self.function(*self.heads(x), **self.options)
        output = result[0] if isinstance(result, tuple) else result
        return self.out(output.transpose(1, 2).flatten(2))


def llama(implementation):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.set_attn_implementation(implementation)
    return model


def gpt():
    sizes = {"context_length": 128, "num_layers": LAYERS, "d_model": 32, "num_heads": 4}
    return GPT(Config(vocab_size=VOCABULARY, **sizes))


MODELS = {
    "Llama, sdpa": lambda: llama("sdpa"),
    "Llama, eager": lambda: llama("eager"),
    "Llama, regard": lambda: llama("regard"),
    "GPT": gpt,
    "torch.nn.TransformerEncoder": Encoder,
}


def state(model):
    """Everything that a capture might leave in a model and its classes."""
    return [
        (name, sorted(vars(module)), len(module._forward_hooks), type(module).forward)
        for name, module in model.named_modules()
    ] + [getattr(type(model), "states", None), torch.nn.functional.scaled_dot_product_attention]


def captured(model, *args, certified=True, options=None, **kwargs):
    """What a capture with some options sees of a call, which must be what it is without capture."""
    drawn = torch.random.get_rng_state()
    plain = model(*args, **kwargs)
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(drawn)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with regard.capture(model, **(options or {})) as seen:
        watched = model(*args, **kwargs)
    assert torch.equal(torch.random.get_rng_state(), after)
    plain, watched = ((x,) if isinstance(x, Tensor) else x for x in (plain, watched))
    for a, b in zip(plain, watched, strict=True):
        assert (a is b is None) or torch.equal(a, b)  # to the last bit
        assert a is None or a.requires_grad == b.requires_grad
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    if certified:
        assert seen.certificate.certified, str(seen.certificate)
    return seen
