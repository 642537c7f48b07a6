"""What each of two ranks does in the tests of models that several processes run: it audits them.

`test_ranks` starts it as `python -m`, and reads the verdicts that it writes.
"""

import json
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import regard
from tests import ranks
from tests.auditor.small_models import PlainGPT, new_model, small_model, strengthened, tokens
from tests.sampling import share

T = 16
IDS = tokens(2, T)
DOCUMENTS = torch.tensor([[0] * 6 + [1] * 10]).expand(2, T)
RESTARTING = torch.cat([torch.arange(6), torch.arange(10)]).expand(2, T)
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def on_cpu(op, args, kwargs):
    """Run PyTorch's ring with the CPU's kernel: it has handlers for those of GPUs only (PyTorch 2.13)."""
    mesh = args[0].device_mesh
    q, k, v, *others = (x.to_local() if isinstance(x, DTensor) else x for x in args)
    dropout, is_causal = (*others, *(0.0, False)[len(others) :])
    options = {"is_causal": is_causal, "dropout_p": dropout, "scale": kwargs.get("scale")}
    run = _attention._templated_ring_attention
    return tuple(
        DTensor.from_local(x, mesh, [Shard(2)]) for x in run(mesh.get_group(), 2, FLASH, q, k, v, **options)
    )


_attention.custom_ops[FLASH] = on_cpu


def as_accelerate_did(model):
    """Drop every mask and pass is_causal, as accelerate's hooks did for windows too (accelerate#4177)."""

    def hook(_module, args, kwargs):
        return args, kwargs | {"attention_mask": None, "is_causal": True}

    handles = [
        module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        for name, module in model.named_modules()
        if name.endswith("self_attn")
    ]
    model.hooks = handles
    return model


@contextmanager
def split(batch):
    """Inside the block, a batch is spread over the ranks as PyTorch does it, head and tail."""
    whole = {name: x.clone() for name, x in batch.items() if isinstance(x, Tensor)}
    mesh = init_device_mesh("cpu", (2,))
    with context_parallel(mesh, buffers=list(whole.values()), buffer_seq_dims=[1] * len(whole)):
        yield batch | whole


def positions():
    return torch.arange(T).expand(2, T)


def torch_context_parallel(name, **more):
    """Audit a model under PyTorch's own context parallelism."""
    model = as_accelerate_did(small_model(name))
    try:
        with split({"input_ids": IDS, "position_ids": positions(), "use_cache": False}) as batch:
            return regard.audit(model, batch, group=distributed.group.WORLD, **more)
    finally:
        for handle in model.hooks:
            handle.remove()


def own_documents():
    """Return the documents of this rank's tokens, as PyTorch spreads them."""
    return DOCUMENTS[:, regard.attention.ring_positions(T, distributed.group.WORLD, order="head-tail")]


class ContextParallelGPT(PlainGPT):
    """A GPT in plain PyTorch, whose blocks call `scaled_dot_product_attention`, with positions passed in."""

    def forward(self, idx, position_ids):
        x = self.tokens(idx) + self.places(position_ids)
        for block in self.blocks:
            B, rows, D = x.shape
            q, k, v = block.qkv(x).view(B, rows, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.out(out.transpose(1, 2).reshape(B, rows, D))
            x = x + block.feed_forward(x)
        return self.head(x)


def plain_torch():
    torch.manual_seed(0)
    model = strengthened(ContextParallelGPT())
    with split({"idx": IDS, "position_ids": positions()}) as batch:
        return regard.audit(model, batch, group=distributed.group.WORLD)


def ring(order, mask, heard=True):
    """Return an attention function on a ring; if it is not heard, only its output shows what it did."""

    def attend(module, q, k, v, attention_mask, **kwargs):
        options = {"scale": kwargs.get("scaling"), "group": distributed.group.WORLD, "order": order}
        with torch.no_grad():
            if heard:
                output = regard.attend(q, k, v, mask=mask, **options)
            else:
                output = by_hand(q, k, v, mask, **options)
        return output.transpose(1, 2).contiguous(), None

    return attend


def by_hand(q, k, v, mask, scale, group, order):
    """Gather all keys and attend to them in float64, by no function that is listened to."""
    rows = regard.attention.ring_positions(T, group, order=order)
    k, v = (gathered(x).repeat_interleave(q.shape[1] // x.shape[1], 1).double() for x in (k, v))
    everywhere = [torch.empty_like(rows) for _ in range(2)]
    distributed.all_gather(everywhere, rows)
    at = torch.cat(everywhere)
    visible = mask.to_dense(T)[..., rows, :][..., at]
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k) * scale
    exps = scores.masked_fill(~visible, float("-inf")).exp()
    return torch.einsum("bhts,bhsd->bhtd", exps / exps.sum(-1, keepdim=True), v).to(q.dtype)


def part(rows, counted=None):
    """Return the batch of a rank that holds these rows of the texts."""
    counted = positions() if counted is None else counted
    return {"input_ids": IDS[:, rows], "position_ids": counted[:, rows], "use_cache": False}


def audit_with(attend, name, batch, **options):
    """Audit a model with an attention function of the ranks."""
    AttentionInterface.register("of_ranks", attend)
    AttentionMaskInterface.register("of_ranks", sdpa_mask)
    return regard.audit(small_model(name, "of_ranks"), batch, group=distributed.group.WORLD, **options)


def on_ring(name, mask, order="contiguous", packed=False, heard=True):
    """Audit a model whose attention is a ring, each rank with its own rows of a text."""
    rows = regard.attention.ring_positions(T, distributed.group.WORLD, order=order)
    batch = part(rows, RESTARTING if packed else None)
    return audit_with(ring(order, mask, heard), name, batch, rows=rows if packed else None)


def apart():
    """Audit a model that is called outside of the block that joins its ranks."""
    half = slice(T // 2 * distributed.get_rank(), T // 2 * (distributed.get_rank() + 1))
    return regard.audit(small_model("Llama"), part(half), group=distributed.group.WORLD)


def gathered(x):
    """Return the keys or values of both ranks, in their order."""
    parts = [torch.empty_like(x) for _ in range(2)]
    distributed.all_gather(parts, x.contiguous())
    return torch.cat(parts, 2)


def gathered_keys(mask):
    """Audit a model whose ranks gather all keys and pass a mask of their rows to PyTorch's attention."""
    rows = regard.attention.ring_positions(T, distributed.group.WORLD)

    def attend(module, q, k, v, attention_mask, **kwargs):
        visible = mask.to_dense(T)[..., rows, :]
        options = {"attn_mask": visible, "scale": kwargs.get("scaling"), "enable_gqa": True}
        out = scaled_dot_product_attention(q, gathered(k), gathered(v), **options)
        return out.transpose(1, 2).contiguous(), None

    return audit_with(attend, "Mistral", part(rows))


def tensor_parallel(batch, leaky_head=False):
    """Audit a Llama that Transformers splits by its own plan; with `leaky_head`, rank 1 is not causal."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    torch.manual_seed(0)
    model = strengthened(new_model("Llama"))
    if leaky_head:

        def attend(module, q, k, v, mask, scaling=None, **_):
            causal = distributed.get_rank() == 0
            out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scaling, enable_gqa=True)
            return out.transpose(1, 2).contiguous(), None

        AttentionInterface.register("leaky_head", attend)
        AttentionMaskInterface.register("leaky_head", sdpa_mask)
        model.set_attn_implementation("leaky_head")
    model = apply_tensor_parallelism(model, init_device_mesh("cpu", (2,)), dict(model.tp_plan))
    return regard.audit(model, batch)


def refusal():
    """Return what is said where nothing tells which tokens of a packed text a rank has."""
    half = regard.attention.ring_positions(T, distributed.group.WORLD)
    try:
        regard.audit(small_model("Llama"), part(half, RESTARTING), group=distributed.group.WORLD)
    except ValueError as error:
        return str(error)
    return ""


WINDOWED = regard.causal & regard.window(4)
APART = regard.causal & regard.documents(DOCUMENTS)
PACKED = {"input_ids": IDS[:1], "position_ids": RESTARTING[:1]}
EVERY = {
    "torch, Llama": lambda: torch_context_parallel("Llama"),
    "torch, Mistral (accelerate#4177)": lambda: torch_context_parallel("Mistral"),
    "torch, Gemma 3 (accelerate#4177)": lambda: torch_context_parallel("Gemma 3"),
    "torch, Llama, documents": lambda: torch_context_parallel("Llama", documents=own_documents()),
    "torch, a plain GPT": plain_torch,
    "ring, Llama": lambda: on_ring("Llama", regard.causal),
    "ring, Llama, head-tail": lambda: on_ring("Llama", regard.causal, "head-tail"),
    "ring, Mistral": lambda: on_ring("Mistral", WINDOWED),
    "ring, Mistral without a window": lambda: on_ring("Mistral", regard.causal, "head-tail"),
    "ring, packed": lambda: on_ring("Llama", APART, packed=True),
    "ring, packed, head-tail": lambda: on_ring("Llama", APART, "head-tail", packed=True),
    "ring, packed, ignored (axolotl#3608)": lambda: on_ring("Llama", regard.causal, packed=True),
    "ring, not causal": lambda: on_ring("Llama", regard.full),
    "a ring by hand": lambda: on_ring("Llama", regard.causal, heard=False),
    "a ring by hand, head-tail": lambda: on_ring("Llama", regard.causal, "head-tail", heard=False),
    "a ring by hand, packed": lambda: on_ring("Llama", APART, packed=True, heard=False),
    "a ring by hand, packed, ignored": lambda: on_ring("Llama", regard.causal, packed=True, heard=False),
    "apart": apart,
    "gathered keys": lambda: gathered_keys(WINDOWED),
    "gathered keys without a window": lambda: gathered_keys(regard.causal),
    "tensor parallel": lambda: tensor_parallel(PACKED | {"use_cache": False}),
    "tensor parallel, with a cache": lambda: tensor_parallel(PACKED | {"use_cache": True}),
    "tensor parallel, a head that sees the future": lambda: tensor_parallel(
        {"input_ids": IDS}, leaky_head=True
    ),
}
ALWAYS = (
    "ring, Mistral without a window",
    "ring, packed",
    "ring, packed, ignored (axolotl#3608)",
    "tensor parallel, a head that sees the future",
)
CASES = {name: make for name, make in EVERY.items() if name in {*ALWAYS, *share(EVERY, 3)}}


def sharded(rank):
    """Audit a batch of this rank's own, on a model whose weights are gathered in every forward pass."""
    model = small_model("Llama")
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return regard.audit(model, PACKED | {"use_cache": False} if rank == 0 else {"input_ids": IDS})


def main():
    torch.set_num_threads(1)
    small_model("Llama")  # before they meet, since it takes a while to import
    rank, folder = ranks.join_group()
    verdicts = {
        name: json.loads((audit := make()).to_json()) | {"report": str(audit)} for name, make in CASES.items()
    }
    (Path(folder) / f"verdicts-{rank}.json").write_text(json.dumps(verdicts))
    (Path(folder) / f"refusal-{rank}.txt").write_text(refusal())
    (Path(folder) / f"sharded-{rank}.json").write_text(sharded(rank).to_json())
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
