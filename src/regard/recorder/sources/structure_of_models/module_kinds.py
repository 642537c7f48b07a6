"""Says by its class and its code what kind of module this is: attention, a linear layer, a mixer of tokens.

These are plain guesses before anything runs, by which modules are watched, layers are numbered and what was
not heard is named. This file knows single modules; the parts of a whole model are in `model_parts`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from regard.gpt import GPT
from regard.layers import Attention
from regard.recorder.sources.structure_of_models.code_names import (
    ATTEND,
    called_names,
    has_graph,
    module_names,
    script_names,
)
from regard.support.torch_internals import compiled_module_class

# By name, since such layers call no function in common (RWKV, Hyena, S4, RG-LRU).
MIXERS = re.compile(
    r"attention|attn|mamba|ssm|ssd|statespace|delta(net|rule)|recurrent|rglru|lstm|gru|rnn|retention|rwkv|hyena"
    r"|shortconv|longconv|convolution|conv\dd|conv(module|block)|depthwise|dwconv|lightning|fourier|tokenmix"
    r"|mixer|s4",
    re.IGNORECASE,
)
"""Matches the names of classes that mix tokens, without the prefix of their model."""
OTHER_MIXERS = re.compile(r"conv|depthwise|fourier|hyena|recurrent|rglru|lstm|gru|rnn", re.IGNORECASE)
"""Matches those that are not attention of any kind: convolutions, Fourier transforms, recurrent layers."""
ATTENTION_KINDS = re.compile(r"att(entio)?n|mamba|ssm|ssd|delta|retention|rwkv|lightning", re.IGNORECASE)
"""Matches attention and its linear kinds, which have maps where they are captured."""
TOKENWISE = re.compile(
    r"(mlp|ffn|ff|feed_?forward|moe|experts?|router|gate|gated|norm|dropout|drop_?path|linear|identity|embeddings?"
    r"|rotary|positions?|activation|act|gelu|silu|relu|swish|tanh|intermediate|output|pooler|lm_?head|classification_?head|prediction_?head|lora)"
    r"(layer|block|module|gated)?\d*$",
    re.IGNORECASE,
)
"""Matches the ends of the names of classes that process every token on its own."""
ROUTERS = re.compile(r"moe|expert|rout|gate|norm|embed|rotary|position", re.IGNORECASE)
"""Matches the names of classes whose softmax is not over tokens, such as routers."""
FUSED = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""PyTorch's modules that leave their fused kernels if they are hooked, or run in a mode."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
SCANS = {"cumsum", "cumprod", "cummax", "logcumsumexp", "roll", "fft", "rfft", "conv1d", "flip"}
SUMS = {"exp", "logsumexp", "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce"}
"""Functions by which attention is written without a matrix product: Bahdanau's, and that of graphs."""
ATTENTION_FUNCTIONS = {
    "scaled_dot_product_attention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flex_attention",
    "memory_efficient_attention",
}
"""Functions that compute attention."""
FUSED_OPERATORS = re.compile(
    r"^_(scaled_dot_product_\w*attention\w*|\w+_multi_head_attention|transformer_encoder_layer_fwd"
    r"|(efficient|cudnn)_attention_forward|varlen_attn)$"
)
"""Matches the names of the operators under PyTorch's attention functions, which cannot be heard."""
# WavLM (Transformers) calls it in a module of its own, without `nn.MultiheadAttention`.
MULTI_HEAD = "multi_head_attention_forward"
HEARD_FUNCTIONS = frozenset(
    ("scaled_dot_product_attention", MULTI_HEAD, "ALL_ATTENTION_FUNCTIONS", "dispatch_attention_fn")
)
"""Names in the code of a module whose attention can be heard; the last is diffusers'."""
# By name, since their code has the same products as attention. A pooler is none whatever it is called, such
# as AIMv2's AttentionPoolingHead; any other class with "att" in its name is attention.
NO_LAYERS = re.compile(
    r"pool|^(?!.*att).*(rout|moe|expert|gate|gating|sampl|norm|embed|rotary|position)", re.IGNORECASE
)
"""Matches the names of classes whose softmax is not over the tokens of a text, such as routers."""
GATED_DELTA_RULE = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "chunk_kda",
    "fused_recurrent_kda",
)
"""Functions of (q, k, v, g, beta), with tensors (B, T, H, D), that compute a gated delta rule."""
MAMBA2_SCAN = ("mamba2_chunk_scan", "mamba_chunk_scan_combined")
"""Functions that compute Mamba-2's recurrence over a text."""
MAMBA2_STEP = ("mamba2_selective_state_update",)
"""Functions that compute it for one more token."""
MAMBA2_WHOLE = ("mamba2_split_conv1d_scan_combined",)
"""Functions that compute a whole layer of Mamba-2 in one kernel, where nothing can be heard."""
LINEAR_FUNCTIONS = (*GATED_DELTA_RULE, *MAMBA2_SCAN, *MAMBA2_STEP, *MAMBA2_WHOLE)
LIGHTNING_PARTS = ("qkv_proj", "act_fn", "norm", "slope_rate", "num_attention_heads", "head_dim")


def mixes_tokens(module: nn.Module, model: str = "") -> bool:
    """Whether a module itself mixes tokens, judged by its class, whose name begins with `model`."""
    if isinstance(module, CONVOLUTIONS):
        # A convolution whose stride is as long as its kernel cuts patches and does not mix them.
        return any(size > step for size, step in zip(module.kernel_size, module.stride, strict=True))
    if isinstance(module, nn.RNNBase):
        return True
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return computes_attention(script_names(module))
    if is_torchs(module) or kind.__name__ == "Conv1D":  # GPT-2's name for a linear layer
        return False
    name = kind_of(module).removeprefix(model) or kind.__name__
    computes = computes_attention(module_names(module))
    if TOKENWISE.search(name) and not (computes and not ROUTERS.search(name)):
        return False
    return bool(MIXERS.search(name)) or computes


def kind_of(module: nn.Module) -> str:
    """Return the name of a module's class, also for TorchScript."""
    return str(getattr(module, "original_name", type(module).__name__))


def is_torchs(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's, and not a graph that was made of other code."""
    return type(module).__module__.startswith("torch.") and not has_graph(module)


@functools.cache
def computes_attention(names: frozenset[str]) -> bool:
    """Whether code that uses these names calls an attention function, or both a softmax and a product."""
    if ATTENTION_FUNCTIONS & names or any(FUSED_OPERATORS.search(name) for name in names):
        return True
    return bool({"softmax", "_softmax", "exp"} & names) and bool(PRODUCTS & names)


def computes_softmax_attention(module: nn.Module) -> bool:
    """Whether the code of a module, which is not one of PyTorch's, has a softmax and a matrix product.

    Only running it shows whether that is attention. Modules that use Transformers' `AttentionInterface` are
    left out: the eager attention in their files is one of its functions.
    """
    if is_torchs(module) or not has_product(names := module_names(module)):
        return False
    return has_softmax(names) or any(isinstance(x, nn.Softmax) for x in module.children())


@functools.cache
def has_softmax(names: frozenset[str]) -> bool:
    """Whether code that uses these names names a softmax."""
    # A log_softmax is that of a loss.
    return any(name.lower().endswith("softmax") and "log" not in name for name in names)


@functools.cache
def has_product(names: frozenset[str]) -> bool:
    """Whether code that uses these names names a matrix product, and not Transformers' interface."""
    return "ALL_ATTENTION_FUNCTIONS" not in names and any("matmul" in x or x in PRODUCTS for x in names)


def attends(module: nn.Module) -> bool:
    """Whether the code of a module calls something that is listened to, or computes attention."""
    # PyTorch's module and Regard's layer are numbered by themselves.
    if isinstance(module, nn.MultiheadAttention):
        return False
    if isinstance(module, Attention) and type(module).forward is Attention.forward:
        return False
    # The module that `torch.compile` returns holds the code of the one inside, which has a name of its own.
    if isinstance(module, compiled_module_class() or ()):
        return False
    names = module_names(module)
    return not HEARD_FUNCTIONS.isdisjoint(names) or ATTEND in names or computes_softmax_attention(module)


def is_traced(module: nn.Module) -> bool:
    """Whether a module's functions are followed: those of code that nobody here knows.

    Transformers' modules call its interface, unless they compute a softmax themselves. PyTorch's hold no code
    of a model, and would leave their fused kernels.
    """
    file = type(module).__module__
    # The stages are written out as a learner writes them, and no source of their own.
    if isinstance(module, FUSED) or (file.startswith("regard.") and not file.startswith("regard.stages.")):
        return False
    return computes_softmax_attention(module) if file.startswith("transformers.") else not is_torchs(module)


def is_lightning(module: nn.Module) -> bool:
    """Whether a module is lightning attention, as MiniMax has it."""
    # By its name and its parts: its recurrence is in its own code, where no function can be intercepted.
    return "LightningAttention" in type(module).__name__ and all(
        hasattr(module, name) for name in LIGHTNING_PARTS
    )


def is_linear_layer(module: nn.Module) -> bool:
    """Whether a module is a linear layer that can be read."""
    return is_lightning(module) or not called_names(cast(Any, type(module))).isdisjoint(LINEAR_FUNCTIONS)


def is_pretrained(module: nn.Module) -> bool:
    """Whether the module is a `PreTrainedModel`, without importing Transformers."""
    return any(c.__module__ == "transformers.modeling_utils" for c in type(module).__mro__)


def keeps_order(module: nn.Module) -> bool:
    """Whether a model's code is known to keep its texts and tokens in order: Transformers' and Regard's."""
    package = type(module).__module__
    # A `PreTrainedModel` whose code comes from the Hub is nobody's known code.
    return isinstance(module, GPT) or (is_pretrained(module) and package.startswith("transformers."))


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` has compiled a module, or it compiles itself."""
    return (
        # `module.compile()` stores the compiled call under this private name, and `__call__` prefers it.
        getattr(module, "_compiled_call_impl", None) is not None
        or compiled_forward(module) is not None
        # Transformers generates with it if the cache is static.
        or hasattr(module, "get_compiled_call")
    )


def compiled_forward(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function that `module.forward = torch.compile(module.forward)` has compiled, or None."""
    if isinstance(module, compiled_module_class() or ()):
        return None
    # Private, but the only place where `torch.compile(function)` keeps the function.
    return getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
