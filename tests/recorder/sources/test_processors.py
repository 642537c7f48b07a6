"""Modules whose attention is computed by an object that they hold, as the processors of diffusers do."""

import torch
from torch import nn
from torch.nn import functional

from tests.recorder.small_models import captured


class Processor:
    """Like the `AttnProcessor2_0` of diffusers: not a module itself."""

    def __call__(self, attn, hidden_states, context):
        context = hidden_states if context is None else context
        projected = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        q, k, v = (x.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for x in projected)
        output = functional.scaled_dot_product_attention(q, k, v)
        return attn.to_out(output.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, width, context_width=None, heads=4):
        super().__init__()
        self.is_cross_attention = context_width is not None
        self.heads, self.processor = heads, Processor()
        self.to_q, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.to_k, self.to_v = (nn.Linear(context_width or width, width, bias=False) for _ in range(2))

    def forward(self, hidden_states, encoder_hidden_states=None):
        return self.processor(self, hidden_states, encoder_hidden_states)


class Denoiser(nn.Module):
    """Two blocks of a text-to-image model: the latents attend to each other, then to the text."""

    def __init__(self):
        super().__init__()
        blocks = (
            nn.ModuleDict({"attn1": CrossAttention(32), "attn2": CrossAttention(32, 24)}) for _ in range(2)
        )
        self.transformer_blocks = nn.ModuleList(blocks)

    def forward(self, latents, text):
        for block in self.transformer_blocks:
            latents = latents + block["attn1"](latents)
            latents = latents + block["attn2"](latents, text)
        return latents


def test_the_cross_attention_of_a_denoiser_is_captured():
    model, latents, text = Denoiser().eval(), torch.randn(1, 16, 32), torch.randn(1, 7, 24)
    with torch.no_grad():
        seen = captured(model, latents, text)
    assert not seen.missing
    crosses = [layer for layer in seen.layers if layer.name.endswith("attn2")]
    assert [layer.shape for layer in crosses] == [(1, 4, 16, 7)] * 2
    assert [str(layer.key) for layer in crosses] == [
        "transformer_blocks.cross.0",
        "transformer_blocks.cross.1",
    ]

    # The first self-attention, by hand.
    attn = model.transformer_blocks[0]["attn1"]
    q, k = (proj(latents).unflatten(-1, (4, 8)).transpose(1, 2) for proj in (attn.to_q, attn.to_k))
    expected = (q @ k.mT / 8**0.5).softmax(-1)
    assert torch.allclose(seen["transformer_blocks.0"].to_dense(), expected, atol=1e-6)
