"""Certified attention maps from vLLM: `LLM(…, worker_extension_cls="regard.vllm.Worker")`.

`llm.collective_rpc("start", args=(folder,))` begins a capture and `llm.collective_rpc("stop")` ends it. Each
request then is a capture in a folder of its own, which `regard.load` opens.
"""

from regard.vllm.worker import Worker

__all__ = ["Worker"]
