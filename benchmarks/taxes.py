"""What reading costs beside the forward pass: head scores, surveys, statistics, masks, and short calls.

    python -m benchmarks.taxes --device cuda [--only heads statistics …] [--out taxes.json]
    python -m benchmarks.taxes --device cuda --profile
    OMP_NUM_THREADS=1 python -m benchmarks.taxes                                  on a CPU, a small Llama

On a GPU the model is a Llama of 8B's sizes with 8 layers in bfloat16, and the maps have 32 heads of 128. Both
sides of a ratio take turns within each round, and a ratio is the median over the rounds, by wall clock (CPU
time with one thread).
`--profile` prints what `seen.heads()` launches and where its time goes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.__main__ import unequal_spans
from benchmarks.calls import decoding, short_calls
from benchmarks.capture import Clock, forward, llama, small_llama
from benchmarks.contenders import DOCUMENT, by_kernel, flex, ours
from benchmarks.measure import machine

Call = Callable[[], Any]
LAYERS = 8
GPU_HEADS, GPU_WIDTH = 32, 128


def text_ids(vocabulary: int, texts: int, tokens: int, device: str) -> Tensor:
    """Tokens with the frequencies of a text (Zipf's law), so that some of them have copies."""
    generator = torch.Generator().manual_seed(0)
    ids = (vocabulary ** torch.rand(texts, tokens, generator=generator, dtype=torch.float64)).long() - 1
    return ids.to(device)


def in_turn(calls: dict[str, Call], device: str, rounds: int, seconds: float = 0.05) -> dict[str, Any]:
    """The milliseconds of each call, and its ratio to the first; short calls are repeated for `seconds`."""
    repeats = {name: max(1, int(seconds / _seconds(call, 1, device))) for name, call in calls.items()}
    times = [{n: _seconds(call, repeats[n], device) for n, call in calls.items()} for _ in range(rounds)]
    first = next(iter(calls))
    result: dict[str, Any] = {}
    for name in calls:
        result[f"{name}, ms"] = round(statistics.median(x[name] for x in times) * 1e3, 3)
        if name != first:
            ratios = sorted(x[name] / x[first] for x in times)
            result[f"{name}, ratio"] = round(statistics.median(ratios), 3)
            result[f"{name}, least and greatest"] = [round(ratios[0], 3), round(ratios[-1], 3)]
    return result


def _seconds(call: Call, repeats: int, device: str) -> float:
    with Clock(device) as clock:
        for _ in range(repeats):
            call()
    return clock.seconds / repeats


class Subject:
    """The model, made when the first row needs it."""

    def __init__(self, device: str, layers: int = LAYERS) -> None:
        self.device, self.layers, self._model = device, layers, None

    @property
    def model(self) -> nn.Module:
        if self._model is None:
            torch.manual_seed(0)
            self._model = llama(65_536, self.layers) if self.device == "cuda" else small_llama(self.layers)
        return self._model

    def ids(self, texts: int, tokens: int) -> Tensor:
        return text_ids(self.model.config.vocab_size, texts, tokens, self.device)


def heads(subject: Subject) -> dict[str, Any]:
    """`seen.heads()` after a warm-up, over the forward pass."""
    result = {}
    for tokens in (128, 1024, 16_384) if subject.device == "cuda" else (128, 1024):
        ids = subject.ids(1, tokens)
        with regard.capture(subject.model) as seen:
            forward(subject.model, ids)
        calls = {"forward": lambda ids=ids: forward(subject.model, ids), "heads": seen.heads}
        for call in calls.values():
            call()
        result[f"{tokens} tokens"] = in_turn(calls, subject.device, 3 if tokens > 4096 else 7)
    return result


def survey(subject: Subject) -> dict[str, Any]:
    """A survey of texts of 512 tokens with 8 examples, over the plain forward passes of the same batches."""
    from regard.heads.corpus_survey.survey import SurveyModel, measure_batch

    model, result = subject.model, {}

    def run(ids: Tensor) -> Any:
        with regard.capture(model) as seen:
            forward(model, ids)
        return seen.maps

    reader = SurveyModel("", run, lambda text: [], None, "", torch.device(subject.device))
    for batch in (1, 16):
        texts = max(8, batch)
        batches = subject.ids(texts, 512).split(batch)
        calls: dict[str, Call] = {
            "forwards": lambda batches=batches: [forward(model, ids) for ids in batches],
            "survey": lambda batches=batches: [measure_batch(reader, ids.cpu(), 0, 8) for ids in batches],
        }
        result[f"{texts} texts in batches of {batch}"] = in_turn(calls, subject.device, 2)
    return result


def corpus_survey(subject: Subject) -> dict[str, Any]:
    """What `regard survey` does with a corpus, over the plain forward passes of the same batches.

    The corpus is read; chunks, table and examples are written. Loading the model and its checksum, once
    a survey, are left out.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    from regard.cli.parts.model import Model
    from regard.heads.corpus_survey.survey import SurveyModel, SurveyPlan
    from regard.heads.corpus_survey.survey import survey as run
    from regard.support.processes import Processes

    cuda = subject.device == "cuda"
    windows, length, batch = (2000, 512, 16) if cuda else (32, 128, 8)
    model, device = subject.model, torch.device(subject.device)
    # A word is the number of its token.
    words = {str(n): n for n in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    opened = Model("Llama", model, tokenizer, len(words), None)
    reader = SurveyModel(opened.title, opened.maps, opened.encode, None, "", device)
    with tempfile.TemporaryDirectory() as folder:
        texts = text_ids(len(words), windows, length, "cpu").tolist()
        text, table = Path(folder, "corpus.txt"), Path(folder, "survey.csv")
        text.write_text("\n".join(" ".join(map(str, ids)) for ids in texts), encoding="utf-8")
        plan = SurveyPlan(text, length, batch, None, torch.get_num_threads(), 8)
        batches = [ids for ids, _ in plan.batches(reader)]

        def forwards() -> None:
            for ids in batches:
                forward(model, ids.to(device))

        calls: dict[str, Call] = {
            "forwards": forwards,
            "survey": lambda: run(reader, plan, table, ranks=Processes(0, 1, device), fresh=True),
            "reading the corpus": lambda: list(plan.batches(reader)),
        }
        return {f"{windows} texts in batches of {batch}": in_turn(calls, subject.device, 1)}


def statistics_store(subject: Subject) -> dict[str, Any]:
    """`capture(store="statistics")` over the plain forward pass."""
    model, result = subject.model, {}
    for tokens in (1024, 16_384, 65_536) if subject.device == "cuda" else (1024,):
        ids = subject.ids(1, tokens)

        def captured(ids: Tensor = ids) -> None:
            with regard.capture(model, store="statistics"):
                forward(model, ids)

        calls = {"forward": lambda ids=ids: forward(model, ids), "captured": captured}
        for call in calls.values():
            call()
            call()
        result[f"{tokens} tokens"] = in_turn(calls, subject.device, 3 if tokens > 16_384 else 7)
    return result


def documents(subject: Subject) -> dict[str, Any]:
    """Documents of 1,500 tokens, over compiled FlexAttention; the mask made once, and made in every call."""
    tokens, device = 16_384, subject.device
    q, k, v = _tensors(tokens)
    compiled = flex("documents", tokens, device)
    host = torch.arange(tokens)[None] // DOCUMENT
    calls: dict[str, Call] = {"flex": lambda: compiled(q, k, v)}
    for place, ids in (("device", host.to(device)), ("host", host)):
        mask = regard.causal & regard.documents(ids)
        calls[f"ids on the {place}"] = lambda mask=mask: regard.attend(q, k, v, mask=mask)
        calls[f"ids on the {place}, a mask each call"] = lambda ids=ids: regard.attend(
            q, k, v, mask=regard.causal & regard.documents(ids)
        )
    for call in calls.values():
        call()
    return in_turn(calls, device, 9)


def maps(subject: Subject) -> dict[str, Any]:
    """Overviews, statistics, both together, and unequal spans, over the fused forward pass."""
    result: dict[str, Any] = {}
    if subject.device == "cpu":
        for tokens in (4096, 1024):
            q, k, v = (torch.randn(1, 12, tokens, 64) for _ in range(3))
            m = regard.attention_map(q, k, mask=regard.causal)
            calls: dict[str, Call] = {
                "forward": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True),
                "pool(256, 256, both)": lambda m=m: m.pool(256, 256, "both"),
                "statistics": m.statistics,
                "summary(256, 256)": lambda m=m: m.summary(256, 256),
                "topk(8)": lambda m=m: m.topk(8),
            }
            for call in calls.values():
                call()
            result[f"{tokens} tokens"] = in_turn(calls, "cpu", 7, 0.2)
        return result
    for tokens in (16_384, 65_536, 131_072):
        q, k, v = _tensors(tokens)
        _, lse = regard.attend(q, k, v, mask=regard.causal, return_lse=True)
        m = regard.attention_map(q, k, mask=regard.causal, lse=lse)
        spans = unequal_spans(tokens, 1024)
        calls = {
            "forward": lambda q=q, k=k, v=v: regard.attend(q, k, v, mask=regard.causal),
            "pool(1024, 1024, both)": lambda m=m: m.pool(1024, 1024, "both"),
            "statistics": m.statistics,
            "summary(1024, 1024)": lambda m=m: m.summary(1024, 1024),
            "pool over unequal spans": lambda m=m, spans=spans: m.pool(spans, spans, "both"),
        }
        for call in calls.values():
            call()
        result[f"{tokens} tokens"] = in_turn(calls, "cuda", 5)
    return result


def decoding_steps(subject: Subject) -> dict[str, Any]:
    """One query on a cache, over PyTorch's call."""
    return {f"{keys} keys": _of_rows(decoding("cuda", keys)) for keys in (4096, 65_536)}


def short(subject: Subject) -> dict[str, Any]:
    """`attend` of 64 tokens, over PyTorch's call."""
    return _of_rows(short_calls("cuda", 64, 8, 8, 64))


def triton(subject: Subject) -> dict[str, Any]:
    """Regard's kernel forward, and with its backward pass, over cuDNN's."""
    from torch.nn.attention import SDPBackend

    q, k, v = _tensors(16_384)
    runs = {"cuDNN": by_kernel("causal", SDPBackend.CUDNN_ATTENTION), "Triton": ours("causal", 0, "triton")}
    grad = torch.randn_like(v)

    def backward(run: Any) -> Call:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]

        def call() -> None:
            with torch.enable_grad():
                torch.autograd.grad(run(*inputs), inputs, grad)

        return call

    calls = {
        "forward": {name: lambda run=run: run(q, k, v) for name, run in runs.items()},
        "with backward": {name: backward(run) for name, run in runs.items()},
    }
    result = {}
    for name, both in calls.items():
        for call in both.values():
            call()
        result[name] = in_turn(both, "cuda", 7)
    return result


def first_calls(subject: Subject) -> dict[str, Any]:
    """The first calls of a process, with an empty cache of compiled kernels and again with what is there."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRITON_CACHE_DIR": folder}
        for name in ("empty cache", "kernels in the cache"):
            command = [sys.executable, "-m", "benchmarks.taxes", "--device", subject.device, "--first"]
            output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            result[name] = json.loads(output.stdout.splitlines()[-1])
    return result


def first_of_process(subject: Subject) -> dict[str, Any]:
    """The seconds of the first calls, one after another, and the kernels that each has compiled."""
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    ids, result = subject.ids(1, 1024), {}
    forward(subject.model, ids)
    with regard.capture(subject.model) as seen:
        forward(subject.model, ids)
    calls: dict[str, Call] = {"heads()": seen.heads, "heads(), again": seen.heads}
    if subject.device == "cuda":
        q, k, v = _tensors(4096)
        m = regard.attention_map(q, k, mask=regard.causal)
        calls |= {
            "first map's overview": lambda: m.pool(256, 256, "both"),
            "statistics": m.statistics,
            "attend under a window": lambda: regard.attend(q, k, v, mask=regard.causal & regard.window(512)),
        }
    for name, call in calls.items():
        before = len(list(folder.rglob("*.cubin")))
        seconds = _seconds(call, 1, subject.device)
        kernels = len(list(folder.rglob("*.cubin"))) - before
        result[name] = {"seconds": round(seconds, 3), "kernels compiled": kernels}
    return result


def profile(subject: Subject) -> None:
    """Print how many kernels and copies `seen.heads()` launches, and what takes its time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    cuda = subject.device == "cuda"
    for tokens in (1024, 16_384) if cuda else (128, 1024):
        ids = subject.ids(1, tokens)
        with regard.capture(subject.model) as seen:
            forward(subject.model, ids)
        seen.heads()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with record(activities=activities) as recorded:
            _seconds(seen.heads, 1, subject.device)
        averages = recorded.key_averages()
        launches = {
            row.key: row.count
            for row in averages
            if row.key.startswith(("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaStreamSync"))
        }
        operations = sum(row.count for row in averages if row.key.startswith("aten::"))
        print(f"\n{tokens} tokens: {launches}, {operations} operations of aten (nested ones included)")
        for order in ("self_device_time_total", "self_cpu_time_total") if cuda else ("self_cpu_time_total",):
            print(averages.table(sort_by=order, row_limit=25, max_name_column_width=70), flush=True)


def _tensors(tokens: int) -> list[Tensor]:
    size = (1, GPU_HEADS, tokens, GPU_WIDTH)
    return [torch.randn(size, dtype=torch.bfloat16, device="cuda") for _ in range(3)]


def _of_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows of `benchmarks.calls` as milliseconds and ratios."""
    return {
        f"{row['who']} ({row['mask']})": {"ms": round(row["ms"], 4), "ratio": round(row["to_fused"], 3)}
        for row in rows
    }


ROWS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "heads": heads,
    "survey": survey,
    "corpus": corpus_survey,
    "statistics": statistics_store,
    "first": first_calls,
    "documents": documents,
    "maps": maps,
    "decoding": decoding_steps,
    "short": short,
    "triton": triton,
}
ON_CPU = ("heads", "survey", "corpus", "statistics", "maps")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), help="measure these rows only")
    parser.add_argument("--profile", action="store_true", help="print a profile of seen.heads() instead")
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    subject = Subject(args.device)
    if args.first:
        print(json.dumps(first_of_process(Subject(args.device, layers=2))))
        return
    if args.profile:
        profile(subject)
        return
    result: dict[str, Any] = {"machine": machine(args.device), "layers": LAYERS}
    for name in args.only or (ROWS if args.device == "cuda" else ON_CPU):
        start = time.perf_counter()
        try:
            result[name] = ROWS[name](subject)
        except Exception as error:  # a row that fails is a result as well, and the others are still measured
            result[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        took = round(time.perf_counter() - start, 1)
        print(f"{name}, {took} s: {json.dumps(result[name], indent=1)}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
