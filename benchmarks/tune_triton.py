"""Finds the fastest block sizes for the Triton kernels on this GPU, beside PyTorch's kernels in the same run.

    PYTHONPATH=src python benchmarks/tune_triton.py [folder]

Every config is first checked against float64 (the ratio of its error to that of PyTorch's kernel at that
dtype) and then timed; one that fails is reported and left out. Prints a table with the best config for each
purpose, for `regard/attention/backends/triton/configs.toml`, and writes all results to the folder, by default
benchmarks/results/.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

import regard
from regard.attention.backends.problem import AttentionProblem, prepare
from regard.attention.backends.triton import configs, launch, pool
from regard.attention.backends.triton.configs import KernelConfig
from regard.attention.steps import trace

BUDGET = 330.0  # seconds; configs that are not measured by then are reported as skipped
START = time.monotonic()
HEADS = 32

FORWARD = [
    KernelConfig(128, 128, 8, 2, True),
    KernelConfig(128, 128, 8, 3, True),
    KernelConfig(128, 64, 8, 3, True),
    KernelConfig(128, 64, 8, 4, True),
    KernelConfig(128, 64, 4, 3, True),
    KernelConfig(64, 128, 4, 2, True),
    KernelConfig(64, 64, 4, 3, True),
    KernelConfig(128, 128, 8, 2),
    KernelConfig(128, 64, 8, 3),
    KernelConfig(128, 32, 8, 4, True),
]
QUERIES = [
    KernelConfig(128, 64, 8, 2, True),
    KernelConfig(128, 64, 8, 3, True),
    KernelConfig(64, 64, 4, 2, True),
    KernelConfig(64, 64, 4, 3, True),
    KernelConfig(128, 64, 8, 2),
    KernelConfig(64, 128, 4, 2, True),
]
KEYS = [
    KernelConfig(32, 128, 8, 3, True),
    KernelConfig(32, 128, 8, 2, True),
    KernelConfig(64, 128, 8, 2, True),
    KernelConfig(64, 128, 8, 2),
    KernelConfig(32, 128, 4, 2, True),
    KernelConfig(64, 64, 4, 2, True),
    KernelConfig(64, 64, 4, 2),
]
POOL = [
    KernelConfig(128, 128, 8, 2, True),
    KernelConfig(128, 64, 4, 2, True),
    KernelConfig(128, 64, 4, 3, True),
    KernelConfig(128, 64, 8, 2, True),
    KernelConfig(128, 64, 8, 3, True),
    KernelConfig(128, 128, 4, 2, True),
    KernelConfig(128, 128, 8, 3, True),
    KernelConfig(256, 64, 8, 2, True),
    KernelConfig(64, 128, 4, 2, True),
    KernelConfig(256, 128, 8, 2, True),
    KernelConfig(128, 128, 8, 2),
]
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ROWS: list[dict[str, Any]] = []
LOOKUP = configs.choose


def main() -> None:
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    try:
        tune_pool()
        for D in (128, 64):
            tune_forward(D)
        tune_backward(128)
        tune_float32()
        time_masks()
        tune_backward(64)
    finally:
        report()


def tune_pool() -> None:
    """The overview, 1,024 × 1,024 bins: of 16 × 16 entries and of 128 × 128."""
    purpose = "pool 128"
    for T, rep in ((16_384, 60), (131_072, 800)):  # milliseconds
        q, k, v = heads(T, 128)
        for name in ("cudnn", "flash"):
            record(f"forward {T}", name, None, sdpa(name, q, k, v, True), flops(T, 128, True), rep=rep)
        lse = launch.forward(prepare(q, k, v, mask=regard.causal))[1]
        for config in POOL:
            with use_config(config):

                def go(q: Tensor = q, k: Tensor = k, lse: Tensor = lse) -> object:
                    return pool.pool(launch.KernelMap(q, k, lse, regard.causal, 128**-0.5, None), 1024, 1024)

                check = check_pool if T == 16_384 else None
                record(f"{purpose} {T}", "triton", config, go, flops(T, 128, True) / 2, check, rep)
        if T == 16_384:
            record(f"forward {T}", "eager", None, lambda q=q, k=k, v=v: eager(q, k, v), flops(T, 128, True))


def tune_forward(D: int) -> None:
    for T in (4096, 16_384):
        for causal in (True, False):
            q, k, v = heads(T, D)
            mask = regard.causal if causal else None
            purpose = f"forward {D} {'causal' if causal else 'full'} {T}"
            for name in BACKENDS if T == 16_384 else ("cudnn", "flash"):
                record(purpose, name, None, sdpa(name, q, k, v, causal), flops(T, D, causal))
            tried = FORWARD if causal else best_configs(f"forward {D} causal 4096", 3)
            for config in tried if T == 4096 else best_configs(f"forward {D} causal 4096", 4):
                with use_config(config):
                    problem = prepare(q, k, v, mask=mask)
                    check = (lambda D=D: check_forward(D)) if causal and T == 4096 else None
                    go = lambda p=problem: launch.forward(p)  # noqa: E731
                    record(purpose, "triton", config, go, flops(T, D, causal), check)


def tune_backward(D: int) -> None:
    for T, few in ((4096, False), (16_384, True)):
        q, k, v = heads(T, D)
        problem, grad = prepare(q, k, v, mask=regard.causal), torch.randn_like(v)
        output, _, top, log_total = launch.forward(problem, for_backward=True)
        kept = (output, top, log_total)

        def go(
            problem: AttentionProblem = problem, kept: tuple[Tensor, ...] = kept, g: Tensor = grad
        ) -> object:
            return launch.backward(problem, *kept, g)

        work = 2.5 * flops(T, D, True)
        for name in ("cudnn", "flash"):
            record(f"backward {D} {T}", name, None, sdpa_backward(name, q, k, v, grad), work)
        # One of the two kernels is varied while the other keeps its config.
        for purpose, tried in (("queries", QUERIES), ("keys", KEYS)):
            name = f"backward {purpose} {D}"
            for config in best_configs(f"{name} 4096", 2) if few else tried:
                with use_config(config, purpose):
                    check = None if few else lambda D=D: check_backward(D)
                    record(f"{name} {T}", "triton", config, go, work, check)


def tune_float32() -> None:
    """The error and the cost of each precision of float32 products, beside PyTorch's kernel."""
    for D in (64, 128):
        q, k, v = heads(4096, D, torch.float32)
        record(f"float32 {D}", "efficient", None, sdpa("efficient", q, k, v, True), flops(4096, D, True))
        usual = configs.PRECISION
        for precision in ("tf32x3", "ieee"):
            configs.PRECISION = precision
            problem = prepare(q, k, v, mask=regard.causal)
            check = lambda D=D: check_forward(D, torch.float32)  # noqa: E731
            record(
                f"float32 {D}",
                precision,
                None,
                lambda p=problem: launch.forward(p),
                flops(4096, D, True),
                check,
            )
        configs.PRECISION = usual


def time_masks() -> None:
    """Masks that PyTorch's kernels lack, at 16,384 tokens, and the time of making their block lists."""
    T = 16_384
    q, k, v = heads(T, 128)
    ids = torch.arange(T, device="cuda") // 3000
    for name, mask in {
        "window 1024": regard.causal & regard.window(1024),
        "softcap": regard.causal,
        "prefix": regard.causal | regard.prefix(1000),
        "documents": regard.causal & regard.documents(ids),
    }.items():
        problem = prepare(q, k, v, mask=mask, softcap=30.0 if name == "softcap" else None)
        record(f"mask {name}", "triton", None, lambda p=problem: launch.forward(p), flops(T, 128, True))
        record(
            f"mask {name}",
            "lists alone",
            None,
            lambda m=problem.mask: launch.visible_blocks(m, (1, HEADS, T, T), 128, 64, q.device).by_row(),
            flops(T, 128, True),
        )


def record(
    purpose: str,
    what: str,
    config: KernelConfig | None,
    go: Callable[[], object],
    work: float,
    check: Callable[[], float] | None = None,
    rep: int = 60,
) -> None:
    """Check and time one config, and append the row to `ROWS`; an error is recorded in the row."""
    row: dict[str, Any] = {
        "purpose": purpose,
        "what": what,
        "config": None if config is None else tuple(config),
    }
    if time.monotonic() - START > BUDGET:
        row["failed"] = "skipped: out of time"
    else:
        try:
            if check is not None:
                row["error_ratio"] = check()
                if not row["error_ratio"] < 4:
                    raise ArithmeticError(f"error {row['error_ratio']:.1f} times PyTorch's")
            row["ms"] = do_bench(go, warmup=10, rep=rep, return_mode="median")
            row["tflops"] = work / row["ms"] / 1e9
        except Exception as problem:
            row["failed"] = f"{type(problem).__name__}: {problem}"[:160].replace("\n", " ")
            torch.cuda.synchronize()
    ROWS.append(row)
    print(f"{time.monotonic() - START:5.0f} s  {line(row)}", flush=True)


def check_forward(D: int, dtype: torch.dtype = torch.bfloat16) -> float:
    q, k, v = small(D, dtype)
    output, lse = launch.forward(prepare(q, k, v, mask=regard.causal))[:2]
    steps = trace(q.double(), k.double(), v.double(), regard.causal)
    lse_gap = (lse - torch.logsumexp(steps.masked, -1)).abs().max().item()
    if not lse_gap < 1e-3:
        raise ArithmeticError(f"lse off by {lse_gap:.1e}")
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return distance(output, steps.output) / distance(theirs, steps.output)


def check_backward(D: int) -> float:
    inputs = small(D)
    grad = torch.randn_like(inputs[2])
    problem = prepare(*inputs, mask=regard.causal)
    output, _, top, log_total = launch.forward(problem, for_backward=True)
    ours = launch.backward(problem, output, top, log_total, grad)[:3]
    twice = []
    for dtype in (torch.float64, inputs[0].dtype):
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in inputs)
        if dtype == torch.float64:
            output = trace(q, k, v, regard.causal).output
        else:
            output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        twice.append(torch.autograd.grad(output, (q, k, v), grad.to(dtype)))
    truth, theirs = twice
    return max(distance(a, t) / distance(b, t) for a, b, t in zip(ours, theirs, truth, strict=True))


def check_pool() -> float:
    q, k, v = small(128)
    steps = trace(q.double(), k.double(), v.double(), regard.causal)
    lse = torch.logsumexp(steps.masked, -1).float()
    eager_weights = torch.softmax(
        torch.where(regard.causal_mask(q.shape[2]).cuda(), (q @ k.mT).float() * 128**-0.5, -torch.inf), -1
    )
    worst = 0.0
    for rows, cols in ((65, 65), (q.shape[2] // 128, 13), (7, 100)):
        ours = pool.pool(launch.KernelMap(q, k, lse, regard.causal, 128**-0.5, None), rows, cols)
        truth, theirs = (binned(w, rows, cols) for w in (steps.weights, eager_weights.double()))
        gaps = [distance(a, t) / distance(b, t) for a, b, t in zip(ours, theirs, truth, strict=True)]
        worst = max(worst, *gaps)
    return worst


def binned(weights: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    T, S = weights.shape[-2:]
    bands = [weights[..., i * T // rows : (i + 1) * T // rows, :] for i in range(rows)]
    edges = [slice(j * S // cols, (j + 1) * S // cols) for j in range(cols)]
    mean, most = torch.stack([b.mean(-2) for b in bands], -2), torch.stack([b.amax(-2) for b in bands], -2)
    mass = torch.stack([mean[..., edge].sum(-1) for edge in edges], -1)
    return mass, torch.stack([most[..., edge].amax(-1) for edge in edges], -1)


def heads(T: int, D: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(1, HEADS, T, D, dtype=dtype, device="cuda") for _ in range(3)]


def small(D: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Inputs that end inside a block, with as many heads as are timed, so that nothing compiles twice."""
    return [torch.randn(1, HEADS, 1040, D, dtype=dtype, device="cuda") for _ in range(3)]


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    scores.masked_fill_(
        torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda").triu(1), -torch.inf
    )
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def sdpa(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], object]:
    def go() -> object:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return go


def sdpa_backward(name: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(BACKENDS[name]):
        output = F.scaled_dot_product_attention(*leaves, is_causal=True)
    return lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True)


@contextmanager
def use_config(config: KernelConfig, only: str | None = None) -> Iterator[None]:
    """Use a config for every purpose inside the block, or for the purpose `only`."""

    def choose(purpose: str, width: int, dtype: torch.dtype) -> KernelConfig:
        return config if only in (None, purpose) else LOOKUP(purpose, width, dtype)

    configs.choose = choose
    try:
        yield
    finally:
        configs.choose = LOOKUP


def flops(T: int, D: int, causal: bool) -> float:
    return 4.0 * HEADS * T * T * D / (2 if causal else 1)


def distance(x: Tensor, truth: Tensor) -> float:
    return ((x.double() - truth).norm() / truth.norm()).item()


def best_configs(purpose: str, n: int) -> list[KernelConfig]:
    timed = [r for r in ROWS if r["purpose"] == purpose and r["config"] and "ms" in r]
    return [KernelConfig(*r["config"]) for r in sorted(timed, key=lambda r: r["ms"])[:n]]


def line(row: dict[str, Any]) -> str:
    head = f"{row['purpose']:<26} {row['what']:<10} {row['config'] or ''!s:<34}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    ratio = f"  error ×{row['error_ratio']:.2f}" if "error_ratio" in row else ""
    return f"{head} {row['ms']:9.3f} ms {row['tflops']:7.1f} TFLOP/s{ratio}"


def report() -> None:
    """Print the best config of each purpose, and write all rows to a file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    (folder / "tune.json").write_text(json.dumps({"machine": machine, "rows": ROWS}, indent=1))
    print(f"\n{len(ROWS)} figures, {sum('failed' in r for r in ROWS)} failed; best of each purpose:")
    for purpose in dict.fromkeys(r["purpose"] for r in ROWS):
        timed = [r for r in ROWS if r["purpose"] == purpose and "ms" in r]
        for what in dict.fromkeys(r["what"] for r in timed):
            print(line(min((r for r in timed if r["what"] == what), key=lambda r: r["ms"])))
    print(f"{time.monotonic() - START:.0f} s in all")


if __name__ == "__main__":
    main()
