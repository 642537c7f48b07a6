"""Parameters that a module holds and does not use."""

from __future__ import annotations

import torch

from regard.checker.oracle.question import Question
from regard.checker.subject.call_tensors import copy_module
from regard.checker.subject.subject import Subject


def unused_parameters(subject: Subject, question: Question) -> list[str]:
    """Return the paths of the parameters that can be changed without changing the output of a question."""
    before, runnable = subject.run(question).answer, subject.runnable(question.dtype)
    if before is None or runnable is None:
        return []
    module = copy_module(runnable)
    unused = []
    for path, parameter in module.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            # A factor alone would leave a bias of zeros as it is.
            parameter.mul_(-0.7).add_(0.3)
        after = subject.run(question, module=module).answer
        with torch.no_grad():
            parameter.copy_(kept)
        if after is not None and torch.equal(before.output.nan_to_num(), after.output.nan_to_num()):
            unused.append(path)
    return unused
