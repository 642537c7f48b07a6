"""The right answer to a question by `regard.attention.steps`: the variant without a mistake must give it."""

import torch

import regard
from regard.attention.masks.named_masks import tensor_mask
from regard.attention.steps import trace
from regard.checker.oracle.question import Answer, answer_items


def normal(*shape):
    """Return random numbers of a shape, in float64."""
    return torch.randn(shape, dtype=torch.float64)


def answer_by_steps(question, wiring):
    if question.lengths is not None:
        return answer_items(question, lambda item: answer_by_steps(item, wiring))
    q, k, v = wiring.position(*wiring.project(question))
    T, S = q.shape[2], k.shape[2]
    mask = regard.causal if question.causal else tensor_mask(torch.ones(T, S, dtype=torch.bool))
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)  # (T, S)
    if question.window is not None:
        mask = mask & tensor_mask(distance < question.window)
    if question.ahead is not None:
        mask = mask & tensor_mask(distance >= -question.ahead)
    if question.padding is not None:
        mask = mask & tensor_mask(question.padding[:, None, None])
    for tensor in (question.mask, question.bias):
        mask = mask if tensor is None else mask & tensor_mask(tensor)
    mask = mask if question.rule is None else mask & question.rule
    sinks = wiring.sinks if question.sinks is None else question.sinks
    steps = trace(q, k, v, mask, scale=wiring.scale, softcap=question.softcap, sinks=sinks)
    empty = (steps.masked == -torch.inf).all(-1, keepdim=True)
    output, free = wiring.finish(steps.output, empty)
    return Answer(output, steps.weights, torch.logsumexp(steps.masked, -1), free)
