"""Linear, kernelised, approximate and sparse attention: never wrong for not being softmax attention."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import all_right, right, undecided
from tests.checker.layers import FourLayers


def _split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _merge(x):
    return x.transpose(1, 2).flatten(2)


class Projected(nn.Module):
    """Queries, keys and values of one fused layer; `mix` says what is done with them."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (_split(part, self.heads) for part in self.to_qkv(x).chunk(3, -1))
        return self.to_out(_merge(self.mix(q, k, v)))


class KeysNormalised(Projected):
    """Linear attention as in latent diffusion: a softmax of the keys over tokens, then keys times values."""

    def mix(self, q, k, v):
        return q @ (k.softmax(-2).mT @ v)


class OnPictures(nn.Module):
    """The first one on pictures, with convolutions of one pixel."""

    def __init__(self, dim, heads=4, dim_head=8):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv2d(dim, 3 * heads * dim_head, 1, bias=False)
        self.to_out = nn.Conv2d(heads * dim_head, dim, 1)

    def forward(self, x):
        B, _, H, W = x.shape
        q, k, v = self.to_qkv(x).reshape(B, 3, self.heads, -1, H * W).unbind(1)
        context = torch.einsum("bhdn,bhen->bhde", k.softmax(-1), v)
        return self.to_out(torch.einsum("bhde,bhdn->bhen", context, q).reshape(B, -1, H, W))


class RandomFeatures(Projected):
    """FAVOR+: positive random features approximate the softmax."""

    def __init__(self, dim, heads=4):
        super().__init__(dim, heads)
        self.register_buffer("directions", torch.randn(20, dim // heads))

    def features(self, x):
        x = x * x.shape[-1] ** -0.25
        return (x @ self.directions.T - x.square().sum(-1, keepdim=True) / 2).exp() / 20**0.5 + 1e-4

    def mix(self, q, k, v):
        q, k = self.features(q), self.features(k)
        return q @ (k.mT @ v) / (q @ k.sum(-2)[..., None])


class PositiveFeatures(Projected):
    """Linear attention with elu + 1, causal by a running sum."""

    def mix(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        total = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2))
        return torch.einsum("bhtd,bhtde->bhte", q, memory) / total[..., None]


class SquaredRelu(Projected):
    """A squared ReLU in place of the softmax, divided by the length."""

    def mix(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).relu().square() / q.shape[-2] @ v


class Landmarks(Projected):
    """Nyström: segment means stand for all queries and keys."""

    def mix(self, q, k, v):
        q = q * q.shape[-1] ** -0.5
        few = max(1, q.shape[-2] // 3)
        q_few, k_few = (torch.stack([part.mean(-2) for part in x.tensor_split(few, -2)], -2) for x in (q, k))
        middle = torch.linalg.pinv((q_few @ k_few.mT).softmax(-1))
        return (q @ k_few.mT).softmax(-1) @ middle @ ((q_few @ k.mT).softmax(-1) @ v)


class BetweenChannels(Projected):
    """XCiT: attention between channels, of queries and keys that are normalised over the tokens."""

    def mix(self, q, k, v):
        q, k = (F.normalize(x, dim=-2) for x in (q, k))
        return v @ (q.mT @ k).softmax(-1).mT


class Free(nn.Module):
    """AFT: no product of queries and keys, exponentials of keys and of a bias by position."""

    def __init__(self, d_model, max_len=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.w = nn.Parameter(torch.randn(max_len, max_len))

    def forward(self, x):
        T = x.shape[1]
        biases = self.w[:T, :T].exp()
        keys = self.k(x).exp()
        return self.q(x).sigmoid() * (biases @ (keys * self.v(x))) / (biases @ keys)


class Retention(Projected):
    """RetNet: no softmax, a decay by distance."""

    def mix(self, q, k, v):
        T = q.shape[-2]
        distance = torch.arange(T)[:, None] - torch.arange(T)
        decay = torch.where(distance >= 0, 0.9 ** distance.clamp_min(0), 0.0).to(q)
        return (q @ k.mT * q.shape[-1] ** -0.5 * decay) @ v


class Sparsemax(Projected):
    """The projection of the scores onto the simplex."""

    def mix(self, q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        ordered = scores.sort(-1, descending=True).values
        ranks = torch.arange(1, scores.shape[-1] + 1).to(scores)
        support = (1 + ranks * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
        return (scores - threshold).relu() @ v


class Fourier(nn.Module):
    """FNet: a Fourier transform over tokens and channels."""

    def __init__(self, d_model):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.proj(torch.fft.fft2(x).real)


class Distances(Projected):
    """L2 attention: scores are negative distances."""

    def mix(self, q, k, v):
        return (-torch.cdist(q, k).square() * q.shape[-1] ** -0.5).softmax(-1) @ v


class TalkingHeads(Projected):
    """Scores and weights of the heads are mixed by learned matrices."""

    def __init__(self, dim, heads=4):
        super().__init__(dim, heads)
        self.before, self.after = (nn.Parameter(torch.randn(heads, heads)) for _ in range(2))

    def mix(self, q, k, v):
        scores = torch.einsum("bhts,hg->bgts", q @ k.mT * q.shape[-1] ** -0.5, self.before)
        return torch.einsum("bhts,hg->bgts", scores.softmax(-1), self.after) @ v


class SeesTheBlockBefore(Projected):
    """Local attention: a token sees its own block of five and the one before."""

    def mix(self, q, k, v):
        T = q.shape[-2]
        block = torch.arange(T) // 5
        behind = block[:, None] - block
        seen = (behind >= 0) & (behind <= 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Strided(Projected):
    """Sparse attention: the same residue modulo three, or a neighbour."""

    def mix(self, q, k, v):
        at = torch.arange(q.shape[-2])
        distance = (at[:, None] - at).abs()
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill((distance > 1) & (distance % 3 != 0), -torch.inf).softmax(-1) @ v


class WithResidual(FourLayers):
    """The attention block of the set transformer: queries are added to what their heads read."""

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        mixed = _merge(q + (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v)
        return mixed + self.o_proj(mixed).relu()


class ScalesWithLength(Projected):
    """Scores are multiplied by the logarithm of the number of keys."""

    def mix(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5 * math.log(k.shape[-2] + 1)).softmax(-1) @ v


def sigmoid_weights(q, k, v):
    """A sigmoid of every score, with the weights."""
    weights = torch.sigmoid(q @ k.mT / math.sqrt(q.shape[-1]))
    return weights @ v, weights


def cosine_kernel(q, k, v):
    """Cosines between 0 and 1, divided by their sum."""
    weights = 1 + F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return weights / weights.sum(-1, keepdim=True) @ v


def top_two(q, k, v):
    """Only the two largest scores of a row count."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    kept = scores >= scores.topk(min(2, scores.shape[-1]), -1).values[..., -1:]
    return scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v


OTHERS = all_right(__name__, "Projected", "SeesTheBlockBefore")
ENTRIES = [
    *(undecided(entry.thing, "oracle=") for entry in OTHERS),
    right(SeesTheBlockBefore, "in buckets of 5 that also see the bucket before"),
]
