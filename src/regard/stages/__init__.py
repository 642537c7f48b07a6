"""The teaching stages: attention built up from nothing, each file the one before it plus one idea.

They are numbered as the lessons of `regard learn`:

1 simplified, 2 trainable, 3 scaled, 4 causal (and masking), 5 head (and against_pytorch), 6 separate_heads
and multi_head, 7 projected and cross, 8 positions, 9 cached, 10 transformer. Each file shows its whole
formula on its own page. `regard stages` walks through them on one small example. A stage is the
solution of its lesson: a line that ends in `#: what it is` is one that the lesson leaves to the learner.

The stages know tensors and weights. They know nothing of text, tokenizers or models.
"""

from regard.stages.against_pytorch import check_against_pytorch
from regard.stages.cached import CachedMultiHeadAttention
from regard.stages.causal import CausalSelfAttention
from regard.stages.cross import CrossAttention
from regard.stages.head import Head
from regard.stages.masking import efficient_masking, naive_masking
from regard.stages.multi_head import MultiHeadAttention, join_heads
from regard.stages.positions import LearnedPositions, PositionalAttention, alibi_bias, rotate
from regard.stages.projected import ProjectedMultiHeadAttention
from regard.stages.scaled import SelfAttention
from regard.stages.separate_heads import SeparateHeads
from regard.stages.simplified import simplified_self_attention
from regard.stages.trainable import UnscaledSelfAttention
from regard.stages.transformer import SmallGPT, TransformerBlock

__all__ = [
    "CachedMultiHeadAttention",
    "CausalSelfAttention",
    "CrossAttention",
    "Head",
    "LearnedPositions",
    "MultiHeadAttention",
    "PositionalAttention",
    "ProjectedMultiHeadAttention",
    "SelfAttention",
    "SeparateHeads",
    "SmallGPT",
    "TransformerBlock",
    "UnscaledSelfAttention",
    "alibi_bias",
    "check_against_pytorch",
    "efficient_masking",
    "join_heads",
    "naive_masking",
    "rotate",
    "simplified_self_attention",
]
