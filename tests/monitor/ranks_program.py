"""Two data-parallel ranks, each with half of a batch, and a monitor on both; rank 0 also reads the whole."""

from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from tests import ranks
from tests.auditor.small_models import GROUPED, tokens


def main():
    import torch

    rank, folder = ranks.join_group()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED)).train()
    file = folder / f"rank-{rank}.jsonl"
    file.touch()
    parallel = DistributedDataParallel(model)
    batch = tokens(4, 12)
    with regard.Monitor(parallel, every=1, rows=5, file=file, quiet=True) as monitor:
        for _ in range(2):
            parallel(input_ids=batch[2 * rank : 2 * rank + 2], labels=batch[:2]).loss.backward()
            monitor.step()
    if rank == 0:
        with regard.Monitor(model, every=1, rows=5, file=folder / "alone.jsonl", quiet=True) as monitor:
            for _ in range(2):
                model(input_ids=batch)
                monitor.step()


if __name__ == "__main__":
    main()
