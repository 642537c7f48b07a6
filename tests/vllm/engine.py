"""Engines of vLLM in this process, for the tests that need one, and what they are asked.

Import this before `vllm`: the environment has to be set first.
"""

import os
from contextlib import contextmanager

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process, where faults can be planted
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

WORKER = "regard.vllm.Worker"


@contextmanager
def engine(model, **options):
    """An engine that reads prompts in chunks of 64 tokens, in float32, stopped at the end of the block."""
    defaults = {
        "skip_tokenizer_init": not (model / "tokenizer.json").exists(),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 384,
        "block_size": 32,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "worker_extension_cls": WORKER,
    }
    llm = LLM(str(model), **(defaults | options))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def prompt(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def generate(llm, prompts, tokens=6, cached=False):
    """Each prompt with the tokens that follow; `cached` says whether cached prefixes are used."""
    how = SamplingParams(
        max_tokens=tokens,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        skip_reading_prefix_cache=not cached,
    )
    outputs = llm.generate([{"prompt_token_ids": x} for x in prompts], how, use_tqdm=False)
    return [[*x, *y.outputs[0].token_ids] for x, y in zip(prompts, outputs, strict=True)]


def captured(llm, folder, prompts, tokens=6, cached=False, **options):
    """Generate under capture: the tokens, and what `stop` says of each request."""
    llm.collective_rpc("start", args=(str(folder),), kwargs=options)
    texts = generate(llm, prompts, tokens, cached)
    (written, *_) = llm.collective_rpc("stop")
    return texts, [written[name] for name in sorted(written, key=int)]
