"""The loss of lesson 10, and the losses that mistakes give."""

from __future__ import annotations

import torch

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.inputs import input_generator

LOGITS, TARGETS = "logits[:, :-1]", "ids[:, 1:]"
SHIFTED = f"predicted = {LOGITS}, targets = {TARGETS}"
LOSS = "F.cross_entropy(predicted.flatten(0, 1), targets.flatten())"
SUM = LOSS.replace("flatten())", 'flatten(), reduction="sum")')
OWN = "-{}.gather(-1, targets[..., None]).mean()"
LOGARITHMS = "log_softmax over the last axis, the words of the vocabulary: torch.log_softmax(logits, dim=-1)"

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
    (Result("loss", "", f"{SHIFTED}, and the .mean() of all losses"),),
    (
        WrongWay(f"{LOGITS}\n{TARGETS}", "logits\nids", "targets-not-shifted"),
        WrongWay(TARGETS, "ids[:, :-1]", "targets-not-shifted"),
        WrongWay(LOGITS, "logits[:, 1:]", "targets-not-shifted"),
        WrongWay(f"{LOGITS}\n{TARGETS}", "logits[:, 1:]\nids[:, :-1]", "targets-shifted-back"),
        WrongWay(TARGETS, "ids.roll(1, 1)[:, :-1]", "targets-shifted-back"),
        WrongWay(LOGITS, f"{LOGITS}.softmax(-1)", "softmax-before-loss"),
        WrongWay(
            LOSS, f"-{LOSS}", said="the sign is lost: a loss is minus the logarithm", hint="loss = -logp…"
        ),
        WrongWay(LOSS, SUM, said="this is the sum over all places; the loss is their mean", hint=".mean()"),
        *(
            WrongWay(
                LOSS,
                f"{SUM} / {number}",
                said=f"this is a mean over the {these} and a sum over the {others}; it is a mean over both",
                hint="divide by the number of all losses, len(ids) * (ids.shape[1] - 1)",
            )
            for number, these, others in (
                ("len(ids)", "texts", "places"),
                ("(ids.shape[1] - 1)", "places", "texts"),
            )
        ),
        WrongWay(
            LOSS,
            f"{LOSS} / torch.tensor(2.0).log()",
            said="this is the logarithm to base 2; a loss in nats takes the natural one, torch.log",
            hint="torch.log",
        ),
        WrongWay(
            LOSS,
            "-predicted.softmax(-1).gather(-1, targets[..., None]).mean(0).log().mean()",
            said="the logarithm of a mean is no mean of logarithms: first each logarithm, then the mean",
            hint="-torch.log(p).mean()",
        ),
        WrongWay(
            LOSS,
            "-predicted.log_softmax(-1)[:, torch.arange(targets.shape[1]), targets].mean()",
            said="each text is asked for the next tokens of all texts: the first index is a slice",
            hint="torch.arange(len(ids)) as the first index takes one text at a time; `:` takes all of them",
        ),
        WrongWay(
            LOSS,
            f"{SUM} / ids.numel()",
            said="the sum is divided by all places; the last of each text has no next token",
            hint="divide by the number of places that have a next token, or take .mean()",
        ),
        WrongWay(
            LOSS,
            OWN.format("predicted"),
            said="these are the logits themselves, without the logarithm of softmax",
            hint=LOGARITHMS,
        ),
        WrongWay(
            LOSS,
            OWN.format("predicted.softmax(-1)"),
            said="these are probabilities without their logarithm",
            hint=LOGARITHMS,
        ),
        *(
            WrongWay(
                LOSS,
                OWN.format(f"logits.log_softmax({axis})[:, :-1]"),
                said="the softmax runs along a wrong axis",
                hint=LOGARITHMS,
            )
            for axis in (0, 1)
        ),
        WrongWay(
            f"{LOGITS}\n{TARGETS}",
            "logits\nids.roll(-1, 1)",
            said=".roll goes round: the last place is asked for the first token, and has no next one",
        ),
        WrongWay(
            f"{LOGITS}\n{TARGETS}",
            f"{LOGITS}[:, : len(ids) - 1]\n{TARGETS}[:, : len(ids) - 1]",
            said="len(ids) is the number of texts; their length is ids.shape[1]",
            hint="range(ids.shape[1] - 1)",
        ),
        WrongWay(
            "predicted.flatten(0, 1)",
            "predicted.mT.reshape(-1, logits.shape[-1])",
            said="the numbers of a place are torn apart: the vocabulary has to stay the last axis",
            hint="logits[:, :-1].flatten(0, 1)",
        ),
    ),
    "each place is asked for the token after it.",
    (
        (
            "Expected target size",
            "cross_entropy takes rows of logits: logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()",
        ),
    ),
)
