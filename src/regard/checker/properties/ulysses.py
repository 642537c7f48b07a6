import torch
import torch.distributed as dist
import torch.nn.functional as F
from my_attention import ulysses_attention  # your own


def test_ranks_agree_with_one_process():
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same on every rank
    q, k, v = torch.randn(3, 1, 4, 8, 16)
    for causal in (False, True):
        whole = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mine = ulysses_attention(*(t.chunk(n, dim=2)[rank] for t in (q, k, v)), causal=causal)
        torch.testing.assert_close(mine, whole.chunk(n, dim=2)[rank])


if __name__ == "__main__":  # torchrun --nproc-per-node 2 test_ranks.py
    dist.init_process_group("gloo")
    test_ranks_agree_with_one_process()
