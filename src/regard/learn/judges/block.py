"""Lesson 10: the parts of a GPT are compared with what they should compute, then the model is trained.

A mistake is named by computing what it gives from the learner's own parts, with random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.learn.judges.common.first_run import describe_answer
from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw, input_generator
from regard.learn.judges.common.relations import TOLERANCE, is_equal, largest_difference
from regard.learn.judges.common.verdicts import (
    check_attention,
    edited_variants,
    is_right,
    named_mistake,
    reject_variants,
)
from regard.learn.judges.own_projections import causal_weights
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.learn.sentences import LENGTH, WORDS, draw_sentences, entropy, ids_of, loss_without_attention
from regard.learn.wrong_ways import MODEL_MISTAKES, define

BOUND = 0.72  # four fifths of the way from the best loss without attention, 0.921, to the entropy, 0.668
STEPS, BATCH, EVERY, LEARNING_RATE = 600, 32, 25, 3e-3
LEAK_STEPS = 150  # that show how low the loss falls if the model sees its answers
D_MODEL, HEADS, LAYERS = 32, 4, 2
TEXT = ". mia found the lamp near the river today and she took the lamp from the river home ."
SENTENCE = TEXT.split()
LOOKS_BACK = {"and → she": (9, 1), "the → lamp": (12, 4), "the → river": (15, 7)}
"""Queries of SENTENCE whose next word is known from an earlier one: the places of both."""
SIZES = {"vocab_size": 43, "max_seq_len": 20, "d_model": D_MODEL, "num_heads": HEADS, "num_layers": LAYERS}
MLP = "self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))"
PARTS = {
    "attention_norm": "self.attention_norm = nn.LayerNorm(d_model)",
    "attention": "self.attention = MultiHeadAttention(d_model, num_heads)",
    "mlp_norm": "self.mlp_norm = nn.LayerNorm(d_model)",
    "mlp": MLP,
}
BOTH = "x = x + self.attention(self.attention_norm(x)), then x = x + self.mlp(self.mlp_norm(x))"


def judge_attention(attention_class: Any, module: ModuleType) -> Outcome:
    """Let the checker judge the attention."""
    return check_attention(
        "MultiHeadAttention",
        attention_class,
        "causal attention of several heads.",
        causal=True,
        init={"d_model": 16, "num_heads": 2},
    )


def judge_block(block_class: Any, module: ModuleType) -> Outcome:
    """Compare the block with what its own parts should give, and with what each mistake gives."""
    name = "TransformerBlock"
    torch.manual_seed(0)
    block = block_class(16, 2)
    missing = [part for part in PARTS if not hasattr(block, part)]
    if missing:
        said = f"the block has no `{missing[0]}`: keep the names of the lesson's file"
        raise NotDoneError(said, hint=f"in __init__: {PARTS[missing[0]]}")
    _randomise(block)
    x = 2 * torch.randn(2, 5, 16)
    with torch.no_grad():
        _judge_mlp(block.mlp)
        out = block(x)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            raise NotDoneError(
                f"expected one tensor {tuple(x.shape)}, the same as x, got {describe_answer(out)}"
            )
        right = define("block", name)
        if is_equal(out, right.forward(block, x)):
            return Outcome(name, "done", "attention and MLP read the stream normalised, and add to it.")
        # The edited forward pass runs with the parts of the learner's block.
        variants = edited_variants("block", name, lambda edited: edited.forward(block, x))
        reject_variants(out, variants)
    raise NotDoneError(
        "the output is not x plus attention of the normalised x, plus the MLP of that, normalised", hint=BOTH
    )


def _randomise(module: nn.Module) -> None:
    """Give every parameter other numbers, so that no two parts agree by their initial values."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def _judge_mlp(mlp: nn.Module) -> None:
    a, b = torch.randn(2, 3, 16)
    try:
        fits = mlp(a).shape == a.shape
    except (RuntimeError, TypeError):
        fits = False
    if not fits:
        said = "the MLP does not lead from d_model numbers to d_model numbers: its widths do not fit"
        raise NotDoneError(said, hint=MODEL_MISTAKES["mlp-without-activation"].fix)
    bend = mlp(a + b) - mlp(a) - mlp(b) + mlp(torch.zeros_like(a))  # 0 if it is linear
    if bend.abs().max() < TOLERANCE:
        raise named_mistake("mlp-without-activation")
    if _has_softmax(mlp, a):
        raise named_mistake("softmax-as-activation")
    # GELU, ReLU and their like give hardly anything below 0; the last linear layer gives both signs alike.
    if mlp(torch.cat([a, b])).min() > -0.3:
        said = "the MLP ends with its activation, so that it can hardly take anything away from the stream"
        raise NotDoneError(said, hint=MLP)


def _has_softmax(mlp: nn.Module, x: Tensor) -> bool:
    """Whether what a linear layer of the MLP gets sums to 1, along whichever axis."""
    read: list[Tensor] = []
    layers = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0])) for layer in layers]
    mlp(x)
    for hook in hooks:
        hook.remove()
    sums = [hidden.sum(axis) for hidden in read for axis in range(hidden.ndim)]
    return any(is_equal(each, torch.ones_like(each)) for each in sums)


def judge_model(model_class: Any, module: ModuleType, tell: Callable[[str], None]) -> Outcome:
    """Look at the model's parts, then train it until its loss is below the bound."""
    name = "SmallGPT"
    if not is_right(judge_block, module.TransformerBlock, module):
        raise NotDoneError("it is trained once TransformerBlock is right", status="unfinished")
    torch.manual_seed(0)
    model = model_class(len(WORDS), LENGTH, D_MODEL, HEADS, LAYERS)
    _judge_stack(model, module)
    _judge_logits(model)
    if _leaks(model):
        loss = train(model, LEAK_STEPS, 0.0, tell)
        said = (
            f"A logit changes with a token that comes later. In training the loss fell to {loss:.2f}, below "
            f"the {entropy():.2f} that is possible: too good is a sign of a leak."
        )
        raise named_mistake("no-mask", said)
    before = map_of_each_head(model)
    loss = train(model, STEPS, BOUND, tell)
    if loss > BOUND:
        raise NotDoneError(
            f"after {STEPS} steps the loss is {loss:.3f}, which is not below {BOUND}; {entropy():.3f} is "
            f"possible, and {loss_without_attention():.3f} without looking back",
            hint="does every block get the output of the one before, and is the last one's output used?",
        )
    return _trained(name, loss, before, map_of_each_head(model))


def _judge_stack(model: nn.Module, module: ModuleType) -> None:
    blocks = [part for part in model.modules() if isinstance(part, module.TransformerBlock)]
    if len(blocks) == LAYERS:
        return
    if not blocks and getattr(model, "blocks", None):
        raise named_mistake("plain-list", "The optimizer does not see the weights of your blocks.")
    if len(blocks) == 1:
        raise named_mistake("one-block-for-all")
    raise NotDoneError(f"expected {LAYERS} blocks for num_layers={LAYERS}, got {len(blocks)}")


def _judge_logits(model: Any) -> None:
    with torch.no_grad():
        ids = draw_sentences(2, torch.Generator().manual_seed(0))
        logits = model(ids)
        expected = (*ids.shape, len(WORDS))
        if not isinstance(logits, Tensor) or logits.shape != expected:
            raise NotDoneError(f"expected the logits {expected}, got {describe_answer(logits)}")
        same = model(torch.ones(1, 6, dtype=torch.long))[0]
        # A row of equal tokens: without positions every place has the same logits.
        if is_equal(same, same[:1].expand_as(same)):
            raise named_mistake("positions-missing")
        for number in range(LAYERS):
            other = deepcopy(model)
            _randomise(other.blocks[number])
            # Exactly 0: a block whose output is used changes the logits by some amount, however small.
            if largest_difference(other(ids), logits) == 0:
                said = f"the logits do not depend on block {number}: its output is not used"
                raise NotDoneError(said, hint="x = block(x) for every block in turn")
        _judge_order(model, ids, logits)


def _judge_order(model: Any, ids: Tensor, logits: Tensor) -> None:
    try:
        x = model.token_embedding(ids) + model.position_embedding(torch.arange(ids.shape[1]))
        for block in model.blocks:
            x = block(x)
        right = model.unembedding(model.norm(x))
    except AttributeError:  # parts of other names: what they give is judged by training
        return
    if is_equal(logits, right):
        return
    said = "the logits are not those of both embeddings, each block in turn, the norm and the unembedding"
    hint = "x = block(x) for every block, nothing added; then self.unembedding(self.norm(x))"
    if is_equal(logits, right.softmax(-1)):
        said = "these are probabilities: cross_entropy takes the softmax itself, of the logits"
        hint = "return self.unembedding(self.norm(x))"
    raise NotDoneError(said, hint=hint)


def _leaks(model: nn.Module) -> bool:
    """Whether a logit depends on a later token."""
    ids = draw_sentences(2, torch.Generator().manual_seed(0))
    other = ids.clone()
    # The later half of two sentences is exchanged, so that the tokens before it stay the same.
    other[:, 10:] = other[:, 10:].flip(0)
    with torch.no_grad():
        return not is_equal(model(ids)[:, :10], model(other)[:, :10])


def train(model: nn.Module, steps: int, bound: float, tell: Callable[[str], None]) -> float:
    """Train a model until its loss on other sentences is below a bound; return that loss."""
    generator = torch.Generator().manual_seed(0)
    unseen = draw_sentences(256, generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    loss = float("inf")
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        _loss(model, draw_sentences(BATCH, generator)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                loss = _loss(model, unseen).item()
            tell(f"Training: step {step} of at most {steps}, loss {loss:.3f}, to get below {BOUND}")
            if loss < bound:
                break
    return loss


def _loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def map_of_each_head(model: Any) -> Tensor:
    """The weights of SENTENCE in every head, (layers · heads, T, T), from what each attention gets."""
    inputs: list[tuple[Any, Tensor]] = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda attention, args: inputs.append((attention, args[0])))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(ids_of(*SENTENCE)[None])
        for hook in hooks:
            hook.remove()
        # The learner's attention was found right, so that its projections tell its weights.
        return torch.cat([causal_weights(attention, x, HEADS)[0] for attention, x in inputs])


def _trained(name: str, loss: float, before: Tensor, after: Tensor) -> Outcome:
    """The outcome of a trained model, with the map of its sharpest head before and after training."""
    queries, keys = zip(*LOOKS_BACK.values(), strict=True)
    found = after[:, queries, keys].mean(-1)  # what each head gives to the words that tell the next one
    head = int(found.argmax())
    sharpness = [_entropy(maps[head, list(queries)]) for maps in (before, after)]
    message = (
        f"loss {loss:.3f}, below {BOUND}; {entropy():.3f} is possible, and {loss_without_attention():.3f} "
        f"without looking back. In head {head % HEADS} of layer {head // HEADS} the entropy of the rows "
        f"shown below fell from {sharpness[0]:.2f} to {sharpness[1]:.2f} nats: first diffuse, then sharp."
    )
    columns = max(keys) + 1
    rows = [maps[head, list(queries), :columns].tolist() for maps in (before, after)]
    titles = ["before training", "after training"]
    return Outcome(
        name, "done", message, picture=WeightPicture(titles, list(LOOKS_BACK), SENTENCE[:columns], rows)
    )


def _entropy(weights: Tensor) -> float:
    """The mean entropy of rows of weights, in nats."""
    return -torch.xlogy(weights, weights).sum(-1).mean().item()


def loss_before_training(module: ModuleType) -> float:
    """Return the loss of the learner's own model before its first step."""
    torch.manual_seed(0)
    model = module.SmallGPT(len(WORDS), LENGTH, D_MODEL, HEADS, LAYERS)
    with torch.no_grad():
        return _loss(model, draw_sentences(256, torch.Generator().manual_seed(0))).item()


NEXT_TOKEN_LOSS = FunctionTask(
    "block",
    "next_token_loss",
    lambda: (
        Case(
            "on 2 texts of 5 tokens",
            (draw(2, 5, 7, seed=0), torch.randint(7, (2, 5), generator=input_generator(1))),
            "It is the mean cross-entropy of each place with the token after it.",
        ),
        Case(  # One number may be right by chance.
            "on 3 texts of 4 tokens",
            (draw(3, 4, 7, seed=2), torch.randint(7, (3, 4), generator=input_generator(3))),
        ),
    ),
)
TASKS = (
    Task(
        "MultiHeadAttention",
        judge_attention,
        trials=(Trial((draw(2, 5, 16),), {"d_model": 16, "num_heads": 2}),),
    ),
    Task(
        "TransformerBlock",
        judge_block,
        trials=(Trial((draw(2, 5, 16),), {"d_model": 16, "num_heads": 2}),),
    ),
    Task(
        "SmallGPT", judge_model, reports_progress=True, trials=(Trial((torch.arange(12).view(2, 6),), SIZES),)
    ),
    NEXT_TOKEN_LOSS.task(),
    guess_task("block", "loss_at_the_start", loss_before_training),
)
