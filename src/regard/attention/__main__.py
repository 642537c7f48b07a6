"""`python -m regard.attention`: prints the attention weights of four random tokens, as a sanity check."""

from __future__ import annotations

import torch

from regard.attention.masks.named_masks import causal
from regard.attention.steps import trace


def main() -> None:
    torch.manual_seed(0)
    W_q, W_k, W_v, _ = (torch.nn.Linear(8, 8, bias=False) for _ in range(4))
    x = torch.randn(2, 4, 8)  # (B, T, D)
    with torch.no_grad():
        steps = trace(W_q(x), W_k(x), W_v(x), causal)
    print(f"x {tuple(x.shape)}  weights {tuple(steps.weights.shape)}  output {tuple(steps.output.shape)}")
    print(f"row sums {steps.weights.sum(-1).tolist()}")
    for number, weights in enumerate(steps.weights, start=1):
        print(f"weights of sequence {number}: a token sees itself and earlier tokens")
        print(weights)
    print(f"nothing above the diagonal: {torch.equal(steps.weights, steps.weights.tril())}")


if __name__ == "__main__":
    main()
