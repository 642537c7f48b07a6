"""`GPT`: tokens in, a score for every possible next token out.

Embedding, blocks, a last norm and the output matrix. This file knows how they follow each other; it leaves
reading files to `loading`, writing them to `folder`, and choosing tokens to `generation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from regard.attention.masks.base import Mask
from regard.attention.masks.named import as_mask, padding
from regard.gpt import folder, generation, loader
from regard.gpt.block import Block, make_norm
from regard.gpt.config import Config
from regard.gpt.generation import Prompt
from regard.gpt.map_hooks import watched
from regard.layers import KVCache, Rotary, WindowCache
from regard.maps import AttentionMap

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class GPT(nn.Module):
    """A decoder of the GPT-2 and Llama families, as its config says.

    >>> model = GPT(Config(vocab_size=64, context=32, layers=2, heads=4, width=16))
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 64])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: Tokenizer | None = None
        """Turns text into ids and back, if the model came with one."""
        rotary = None
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding: nn.Embedding | None = None
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.width)
        else:
            rotary = Rotary(config.head_width, base=config.rotary_base, scaling=config.rotary_scaling)
        self.blocks = nn.ModuleList(Block(config, layer, rotary) for layer in range(config.layers))
        self.norm = make_norm(config)
        self.head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self._initialise()

    def forward(
        self,
        ids: Tensor,
        *,
        real: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """The scores of every possible next token after each of ids (B, T): logits (B, T, V).

        `real`, boolean (B, S), says which of all the tokens so far, those in the cache included, are text and
        not padding; padding may stand before or after a text, and positions count from its first token.
        `mask` narrows what every layer may look at. `cache`, from `caches()`, holds the tokens of earlier
        calls, which these continue.
        """
        return self.logits(self.states(ids, real=real, mask=mask, cache=cache))

    def states(
        self,
        ids: Tensor,
        *,
        real: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """The stream after the last norm (B, T, width), of which `logits` makes scores."""
        seen = 0 if cache is None else self._seen(cache)
        self._check(ids, seen)
        first = None
        if real is not None and not bool(real.all()):
            first = self._first_real(real, ids, seen)
            mask = padding(real) if mask is None else as_mask(mask) & padding(real)
        x = self._embed(ids, seen, first)  # (B, T, width)
        if self.training and self.config.dropout:
            x = dropout(x, self.config.dropout)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask=mask, cache=None if cache is None else cache[layer])
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """Scores (…, V) of the next token, from the states (…, width)."""
        return linear(states, self.token_embedding.weight if self.head is None else self.head.weight)

    def caches(self, max_length: int | None = None) -> list[KVCache]:
        """An empty cache for every layer, for at most `max_length` tokens: as much as its window needs."""
        most = min(max_length or self.config.context, self.config.context)
        return [KVCache(most) if n is None else WindowCache(n) for n in self.config.windows]

    def maps(
        self, ids: Tensor, *, real: Tensor | None = None, mask: Mask | Tensor | None = None
    ) -> list[AttentionMap]:
        """What every layer looks at when it reads ids (B, T): a map (B, H, T, T) each, with no T×T matrix."""
        with torch.no_grad():
            with watched([block.attention for block in self._blocks()]) as looks:
                self.states(ids, real=real, mask=mask)
            return [look.map() for look in looks]

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        dtype: torch.dtype | None = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Self:
        """A trained model, ready to use: see `loader.load`."""
        return loader.load(cls, name, dtype=dtype, device=device)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the weights, the config and the tokenizer to a folder that `from_pretrained` opens."""
        folder.save(self, path)

    def generate(self, prompt: Prompt, **options: Any) -> Any:
        """The prompt continued: see `generation.generate`."""
        return generation.generate(self, prompt, **options)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Any]:
        """The continuation alone, token by token as it comes: see `generation.stream`."""
        return generation.stream(self, prompt, **options)

    @property
    def device(self) -> torch.device:
        return self.token_embedding.weight.device

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(weight.numel() for weight in self.parameters())

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _initialise(self) -> None:
        """GPT-2's: normal 0.02, and less for what is added to the stream, which every layer makes larger."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self._blocks():
            for added in (block.attention.out, block.feed_forward.down):
                nn.init.normal_(added.weight, std=0.02 * (2 * self.config.layers) ** -0.5)

    def _embed(self, ids: Tensor, seen: int, first: Tensor | None) -> Tensor:
        """The stream before the first block; a text begins at `first` (B, 1), or at 0.

        Only learned positions move with padding: rotary ones speak of distances, which stay what they were.
        """
        try:
            x: Tensor = self.token_embedding(ids)  # (B, T, width)
        except IndexError:
            raise ValueError(
                f"ids: expected tokens from 0 to {self.config.vocab_size - 1}, "
                f"got {int(ids.min())} to {int(ids.max())}"
            ) from None
        if self.position_embedding is None:
            return x
        T = ids.shape[1]
        if first is None:
            return x + self.position_embedding.weight[seen : seen + T]
        places = torch.arange(seen, seen + T, device=ids.device) - first  # (B, T)
        return x + embedding(places.clamp(min=0), self.position_embedding.weight)

    def _seen(self, cache: Sequence[KVCache]) -> int:
        if len(cache) != self.config.layers:
            raise ValueError(
                f"cache: expected {self.config.layers} caches, one a layer, got {len(cache)}: "
                "model.caches() makes them"
            )
        return cache[0].length

    def _check(self, ids: Tensor, seen: int) -> None:
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.dtype not in (torch.int32, torch.int64):
            got = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(f"ids: expected whole numbers (batch, length), got {got}")
        if seen + ids.shape[1] > self.config.context:
            before = f" after {seen} in the cache" if seen else ""
            raise ValueError(
                f"ids: expected at most context={self.config.context} tokens, got {ids.shape[1]}{before}"
            )

    def _first_real(self, real: Tensor, ids: Tensor, seen: int) -> Tensor:
        """Where each text begins, (B, 1)."""
        wanted = (len(ids), seen + ids.shape[1])
        if real.dtype != torch.bool or tuple(real.shape) != wanted:
            raise ValueError(
                f"real: expected booleans {wanted}, one for every token so far, "
                f"got {tuple(real.shape)} {real.dtype}"
            )
        return real.byte().argmax(1, keepdim=True)
