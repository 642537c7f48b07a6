"""The names and shapes of the parameters of a `GPT`, from its config alone.

A loader compares them with the tensors of a file before any module is built. A test holds them equal to those
of the modules.
"""

from __future__ import annotations

from regard.gpt.config import Config

Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: Config) -> Shapes:
    """The shape of every parameter of a GPT with this config, by name.

    >>> parameter_shapes(Config(vocab_size=8, context_length=4, num_layers=1, num_heads=1, d_model=2))[
    ...     "blocks.0.attention.qkv.weight"
    ... ]
    (6, 2)
    """
    shapes: Shapes = {"token_embedding.weight": (config.vocab_size, config.d_model)}
    if config.positions == "learned":
        shapes["position_embedding.weight"] = (config.context_length, config.d_model)
    block = _block_shapes(config)
    for layer in range(config.num_layers):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= _norm_shapes("norm", config)
    if not config.tie_word_embeddings:
        shapes["head.weight"] = (config.vocab_size, config.d_model)
    return shapes


def _block_shapes(config: Config) -> Shapes:
    """The shapes of the parameters of one block."""
    width, heads, head_dim = config.d_model, config.num_heads, config.head_dim
    inner = config.intermediate_size
    shapes = _norm_shapes("attention_norm", config)
    shapes |= _linear_shapes(
        "attention.qkv", (heads + 2 * config.num_kv_heads) * head_dim, width, config.qkv_bias
    )
    shapes |= _linear_shapes("attention.out", width, heads * head_dim, config.out_bias)
    if config.qk_norm:
        shapes |= {"attention.query_norm.weight": (head_dim,), "attention.key_norm.weight": (head_dim,)}
    shapes |= _norm_shapes("feed_forward_norm", config)
    up = 2 * inner if config.activation == "swiglu" else inner
    shapes |= _linear_shapes("feed_forward.up", up, width, config.mlp_bias)
    return shapes | _linear_shapes("feed_forward.down", width, inner, config.mlp_bias)


def _linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def _norm_shapes(name: str, config: Config) -> Shapes:
    weight: Shapes = {f"{name}.weight": (config.d_model,)}
    return weight | {f"{name}.bias": (config.d_model,)} if config.norm == "layer" else weight
