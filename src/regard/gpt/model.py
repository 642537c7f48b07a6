"""`GPT`: a decoder-only Transformer, from token ids to the logits of the next token.

Token embedding, blocks, a final norm and the output matrix. This file knows the forward pass; it leaves
reading weights to `loader`, writing them to `folder`, and choosing tokens to `generation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import as_mask, padding
from regard.attention.tensors import WHOLE_NUMBERS, check_tensor
from regard.gpt import generation
from regard.gpt.block import Block, make_norm
from regard.gpt.config import Config
from regard.gpt.files import folder, loader
from regard.gpt.generation import Prompt
from regard.layers import Attention, KVCache, Rotary, WindowCache
from regard.maps import AttentionMap, attention_map
from regard.support.override import MethodWrappers

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class GPT(nn.Module):
    """A decoder of the GPT-2 or Llama family with random weights, of the sizes and choices in `config`.

    >>> model = GPT(Config(vocab_size=64, context_length=32, num_layers=2, num_heads=4, d_model=16))
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 64])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: Tokenizer | None = None
        """Converts text to token ids and back; None if the model was loaded without a tokenizer."""
        rotary = None
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding: nn.Embedding | None = None
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        else:
            rotary = Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling)
        self.blocks = nn.ModuleList(Block(config, layer, rotary) for layer in range(config.num_layers))
        self.norm = make_norm(config)
        self.head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._initialise()

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token after each of `input_ids` (B, T).

        - `attention_mask`, (B, S), is 1 or True for tokens and 0 or False for padding, as in Transformers. It
          covers every token so far, those in the cache included. Padding may stand before or after a text;
          positions count from its first token.
        - `mask` narrows the mask of every layer, by a rule such as `regard.documents(ids)` or by a tensor.
        - `cache`, from `caches()`, holds the keys and values of earlier calls, which these tokens continue.
        """
        return self.logits(self.states(input_ids, attention_mask=attention_mask, mask=mask, cache=cache))

    def states(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """The hidden states after the final norm, (B, T, d_model).

        `input_ids`, `attention_mask`, `mask` and `cache` are those of `forward`.
        """
        past = 0 if cache is None else self._cached_length(cache)
        self._check_ids(input_ids, past)

        # Padding becomes part of the mask, and moves the first position of a text.
        first = None
        if attention_mask is not None:
            is_token = self._token_mask(attention_mask, input_ids, past)  # (B, past + T)
            if not bool(is_token.all()):
                # argmax gives the first maximum; PyTorch has none for booleans.
                first = is_token.byte().argmax(1, keepdim=True)  # (B, 1)
                mask = padding(is_token) if mask is None else as_mask(mask) & padding(is_token)

        x = self._embed(input_ids, past, first)  # (B, T, d_model)
        if self.training and self.config.dropout:
            x = dropout(x, self.config.dropout)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask=mask, cache=None if cache is None else cache[layer])
        states: Tensor = self.norm(x)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """The logits (…, V) of the next token, from hidden states (…, d_model)."""
        # Not a tied nn.Linear: two modules with one weight would save it twice, which safetensors refuses.
        return linear(states, self.token_embedding.weight if self.head is None else self.head.weight)

    def caches(self, max_length: int | None = None) -> list[KVCache]:
        """An empty cache for each layer, for at most `max_length` tokens (default `context_length`).

        A layer with a window gets a `WindowCache`, which keeps only the keys that the window reaches.
        """
        max_length = min(max_length or self.config.context_length, self.config.context_length)
        return [KVCache(max_length) if n is None else WindowCache(n) for n in self.config.windows]

    def maps(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        mask: Mask | Tensor | None = None,
    ) -> list[AttentionMap]:
        """The attention map (B, H, T, T) of each layer for `input_ids` (B, T), without storing a T×T matrix.

        `attention_mask` and `mask` are those of `forward`.
        """
        found: list[AttentionMap] = []

        def record(
            layer: Attention, attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Mask
        ) -> Tensor:
            m = attention_map(q, k, mask=mask, scale=layer.scale, softcap=layer.softcap, sinks=layer.sinks)
            found.append(m)
            return attend(q, k, v, mask)

        wrappers = MethodWrappers()
        for layer in self.attention_layers:
            # `attend` and not `forward`: its arguments are after the rotation and after the cache.
            wrappers.add(layer, "attend", partial(record, layer))
        # Maps are to be read; a graph of every layer would keep all activations.
        with torch.no_grad(), wrappers.active():
            self.states(input_ids, attention_mask=attention_mask, mask=mask)
        return found

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        dtype: torch.dtype | None = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Load a trained model, in eval mode.

        `name` is "default" (the small model in the package), "smollm2" (after `regard data smollm2`), a
        folder written by `save` or by Transformers, a `.gguf` file, or a name on the Hugging Face hub. The
        weights get `dtype`, or keep that of the files if it is None, and are put on `device`.
        """
        return loader.load(cls, name, dtype=dtype, device=device)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the weights, the config and the tokenizer to the folder `path`, for `from_pretrained`."""
        folder.save(self, path)

    def generate(self, prompt: Prompt, **options: Any) -> Any:
        """The `prompt` with its continuation; `generation.generate` describes the `options`."""
        return generation.generate(self, prompt, **options)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Any]:
        """Yield the continuation of a `prompt` as it is computed; the `options` are those of `generate`."""
        return generation.stream(self, prompt, **options)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.token_embedding.weight.device

    @property
    def num_parameters(self) -> int:
        """The number of parameters; a tied output matrix counts once."""
        return sum(weight.numel() for weight in self.parameters())

    @property
    def attention_layers(self) -> list[Attention]:
        """The attention layer of each block."""
        return [block.attention for block in self._blocks()]

    def _blocks(self) -> list[Block]:
        # ModuleList's items are typed as Module.
        return [block for block in self.blocks if isinstance(block, Block)]

    def _initialise(self) -> None:
        """GPT-2's initialisation: normal with std 0.02.

        The projections that are added to the residual stream get 0.02 / √(2 · num_layers), so that its
        variance does not grow with depth. Weights on the meta device have no values.
        """
        if self.token_embedding.weight.is_meta:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self._blocks():
            for projection in (block.attention.out, block.feed_forward.down):
                nn.init.normal_(projection.weight, std=0.02 * (2 * self.config.num_layers) ** -0.5)

    def _embed(self, input_ids: Tensor, past: int, first: Tensor | None) -> Tensor:
        """The residual stream before the first block, after `past` tokens in the cache.

        `first` (B, 1) is the index of the first token of each text, where padding precedes it. Only learned
        positions depend on it: rotary attention depends on distances, which padding does not change.
        """
        try:
            x: Tensor = self.token_embedding(input_ids)  # (B, T, d_model)
        except IndexError:
            raise ValueError(
                f"input_ids: expected tokens from 0 to {self.config.vocab_size - 1}, "
                f"got {int(input_ids.min())} to {int(input_ids.max())}"
            ) from None
        if self.position_embedding is None:
            return x
        T = input_ids.shape[1]
        if first is None:
            return x + self.position_embedding.weight[past : past + T]
        # Positions of padding would be below 0; they are seen by nobody, and the clamp keeps the lookup
        # valid.
        positions = torch.arange(past, past + T, device=input_ids.device) - first  # (B, T)
        return x + embedding(positions.clamp(min=0), self.position_embedding.weight)

    def _cached_length(self, cache: Sequence[KVCache]) -> int:
        if len(cache) != self.config.num_layers:
            raise ValueError(
                f"cache: expected {self.config.num_layers} caches, one for each layer, got {len(cache)}: "
                "model.caches() makes them"
            )
        return cache[0].length

    def _check_ids(self, input_ids: Tensor, past: int) -> None:
        # values=False: a model on the meta device gives shapes, too.
        check_tensor("input_ids", input_ids, values=False)
        if input_ids.ndim != 2 or input_ids.dtype not in (torch.int32, torch.int64):
            got = f"{tuple(input_ids.shape)} {input_ids.dtype}"
            raise ValueError(f"input_ids: expected integers (batch, length), got {got}")
        if input_ids.device != self.device:
            raise ValueError(
                f"input_ids: expected them on {self.device}, where the model is, got {input_ids.device}"
            )
        if past + input_ids.shape[1] > self.config.context_length:
            cached = f" after {past} in the cache" if past else ""
            raise ValueError(
                f"input_ids: expected at most context_length={self.config.context_length} tokens, "
                f"got {input_ids.shape[1]}{cached}"
            )

    def _token_mask(self, attention_mask: Tensor, input_ids: Tensor, past: int) -> Tensor:
        """The attention mask as booleans (B, past + T), True for tokens."""
        shape = (len(input_ids), past + input_ids.shape[1])
        check_tensor("attention_mask", attention_mask)
        if attention_mask.dtype not in (torch.bool, *WHOLE_NUMBERS) or tuple(attention_mask.shape) != shape:
            raise ValueError(
                f"attention_mask: expected booleans or integers {shape}, one for every token so far, "
                f"got {tuple(attention_mask.shape)} {attention_mask.dtype}"
            )
        return attention_mask.bool()
