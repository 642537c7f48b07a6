"""`BlockLayout`: keys and values are read back from a paged cache, however a backend has laid them out."""

import pytest
import torch

from regard.vllm.block_layout import BlockLayout

HEADS, WIDTH, BLOCK = 3, 8, 4


def write_rows(keys, values, cache, slots):
    """(blocks, heads, tokens, key and value)."""
    for k, v, slot in zip(keys, values, slots.tolist(), strict=True):
        cache[slot // BLOCK, :, slot % BLOCK] = torch.cat([k, v], -1)


def write_channels(keys, values, cache, slots):
    """Keys with the channel first, in pairs of channels; values below them."""
    for k, v, slot in zip(keys, values, slots.tolist(), strict=True):
        halves = cache[slot // BLOCK].view(HEADS, 2, WIDTH * BLOCK)
        halves[:, 0].view(HEADS, WIDTH // 2, BLOCK, 2)[:, :, slot % BLOCK] = k.view(HEADS, WIDTH // 2, 2)
        halves[:, 1].view(HEADS, BLOCK, WIDTH)[:, slot % BLOCK] = v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("write", "tokens_first"), [(write_rows, False), (write_rows, True), (write_channels, False)]
)
def test_tokens_are_read_back(write, tokens_first, dtype):
    cache = torch.zeros(9, HEADS, BLOCK, 2 * WIDTH, dtype=dtype)
    if tokens_first:  # the same dimensions, in another order of memory
        cache = torch.zeros(9, BLOCK, HEADS, 2 * WIDTH, dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(18, HEADS, WIDTH).to(dtype) for _ in range(2))
    blocks = torch.tensor([7, 0, 3, 8, 5, 0, 0], dtype=torch.int32)
    slots = torch.tensor([int(blocks[i // BLOCK]) * BLOCK + i % BLOCK for i in range(18)])
    before = cache.clone()
    layout = BlockLayout.learn(cache, HEADS, WIDTH, WIDTH, write)
    assert layout.size == BLOCK
    assert torch.equal(cache, before)  # it is learned from a block of its own
    write(k, v, cache, slots)
    for first, stop in ((0, 18), (5, 18), (4, 8), (17, 18)):
        read = layout.read(cache, blocks, first, stop)
        assert torch.equal(read.k, k[first:stop].transpose(0, 1))
        assert torch.equal(read.v, v[first:stop].transpose(0, 1))


def test_a_cache_that_changes_what_it_stores_is_refused():
    def quantise(keys, values, cache, slots):
        write_rows(keys // 2 * 2, values, cache, slots)

    with pytest.raises(ValueError, match="stored once and unchanged"):
        BlockLayout.learn(torch.zeros(2, HEADS, BLOCK, 2 * WIDTH), HEADS, WIDTH, WIDTH, quantise)


def test_a_block_that_does_not_fit_its_heads_is_refused():
    with pytest.raises(ValueError, match="expected blocks of keys and values of 3 heads, 7 and 8 wide"):
        BlockLayout.learn(torch.zeros(2, HEADS, BLOCK, 2 * WIDTH), HEADS, 7, WIDTH, write_rows)
