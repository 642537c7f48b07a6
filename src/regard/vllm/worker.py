"""`Worker`: what vLLM's workers can do in addition, by `worker_extension_cls="regard.vllm.Worker"`.

vLLM calls its methods in every worker process, through `collective_rpc`. They take and return plain numbers
and text; tensors go from the worker into files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.recorder.tokens_of_maps.tokens import decode_tokens
from regard.support.files import check_folder_writable, write_error
from regard.vllm.engine_capture import EngineCapture


class Worker:
    """The methods that vLLM's worker gets: `collective_rpc("start", args=(folder,))` and `("stop")`.

    Between the two every request is captured and certified. Before and after, vLLM runs as it is.
    """

    def start(
        self,
        folder: str,
        *,
        layers: Collection[int | str] | None = None,
        values: bool = False,
        verify: bool = False,
    ) -> dict[str, Any]:
        """Begin to capture every request; return the `layers` that are captured and those that are `missing`.

        - `folder`: gets a folder for each request, named by its id, when the request has finished.
        - `layers`: the numbers or the names of the layers to capture, by default all.
        - `values`: whether to store the values too.
        - `verify`: whether to compare every row with vLLM's output, and not 64 of each step.
        """
        worker: Any = self
        if getattr(worker, "regard_capture", None) is not None:
            raise RuntimeError('start: a capture is running: end it by collective_rpc("stop")')
        check_engine(worker.vllm_config)
        path = Path(folder).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error("folder", path, error) from None
        check_folder_writable("folder", path)
        parallel = worker.vllm_config.parallel_config
        capture = EngineCapture(
            worker.model_runner,
            attention_modules(worker.vllm_config),
            path,
            rank=worker.rank % parallel.tensor_parallel_size,
            ranks=parallel.tensor_parallel_size,
            total_kv_heads=worker.vllm_config.model_config.get_total_num_kv_heads(),
            layers=layers,
            values=values,
            verify=verify,
            model=worker.vllm_config.model_config.model,
            decode=_decoder(worker.vllm_config.model_config),
        )
        capture.attach()
        worker.regard_capture = capture
        kinds = {name: type(layer.module.impl).__name__ for name, layer in capture.watched.items()}
        return {"layers": kinds, "missing": capture.missing}

    def stop(self) -> dict[str, dict[str, Any]]:
        """End the capture; return for each request its `folder`, `tokens`, `first_row` and `certified`.

        `first_row` is the position of the first query that ran: 0, or where a cached prefix ended.
        """
        worker: Any = self
        capture = getattr(worker, "regard_capture", None)
        if capture is None:
            raise RuntimeError(
                'stop: no capture is running: begin one by collective_rpc("start", args=(folder,))'
            )
        worker.regard_capture = None
        written: dict[str, dict[str, Any]] = capture.finish()
        return written


def attention_modules(config: Any) -> dict[str, Any]:
    """The modules of a model that mix tokens, by name."""
    return {
        name: module
        for name, module in config.compilation_config.static_forward_context.items()
        # The context also holds layers that do not mix tokens, such as experts.
        if hasattr(module, "get_attn_backend")
    }


def check_engine(config: Any) -> None:
    """Raise a ValueError if an engine of this configuration cannot be captured, and say what to set."""
    parallel = config.parallel_config
    refusals = {
        "Model Runner V2, which is not supported yet: set VLLM_USE_V2_MODEL_RUNNER=0 in the environment": (
            config.use_v2_model_runner
        ),
        "full CUDA graphs, which run without Python: give "
        'LLM(…, compilation_config={"cudagraph_mode": "PIECEWISE"}) or enforce_eager=True': (
            config.compilation_config.cudagraph_mode.has_full_cudagraphs()
        ),
        "speculative decoding, which is not supported yet": config.speculative_config is not None,
        "pipeline parallelism, which is not supported yet": parallel.pipeline_parallel_size > 1,
        "decode context parallelism, which is not supported yet": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism, which is not supported yet": parallel.prefill_context_parallel_size > 1,
        "batches in several parts, which are not supported yet: leave out enable_dbo": parallel.use_ubatching,
        "fast prefill of shared caches, which is not supported yet: leave out kv_sharing_fast_prefill": (
            config.cache_config.kv_sharing_fast_prefill
        ),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise ValueError(f"start: this engine uses {refusal}")


def _decoder(config: Any) -> Callable[[Tensor], list[list[str]]] | None:
    """What turns token ids into text, unless the engine was started without a tokenizer."""
    if config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    return functools.partial(decode_tokens, cached_tokenizer_from_config(config))
