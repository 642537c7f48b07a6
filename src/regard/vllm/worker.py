"""`Worker`: what vLLM's workers can do in addition, by `worker_extension_cls="regard.vllm.Worker"`.

vLLM calls its methods in every worker process, through `collective_rpc`. They take and return plain numbers
and text; tensors go from the worker into files.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.recorder.tokens_of_maps.tokens import decode_tokens
from regard.support.files import check_folder_writable, make_folder
from regard.vllm.engine_capture import EngineCapture

VERSION = "0.32"
"""The minor version of vLLM whose workers, caches and metadata this package reads, and was tested with."""


class Worker:
    """The methods that vLLM's worker gets: `collective_rpc("start", args=(folder,))`, `collect` and `stop`.

    Between start and stop every request is captured and certified, or those only that ask for it by their
    own `extra_args={"regard": …}`: "capture", "last token" or {"spans": {name: [first, stop]}}. Before and
    after, vLLM runs as it is.
    """

    def start(
        self,
        folder: str | None = None,
        *,
        layers: Collection[int | str] | None = None,
        values: bool = False,
        verify: bool = False,
        marked_only: bool = False,
    ) -> dict[str, Any]:
        """Begin to capture requests; return the `layers` that are captured and those that are `missing`.

        - `folder`: gets a folder for each request, named by its id, when the request has finished. Without
          one nothing is captured, and requests can ask for the shares of their last token.
        - `layers`: the numbers or the names of the layers to capture, by default all.
        - `values`: whether to store the values too.
        - `verify`: whether to compare every row with vLLM's output, and not 64 of each step.
        - `marked_only`: whether to leave requests alone that do not ask for anything by their `extra_args`.
        """
        worker: Any = self
        if getattr(worker, "regard_capture", None) is not None:
            raise RuntimeError('start: a capture is running: end it by collective_rpc("stop")')
        # vLLM has imported itself in each of its workers; without one there is nothing to judge.
        check_version(getattr(sys.modules.get("vllm"), "__version__", VERSION))
        check_engine(worker.vllm_config)
        path = None if folder is None else Path(folder).absolute()
        if path is not None:
            make_folder("folder", path)
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
            marked_only=marked_only,
            model=worker.vllm_config.model_config.model,
            decode=_decoder(worker.vllm_config.model_config),
        )
        capture.attach()
        worker.regard_capture = capture
        kinds = {name: type(layer.module.impl).__name__ for name, layer in capture.watched.items()}
        return {"layers": kinds, "missing": capture.missing}

    def collect(self) -> dict[str, dict[str, Any]]:
        """Return the shares of the last token of each request that asks for them, while the engine goes on.

        For each request: the `position` of its last token, how many `rows` were compared with vLLM's output
        and whether all are `certified`, and for each of the `layers` lists by head: `sink`, the share of the
        first key; `sink_logit`, that of a sink logit; `lookback`, the lookback ratio; and the `spans`.
        """
        answers: dict[str, dict[str, Any]] = _running(self, "collect").collect()
        return answers

    def stop(self) -> dict[str, dict[str, Any]]:
        """End the capture; return for each request its `folder`, `tokens`, `first_row` and `certified`.

        `first_row` is the position of the first query that ran: 0, or where a cached prefix ended. Requests
        that ask for their last token are answered as by `collect`; a mark that makes no sense is `refused`.
        """
        worker: Any = self
        capture = _running(worker, "stop")
        worker.regard_capture = None
        written: dict[str, dict[str, Any]] = capture.finish()
        return written


def _running(worker: Any, method: str) -> EngineCapture:
    """Return the capture of a worker, or raise a RuntimeError if none is running."""
    capture: EngineCapture | None = getattr(worker, "regard_capture", None)
    if capture is None:
        raise RuntimeError(
            f'{method}: no capture is running: begin one by collective_rpc("start", args=(folder,))'
        )
    return capture


def attention_modules(config: Any) -> dict[str, Any]:
    """The modules of a model that mix tokens, by name."""
    return {
        name: module
        for name, module in config.compilation_config.static_forward_context.items()
        # The context also holds layers that do not mix tokens, such as experts.
        if hasattr(module, "get_attn_backend")
    }


def check_version(version: str) -> None:
    """Raise a ValueError if a version of vLLM was not tested: its inner names may mean something else."""
    if version.split(".")[:2] != VERSION.split("."):
        raise ValueError(
            f"start: vLLM {version} was not tested with this version of Regard, which reads the inside of "
            f'vLLM {VERSION}: pip install "vllm=={VERSION}.*"'
        )


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
