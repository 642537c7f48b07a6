"""What a sparse model's own selection drops: a small model of DeepSeek-V3.2's kind, layer by layer.

    python -m benchmarks.sparse_selection [--tokens 512] [--selected 64] [--out sparse.json]

The model is Transformers' DeepseekV32ForCausalLM with random weights, whose indexer selects the keys that a
query reads. Printed are the means over the queries that see more keys than are selected: the attention that
the selection drops of causal attention to the same keys, the same for as many random keys and for the keys
with the largest weights, and the change of the heads' outputs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers

import regard
from benchmarks.measure import machine
from regard import policies
from regard.policies.retention import head_means

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 3,
    "mlp_layer_types": ["dense"] * 3,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 32,
}


@torch.no_grad()
def measure(tokens: int, selected: int) -> list[dict[str, Any]]:
    """The means of every layer over its heads."""
    torch.manual_seed(0)
    config = transformers.DeepseekV32Config(**SIZES, index_topk=selected)
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "norm" not in name:
            parameter.normal_(std=0.3)
    ids = torch.randint(0, SIZES["vocab_size"], (1, tokens))  # type: ignore[call-overload]
    seen = regard.capture(model, inputs={"input_ids": ids}, values=True)
    assert seen.certificate.certified, str(seen.certificate)
    own, rows = seen.retained("own"), []
    for layer, left in zip(seen.layers, own.layers, strict=True):
        dense = regard.attention_map(layer.map.q, layer.map.k, mask=regard.causal, scale=layer.map.scale)
        share, error = (sum(x) / len(x) for x in zip(*head_means(left), strict=True))
        dropped = {"selection": 1 - share}
        for policy in (policies.random(), policies.best()):
            shares = [x for x, _ in head_means(policies.measure(dense, None, policy, selected))]
            dropped[policy.name] = 1 - sum(shares) / len(shares)
        rows.append({"layer": layer.key, "dropped": dropped, "change of the output": error})
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--selected", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options.tokens, options.selected)
    about = machine("cpu") | {"transformers": transformers.__version__}
    result = {"machine": about, "tokens": options.tokens, "selected": options.selected, "layers": rows}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
