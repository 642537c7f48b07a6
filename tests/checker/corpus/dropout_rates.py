"""Dropout at the rate that was set: right code in many styles, and code that drops at another rate."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import Entry, right, wrong
from tests.checker.layers import FusedHeads


class Base(FusedHeads):
    """Attention whose subclasses say what is dropped: `mix` the weights, `finish` the output."""

    def forward(self, x):
        return self.finish(super().forward(x))

    def attend(self, q, k, v):
        scores = self.score(q @ k.mT * q.shape[-1] ** -0.5)
        return self.mix(scores.softmax(-1)) @ v

    def score(self, scores):
        return scores

    def mix(self, weights):
        return weights

    def finish(self, output):
        return output


class Layer(Base):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(dropout)

    def mix(self, weights):
        return self.drop(weights)


class AfterProjection(Layer):
    def mix(self, weights):
        return weights

    def finish(self, output):
        return F.dropout(output, self.drop.p, self.training)


class Both(Base):
    def __init__(self, d_model, num_heads, attn_pdrop=0.1, resid_pdrop=0.3):
        super().__init__(d_model, num_heads)
        self.attn_dropout, self.resid_dropout = nn.Dropout(attn_pdrop), nn.Dropout(resid_pdrop)

    def mix(self, weights):
        return self.attn_dropout(weights)

    def finish(self, output):
        return self.resid_dropout(output)


class FixedBehind(Layer):
    """The output is dropped at a rate of its own, which no parameter sets."""

    def __init__(self, d_model, num_heads, attn_dropout=0.1):
        super().__init__(d_model, num_heads, attn_dropout)
        self.resid = nn.Dropout(0.1)

    def finish(self, output):
        return self.resid(output)


class Fused(Base):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__(d_model, num_heads)
        self.rate = dropout  # a name that says nothing

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate if self.training else 0.0)


class StoredKeep(Base):
    """The attribute `p` is the probability to keep, though the parameter is that to drop."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.p = 1 - dropout

    def mix(self, weights):
        if not self.training:
            return weights
        return weights * torch.bernoulli(torch.full_like(weights, self.p)) / self.p


class KeepProb(StoredKeep):
    def __init__(self, d_model, num_heads, keep_prob=0.9):
        super().__init__(d_model, num_heads, 1 - keep_prob)
        self.keep_prob, self.p = keep_prob, None

    def mix(self, weights):
        return F.dropout(weights, 1 - self.keep_prob, self.training)


class DropKey(Layer):
    """Keys are hidden at random before the softmax (Li et al. 2023)."""

    def score(self, scores):
        if not self.training:
            return scores
        return scores + torch.bernoulli(torch.full_like(scores, self.drop.p)) * -1e12

    def mix(self, weights):
        return weights


class StochasticDepth(Layer):
    """The whole output of a text is dropped, as in a residual network."""

    def mix(self, weights):
        return weights

    def finish(self, output):
        if not self.training or not self.drop.p:
            return output
        kept = torch.rand(len(output), 1, 1, dtype=output.dtype) >= self.drop.p
        return output * kept / (1 - self.drop.p)


class SharedOverHeads(Layer):
    def mix(self, weights):
        return weights * self.drop(torch.ones_like(weights[:, :1]))


class SparesItself(Layer):
    """A token's weight on itself is never dropped."""

    def mix(self, weights):
        own = torch.eye(weights.shape[-1], dtype=torch.bool)
        return torch.where(own, weights, self.drop(weights))


class WritesItsRate(Layer):
    def mix(self, weights):
        return F.dropout(weights, 0.1, self.training)


class FusedFixed(Fused):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 if self.training else 0.0)


class TurnedMask(Layer):
    """Right factor, wrong comparison: what should be dropped is kept."""

    def mix(self, weights):
        if not self.training:
            return weights
        return weights * (torch.rand_like(weights) < self.drop.p) / (1 - self.drop.p)


class KeepProbAsRate(Base):
    def __init__(self, d_model, num_heads, keep_prob=0.9):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(keep_prob)

    def mix(self, weights):
        return self.drop(weights)


class KeepsOutput(AfterProjection):
    def finish(self, output):
        return F.dropout(output, 1 - self.drop.p, self.training)


def attention(q, k, v, dropout_p=0.0):
    return F.dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), dropout_p) @ v


def kept_attention(q, k, v, dropout_p=0.0):
    rate = 1 - dropout_p if dropout_p else 0.0
    return attention(q, k, v, rate)


def fixed_attention(q, k, v, dropout_p=0.0):
    return attention(q, k, v, 0.5 if dropout_p else 0.0)


def drops_weights(q, k, v, dropout_p=0.0, training=False):
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return F.dropout(weights, dropout_p, training) @ v


def drops_weights_by_hand(q, k, v, dropout=0.0):
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return weights * (torch.rand_like(weights) >= dropout) / (1 - dropout) @ v


def takes_a_layer(q, k, v, mask=None, dropout=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(-1)
    return (weights if dropout is None else dropout(weights)) @ v


def drops_the_output(q, k, v, dropout_p=0.0, training=False):
    return F.dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v, dropout_p, training)


def drops_without_a_factor(q, k, v, dropout_rate=0.0):
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return weights * (torch.rand_like(weights) >= dropout_rate) @ v


def drops_scores(q, k, v, dropout_p=0.0):
    return F.dropout(q @ k.mT * q.shape[-1] ** -0.5, dropout_p).softmax(-1) @ v


def drops_nothing(q, k, v, dropout_p=0.0):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


RIGHT = [Layer, AfterProjection, Both, FixedBehind, Fused, StoredKeep, KeepProb, DropKey, StochasticDepth]
RIGHT += [SharedOverHeads, SparesItself, F.scaled_dot_product_attention]
RIGHT += [attention, drops_weights, drops_weights_by_hand, takes_a_layer]
IGNORED = [WritesItsRate, FusedFixed, fixed_attention]
INVERTED = [TurnedMask, KeepProbAsRate, KeepsOutput, kept_attention]
ENTRIES = [
    *(right(thing) for thing in RIGHT),
    right(nn.MultiheadAttention, batch_first=True, dropout=0.1),
    Entry("drops nothing", drops_nothing, why="dropout_p"),  # right as far as tried
    *(wrong(thing, "dropout-rate-ignored") for thing in IGNORED),
    *(wrong(thing, "dropout-rate-inverted") for thing in INVERTED),
    wrong(drops_the_output, "dropout-on-output"),
    wrong(drops_without_a_factor, "dropout-not-rescaled"),
    wrong(drops_scores, "dropout-on-scores"),
]
