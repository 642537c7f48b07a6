"""The teaching stages: attention built up from nothing, each file the one before it plus one idea.

simplified → trainable → causal → one head → several heads → one big projection → output projection; and
cross-attention. Each file shows softmax(Q Kᵀ / √d) V on its own page. `python -m regard.stages` walks through
all of them on one small example.

The stages know tensors and weights. They know nothing of text, tokenizers or models.
"""

from regard.stages.against_pytorch import check_against_pytorch
from regard.stages.causal import CausalSelfAttention
from regard.stages.cross import CrossAttention
from regard.stages.head import Head
from regard.stages.masking import efficient_masking, naive_masking
from regard.stages.multi_head import MultiHeadAttention, join_heads
from regard.stages.projected import ProjectedMultiHeadAttention
from regard.stages.separate_heads import SeparateHeads
from regard.stages.simplified import simplified_self_attention
from regard.stages.trainable import SelfAttention

__all__ = [
    "CausalSelfAttention",
    "CrossAttention",
    "Head",
    "MultiHeadAttention",
    "ProjectedMultiHeadAttention",
    "SelfAttention",
    "SeparateHeads",
    "check_against_pytorch",
    "efficient_masking",
    "join_heads",
    "naive_masking",
    "simplified_self_attention",
]
