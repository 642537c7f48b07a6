"""Mistakes that lessons name and the checker's catalogue does not have: those of a model around attention.

The catalogue is of softmax attention alone. Blocks, losses, scores of heads, hooks, sizes of caches, and
attention that keeps a state or chooses its keys have mistakes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.checker.catalogue import Mistake


@dataclass(frozen=True)
class ModelMistake:
    """A mistake outside of attention: its name, what it does, and how to fix it."""

    name: str
    effect: str
    fix: str


_MODEL_MISTAKES = (
    # Of a head
    ModelMistake(
        "dropout-on-values",
        "In training no weight is dropped. Dropout of a weight takes a whole token from a query; dropout of "
        "the values takes single numbers from each token.",
        "weights = self.dropout(weights), after the softmax, and nowhere else",
    ),
    # Of a block
    ModelMistake(
        "no-residual",
        "A block replaces its input instead of adding to it: what a token was is lost, and gradients have no "
        "short way back to the first layers.",
        "x = x + self.attention(self.attention_norm(x)), and the same with the MLP",
    ),
    ModelMistake(
        "norm-after-residual",
        "This is post-norm, as in the first Transformer: the residual stream itself is normalised, and deep "
        "stacks of it train only with care (a warm-up of the learning rate).",
        "normalise what attention and MLP read, not the sum: x = x + self.attention(self.attention_norm(x))",
    ),
    ModelMistake(
        "norm-missing",
        "Attention or MLP reads the residual stream as it is: it grows from block to block, and the scores "
        "grow with it.",
        "x = x + self.attention(self.attention_norm(x)), and the same with mlp_norm",
    ),
    ModelMistake(
        "mlp-reads-input",
        "The MLP reads the block's input, not what attention has added to it.",
        "x = x + self.mlp(self.mlp_norm(x)), with the x to which attention was added",
    ),
    ModelMistake(
        "mlp-without-activation",
        "Two linear layers in a row are one linear layer: the MLP cannot compute anything that one matrix "
        "could not.",
        "nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))",
    ),
    ModelMistake(
        "softmax-as-activation",
        "The numbers between the two linear layers sum to 1: a channel can grow only if others shrink, and "
        "what reaches the second layer is a mean of its columns.",
        "nn.GELU() between the two linear layers, which bends each number by itself",
    ),
    # Of a stack of blocks
    ModelMistake(
        "one-block-for-all",
        "Every layer is the same block with the same weights: [block] * n repeats one object.",
        "nn.ModuleList(TransformerBlock(d_model, num_heads) for _ in range(num_layers))",
    ),
    ModelMistake(
        "positions-missing",
        "No position enters the model: a row of equal tokens gives the same logits at every place.",
        "x = self.token_embedding(ids) + self.position_embedding(positions)",
    ),
    # Of a loss
    ModelMistake(
        "targets-not-shifted",
        "Each place is asked for the token that it has just read: the loss falls to 0, and the model has "
        "learned to copy.",
        "compare the logits of all places but the last with the tokens from the second on: "
        "logits[:, :-1] with ids[:, 1:]",
    ),
    ModelMistake(
        "targets-shifted-back",
        "Each place is asked for the token before it, which attention can simply look up.",
        "compare the logits of all places but the last with the tokens from the second on: "
        "logits[:, :-1] with ids[:, 1:]",
    ),
    ModelMistake(
        "softmax-before-loss",
        "cross_entropy takes logits and applies the logarithm of softmax itself: with probabilities the loss "
        "can hardly fall, and learning is slow.",
        "F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())",
    ),
    # Of weights that come from another model
    ModelMistake(
        "other-rotary-pairing",
        "Channels are paired as neighbours (0 1)(2 3)…, and these weights were trained with channel i paired "
        "with i + D/2. It is a right rotary attention, and not this model's.",
        "a, b = x[..., : D // 2], x[..., D // 2 :]",
    ),
    # Of scores and cuts of heads
    ModelMistake(
        "map-read-sideways",
        "Rows and columns are exchanged. Row q asks and column k is read; above the diagonal of a causal map "
        "is the future, where every weight is 0.",
        "A.diagonal(-1) holds A[q, q − 1], and A[:, 0] is the first column",
    ),
    ModelMistake(
        "copy-itself-counted",
        "The weight on the earlier copy is counted, not the weight on the token after it: that is a "
        "duplicate-token head, which knows nothing of what came next.",
        "the key p + 1 counts if the token at p, before it, equals the token at q: ids[k − 1] == ids[q]",
    ),
    ModelMistake(
        "blind-queries-counted",
        "Queries that could not show the behaviour count as zeros: the score sinks with their number.",
        "take the mean over the queries that see such a key",
    ),
    ModelMistake(
        "hook-without-return",
        "The hook changes a copy that nobody uses: nothing is cut, and every head looks unimportant.",
        "return (merged,): what a forward pre-hook returns replaces the inputs of the module",
    ),
    ModelMistake(
        "head-cut-after-mixing",
        "The output projection has mixed the heads: a slice of its output holds a part of every head.",
        "cut before it, where the heads lie side by side: attention.out.register_forward_pre_hook(zero)",
    ),
    ModelMistake(
        "whole-layer-cut",
        "Every head of the layer is cut: a rise of the loss says nothing about the one head.",
        "zero the slice of one head only: merged[..., head * D : (head + 1) * D] = 0",
    ),
    # Of caches and grouped heads
    ModelMistake(
        "values-not-counted",
        "Only the keys are counted. A cache holds as many values, so it is twice as large.",
        "2 * layers * kv_heads * head_dim * tokens * bytes_per_number",
    ),
    ModelMistake(
        "first-group-for-all",
        "Every query head reads key/value head 0. The others are computed and cached, and never read.",
        "k = k.repeat_interleave(H // G, dim=1), and v the same",
    ),
    ModelMistake(
        "sinks-evicted",
        "The first keys are gone with the others. Heads that rest on them have to put that weight on other "
        "tokens, and their outputs become loud.",
        "causal & (near | first), and in a cache the first `sinks` keys before the latest ones",
    ),
    # Of a state in place of a cache
    ModelMistake(
        "state-overwritten",
        "Each token replaces the state instead of adding to it: only the last token is in it.",
        "state = state + torch.outer(k[t], v[t])",
    ),
    ModelMistake(
        "old-value-kept",
        "What the state says to this key already is not taken out: a key that comes twice answers with the "
        "sum of its values.",
        "state = state + beta[t] * torch.outer(k[t], v[t] - old), with old = k[t] @ state",
    ),
    ModelMistake(
        "old-read-by-query",
        "The old value is read with the query. It has to be what the state says to the key that is written.",
        "old = k[t] @ state",
    ),
    # Of chosen keys
    ModelMistake(
        "block-judged-by-mean",
        "A block is judged by the mean of its keys, in which a strong key and its opposite cancel: the best "
        "key may stand in a block that is never read.",
        "products = torch.maximum(q * lowest, q * highest), with the extremes of each channel",
    ),
    ModelMistake(
        "bound-of-one-sign",
        "Only one extreme of each channel is used. It is the right one where the query has that sign; "
        "elsewhere the number is too small, and no bound.",
        "products = torch.maximum(q * lowest, q * highest)",
    ),
    ModelMistake(
        "logarithm-as-share",
        "A difference or a ratio of logarithms is taken for a share. It is near for small losses, and can be "
        "above 1.",
        "return 1 - torch.exp(lse_kept - lse)",
    ),
)
MODEL_MISTAKES: dict[str, ModelMistake] = {mistake.name: mistake for mistake in _MODEL_MISTAKES}


def find_mistake(name: str) -> Mistake | ModelMistake | None:
    """Return the mistake of this name, from the checker's catalogue or from here; None if there is none."""
    # Here, since the catalogue imports PyTorch, and the command that prints an answer needs only names.
    from regard.checker.catalogue import CATALOGUE

    return CATALOGUE.get(name) or MODEL_MISTAKES.get(name)
