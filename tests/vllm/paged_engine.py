"""A small engine with a paged cache, built like vLLM's worker as far as a capture looks at it.

Its attention is plain PyTorch in float64 on keys and values that it keeps beside the cache, so that what is
read from the cache is compared with something else. Its classes bear the names of vLLM's.
"""

import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

HEADS, KV_HEADS, WIDTH, BLOCK = 4, 2, 8, 4


class PagedImplementation:
    """Attention on a cache of blocks (blocks, KV heads, BLOCK, 2 · WIDTH).

    With `packed`, keys lie in a block with the channel first, as in the cache of vLLM's CPU backend.
    """

    kv_cache_dtype = "auto"
    alibi_slopes = None

    def __init__(self, scale=0.4, window=None, softcap=0.0, sinks=None, packed=False):
        self.scale, self.logits_soft_cap, self.sinks, self.packed = scale, softcap, sinks, packed
        self.sliding_window = (-1, -1) if window is None else (window - 1, 0)
        self.texts = []  # of this step's requests: keys and values (S, KV_HEADS, WIDTH)

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        for k, v, slot in zip(key, value, slots.tolist(), strict=True):
            block, row = cache[slot // BLOCK], slot % BLOCK
            if self.packed:
                halves = block.view(KV_HEADS, 2, WIDTH * BLOCK)
                halves[:, 0].view(KV_HEADS, WIDTH, BLOCK)[:, :, row] = k
                halves[:, 1].view(KV_HEADS, BLOCK, WIDTH)[:, row] = v
            else:
                block[:, row] = torch.cat([k, v], -1)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None):
        """Write the output of a step's rows into `output`."""
        if attn_metadata is None:
            return output
        left, starts = self.sliding_window[0], attn_metadata.query_start_loc
        for i, (keys, values) in enumerate(self.texts):
            q = query[starts[i] : starts[i + 1]].double().transpose(0, 1)
            k, v = (
                x.double().transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0) for x in (keys, values)
            )
            scores = q @ k.mT * self.scale
            if self.logits_soft_cap:
                scores = self.logits_soft_cap * torch.tanh(scores / self.logits_soft_cap)
            at = torch.arange(len(keys) - q.shape[1], len(keys))[:, None] - torch.arange(len(keys))
            hidden = (at < 0) | (at > left if left >= 0 else torch.zeros_like(at, dtype=torch.bool))
            scores = scores.masked_fill(hidden, -torch.inf)
            if self.sinks is not None:
                logits = self.sinks.double()[:, None, None].expand(-1, q.shape[1], 1)
                scores = torch.cat([scores, logits], -1)
            weights = scores.softmax(-1)[..., : len(keys)]
            output[starts[i] : starts[i + 1]] = (weights @ v).transpose(0, 1).to(output.dtype)
        return output


class FlashAttentionImpl(PagedImplementation):
    """By its name one that a capture knows."""


class CPUAttentionBackendImpl(PagedImplementation):
    """By its name another one that a capture knows."""


class Attention(nn.Module):
    """An attention layer, by its name one of vLLM's."""

    num_heads, num_kv_heads, head_size, head_size_v = HEADS, KV_HEADS, WIDTH, WIDTH
    attn_type = "decoder"

    def __init__(self, impl):
        super().__init__()
        self.impl = impl


class MetadataBuilder:
    """Builds the metadata of a group of layers."""

    supports_update_block_table = True

    def build(self, common_prefix_len, common_attn_metadata):
        return SimpleNamespace(query_start_loc=common_attn_metadata.query_start_loc_cpu.tolist())

    def update_block_table(self, metadata, blk_table, slot_mapping):
        return copy.copy(metadata)


@dataclass
class Text:
    """A request: its tokens, and the queries, keys and values (tokens, heads, WIDTH) of each layer."""

    ids: list[int]
    prompt_token_ids: list[int]
    tensors: dict[str, tuple[Tensor, Tensor, Tensor]]
    blocks: list[int] = field(default_factory=list)
    sampling_params: Any = None

    @property
    def num_prompt_tokens(self):
        return len(self.prompt_token_ids)


class PagedEngine:
    """An engine with attention layers and requests, of which each step computes some positions.

    The layers are in two groups that share their blocks' numbers, the second with the table of the first.
    """

    def __init__(self, *implementations, blocks=64):
        self.modules = {
            f"model.layers.{i}.self_attn.attn": Attention(impl) for i, impl in enumerate(implementations)
        }
        self.is_causal = True
        self.output_scale = None
        self.builders = [MetadataBuilder(), MetadataBuilder()]
        self.caches = {name: torch.zeros(blocks, KV_HEADS, BLOCK, 2 * WIDTH) for name in self.modules}
        self.free = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self.runner = SimpleNamespace(
            requests={},
            input_batch=SimpleNamespace(req_ids=[]),
            input_ids=SimpleNamespace(gpu=torch.zeros(0, dtype=torch.long)),
            attn_groups=[[SimpleNamespace(metadata_builders=[builder])] for builder in self.builders],
        )

    def add(self, request_id, prompt, length, seed=0):
        """Add a request of random tokens, with blocks for all of them."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 100, (length,), generator=generator).tolist()
        tensors = {
            name: tuple(
                torch.randn(length, heads, WIDTH, generator=generator)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            for name in self.modules
        }
        text = Text(ids, ids[:prompt], tensors, [self.free.pop() for _ in range(-(-length // BLOCK))])
        self.runner.requests[request_id] = text
        return text

    def step(self, *parts):
        """Compute positions of requests, each (request, first, stop); return every layer's output."""
        texts = [(self.runner.requests[request], first, stop) for request, first, stop in parts]
        starts = torch.tensor([0, *(stop - first for _, first, stop in texts)]).cumsum(0)
        self.runner.input_batch.req_ids = [request for request, _, _ in parts]
        self.runner.input_ids.gpu = torch.tensor(
            [x for text, first, stop in texts for x in text.ids[first:stop]]
        )
        width = max(len(text.blocks) for text, _, _ in texts)
        table = torch.tensor([text.blocks + [0] * (width - len(text.blocks)) for text, _, _ in texts])
        common = SimpleNamespace(
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([stop for _, _, stop in texts]),
            block_table_tensor=table,
            causal=self.is_causal,
        )
        metadata = self.builders[0].build(0, common)
        metadata = [metadata, self.builders[1].update_block_table(metadata, table, table)]
        outputs = {}
        for i, (name, module) in enumerate(self.modules.items()):
            for text, first, stop in texts:
                slots = torch.tensor(
                    [text.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, stop)]
                )
                _, k, v = text.tensors[name]
                module.impl.do_kv_cache_update(module, k[first:stop], v[first:stop], self.caches[name], slots)
            module.impl.texts = [
                (t.tensors[name][1][:stop], t.tensors[name][2][:stop]) for t, _, stop in texts
            ]
            q = torch.cat([text.tensors[name][0][first:stop] for text, first, stop in texts])
            outputs[name] = torch.zeros_like(q)
            module.impl.forward(
                module,
                q,
                None,
                None,
                self.caches[name],
                metadata[i % 2],
                output=outputs[name],
                output_scale=self.output_scale,
            )
        return outputs

    def end(self, request_id):
        """Finish a request, and let others have its blocks."""
        text = self.runner.requests.pop(request_id)
        self.free += text.blocks


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def two_layers():
    """An engine with two layers: one plain, one with everything."""
    everything = FlashAttentionImpl(scale=0.7, window=6, softcap=2.0, sinks=SINKS, packed=True)
    return PagedEngine(FlashAttentionImpl(), everything)
