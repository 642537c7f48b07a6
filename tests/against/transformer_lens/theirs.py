"""Runs interventions and logit attribution with TransformerLens, and writes the numbers to a file.

    python tests/against/transformer_lens/theirs.py tests/against/transformer_lens/numbers.safetensors

It needs an environment of its own with transformer_lens 2 (later releases have no HookedTransformer), torch
and safetensors. The file is small and kept beside this one, so that `test_against_transformer_lens.py`
compares Regard with it everywhere. It was written with transformer_lens 2.16.1 and torch 2.13.
"""

import sys
from functools import partial

import torch
from safetensors.torch import save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

LAYERS, HEADS, WIDTH, VOCAB, TOKENS = 3, 4, 32, 61, 12


def build():
    """A model of GPT-2's shape with random weights, large enough that its heads differ."""
    config = HookedTransformerConfig(
        n_layers=LAYERS,
        d_model=WIDTH,
        n_ctx=16,
        d_head=WIDTH // HEADS,
        n_heads=HEADS,
        d_vocab=VOCAB,
        d_mlp=4 * WIDTH,
        act_fn="gelu_new",
        normalization_type="LN",
        seed=0,
        device="cpu",
    )
    model = HookedTransformer(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "W_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def as_gpt2(model):
    """The weights under the names and in the layout of Transformers' GPT-2."""
    state = {k: v.detach() for k, v in model.state_dict().items()}
    weights = {
        "transformer.wte.weight": state["embed.W_E"],
        "transformer.wpe.weight": state["pos_embed.W_pos"],
        "transformer.ln_f.weight": state["ln_final.w"],
        "transformer.ln_f.bias": state["ln_final.b"],
        "lm_head.weight": state["unembed.W_U"].T,
    }
    for i in range(LAYERS):
        old, new = f"blocks.{i}.", f"transformer.h.{i}."
        projections = [state[f"{old}attn.W_{x}"].permute(1, 0, 2).reshape(WIDTH, WIDTH) for x in "QKV"]
        biases = [state[f"{old}attn.b_{x}"].reshape(WIDTH) for x in "QKV"]
        weights |= {
            f"{new}attn.c_attn.weight": torch.cat(projections, 1),
            f"{new}attn.c_attn.bias": torch.cat(biases),
            f"{new}attn.c_proj.weight": state[f"{old}attn.W_O"].reshape(WIDTH, WIDTH),
            f"{new}attn.c_proj.bias": state[f"{old}attn.b_O"],
            f"{new}ln_1.weight": state[f"{old}ln1.w"],
            f"{new}ln_1.bias": state[f"{old}ln1.b"],
            f"{new}ln_2.weight": state[f"{old}ln2.w"],
            f"{new}ln_2.bias": state[f"{old}ln2.b"],
            f"{new}mlp.c_fc.weight": state[f"{old}mlp.W_in"],
            f"{new}mlp.c_fc.bias": state[f"{old}mlp.b_in"],
            f"{new}mlp.c_proj.weight": state[f"{old}mlp.W_out"],
            f"{new}mlp.c_proj.bias": state[f"{old}mlp.b_out"],
        }
    return weights


def set_head(x, hook, head, new):
    """A hook that replaces one head of (B, T, H, E)."""
    x = x.clone()
    x[:, :, head] = new
    return x


def set_scores(x, hook, head, cut):
    """A hook that hides edges of one head in the scores (B, H, T, S)."""
    x = x.clone()
    x[:, head] = x[:, head].masked_fill(cut, -torch.inf)
    return x


def set_pattern(x, hook, head, new):
    """A hook that replaces one head of the weights (B, H, T, S)."""
    x = x.clone()
    x[:, head] = new
    return x


@torch.no_grad()
def main(path):
    model = build()
    generator = torch.Generator().manual_seed(1)
    ids, other = torch.randint(0, VOCAB, (2, 1, TOKENS), generator=generator)
    logits, cache = model.run_with_cache(ids)
    _, source = model.run_with_cache(other)
    q, k = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    cut = (q - k == 2) | ((k == 0) & (q > 3))
    results = {"plain": logits}
    for layer in range(LAYERS):
        z, scores, pattern = (f"blocks.{layer}.attn.hook_{x}" for x in ("z", "attn_scores", "pattern"))
        for head in range(HEADS):
            mean = cache[z][:, :, head].mean((0, 1))
            hooks = {
                "zero": (z, partial(set_head, head=head, new=0.0)),
                "mean": (z, partial(set_head, head=head, new=mean)),
                "output": (z, partial(set_head, head=head, new=source[z][:, :, head])),
                "block": (scores, partial(set_scores, head=head, cut=cut)),
                "pattern": (pattern, partial(set_pattern, head=head, new=source[pattern][:, head])),
            }
            for name, hook in hooks.items():
                results[f"{name} {layer}.{head}"] = model.run_with_hooks(ids, fwd_hooks=[hook])
    # Direct logit attribution of one token at the last position, the final norm frozen.
    cache.compute_head_results()
    heads = cache.stack_head_results(layer=-1, pos_slice=-1)  # (layers · heads, B, width)
    answer = ids[:, 0]
    results["attribution"] = cache.logit_attrs(heads, tokens=answer, pos_slice=-1)  # (layers · heads, B)
    save_file(
        {f"weight {k}": v.contiguous() for k, v in as_gpt2(model).items()}
        | {f"result {k}": v.contiguous() for k, v in results.items()}
        | {"ids": ids.contiguous(), "other": other.contiguous()},
        path,
    )


if __name__ == "__main__":
    main(sys.argv[1])
