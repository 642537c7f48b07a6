"""What each of two ranks does in the tests of sharded models: it runs them and captures to folders.

At the end rank 1 is killed, and rank 0 has to notice.

`test_sharded_models` starts it as `python -m`, and compares the folders with captures of one process.
"""

import json
import os
import signal

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import regard
from tests import ranks

WAITING = 600.0  # seconds that a rank waits for the other
KV_HEADS = (4, 2, 1)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]])
OTHER_IDS = torch.tensor([[2, 7, 1, 8, 2, 8, 1]])


def llama(kv_heads=2):
    """The same random model on every rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=kv_heads)
    return LlamaForCausalLM(config).eval()


def tensor_parallel(model):
    """Split a model by Transformers' own plan; a single key/value head is gathered on every rank."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    plan = dict(model.tp_plan)
    if model.config.num_key_value_heads == 1:
        for name in ("k_proj", "v_proj"):
            plan[f"model.layers.*.self_attn.{name}"] = "colwise_gather_output"
        for layer in model.model.layers:
            layer.self_attn.num_key_value_groups = 2
    return apply_tensor_parallelism(model, init_device_mesh("cpu", (2,)), plan)


def rank_number():
    return distributed.get_rank()


def capture_sharded_models(folder):
    """Capture models that are split in every way, with what else the tests look at."""
    about = {}
    for kv_heads in KV_HEADS:
        model = tensor_parallel(llama(kv_heads))
        seen = regard.capture(model, inputs={"input_ids": IDS}, folder=folder / f"tp-{kv_heads}", values=True)
        about[f"tp-{kv_heads}"] = {
            "heads": [list(layer.heads) for layer in seen.layers],
            "kv_heads": [list(layer.placement.kv_heads) for layer in seen.layers if layer.placement],
            "certified": seen.certificate.certified,
            "evidence": str(seen.certificate[0]),
            "size": int(regard.capture_size(model, IDS.shape[1], values=True)),
            "table": [[row.layer, row.head] for row in seen.heads()],
        }
    about |= {
        "edits": edited_logits(tensor_parallel(llama())),
        "swapped": swapped_outputs(),
        "refusals": refusals(),
    }
    model = tensor_parallel(llama())
    regard.capture(model, inputs={"input_ids": IDS}, folder=folder / "some", layers=[1], heads=[0, 1])
    with regard.capture(model, folder=folder / "generated"), torch.no_grad():
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    capture_pipeline(folder / "pipeline")
    capture_data_parallel(folder)
    (folder / f"about-{rank_number()}.json").write_text(json.dumps(about))


def edits(source):
    """Edits of heads that rank 1 has, and one that names heads of both ranks."""
    return [
        regard.ablate(0, 3),
        regard.block(1, [0, 2], edges=regard.rule(lambda b, h, q, k: (q - k == 1) & (h == 2))),
        regard.patch(2, 3, source=source),
    ]


def edited_logits(model):
    """The last logits of a model with heads edited, for each of the edits."""
    source = regard.capture(model, inputs={"input_ids": IDS.flip(1)}, values=True)
    logits = []
    for edit in edits(source):
        with torch.no_grad(), regard.intervene(model, edit):
            logits.append(model(IDS).logits[0, -1].tolist())
    return logits


def swapped_outputs():
    """Capture a model whose ranks exchange the outputs of their heads after the attention has run."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def swapped(*args, **kwargs):
        output = sdpa_attention_forward(*args, **kwargs)[0].contiguous()
        both = [torch.empty_like(output) for _ in range(2)]
        distributed.all_gather(both, output)
        return both[1 - rank_number()], None

    AttentionInterface.register("swapped", swapped)
    model = tensor_parallel(llama())
    model.set_attn_implementation("swapped")
    certificate = regard.capture(model, inputs={"input_ids": IDS}).certificate
    return {"certified": [evidence.certified for evidence in certificate], "sentence": str(certificate[0])}


def refusals():
    """What is said where the heads of a rank cannot be numbered, or the residual stream not be recorded."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    said = {}
    model = llama()
    names = ("q_proj", "k_proj", "v_proj")
    plan = {f"model.layers.*.self_attn.{name}": "colwise" for name in names}
    model = apply_tensor_parallelism(model, init_device_mesh("cpu", (2,)), plan)
    for (
        layer
    ) in model.model.layers:  # an output projection that is whole, and takes the first half of its inputs
        layer.self_attn.o_proj.weight = torch.nn.Parameter(layer.self_attn.o_proj.weight[:, :16].contiguous())
    try:
        regard.capture(model, inputs={"input_ids": IDS})
    except RuntimeError as error:
        said["order"] = str(error)
    try:
        regard.capture(tensor_parallel(llama()), inputs={"input_ids": IDS}, contributions=True)
    except ValueError as error:
        said["contributions"] = str(error)
    return said


def capture_pipeline(folder):
    """Capture a model whose first layers rank 0 has, and whose last layers rank 1."""
    from transformers.distributed.pipeline_parallel import apply_pipeline_parallelism

    model = apply_pipeline_parallelism(llama(), init_device_mesh("cpu", (2,)))
    regard.capture(model, inputs={"input_ids": IDS}, folder=folder, layers=[0, 2, 3])


def capture_data_parallel(folder):
    """Capture models under FSDP2, on each rank with a text of its own."""
    ids = (IDS, OTHER_IDS)[rank_number()]
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    regard.capture(model, inputs={"input_ids": ids}, folder=folder / f"fsdp-{rank_number()}")


def lose_a_rank(folder):
    """Open a capture of one model on both ranks, and kill rank 1 inside of it."""
    model = llama()
    with regard.capture(model, group=distributed.group.WORLD, folder=folder), torch.no_grad():
        model(IDS)
        if rank_number() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    llama()  # before they meet, since it takes a while to import
    _, target = ranks.join_group(WAITING)
    capture_sharded_models(target)
    distributed.barrier()
    lose_a_rank(target / "lost")
