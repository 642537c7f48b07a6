"""Hints for errors of Python and PyTorch that learners meet, by what the error says."""

from __future__ import annotations

import re

HINTS: tuple[tuple[str, str], ...] = (
    (
        r"NameError: name '(W_\w|dropout|causal_mask|num_heads|head_dim)'",
        r"\1 belongs to the module: self.\1",
    ),
    (
        r"unsupported operand type\(s\) for @: '(Linear|Tensor)' and '(Linear|Tensor)'",
        "a projection is called, not multiplied: self.W_q(x)",
    ),
    (
        r"Boolean value of Tensor with more than one value is ambiguous",
        "a comparison of tensors has one answer for each number: .any() or .all() makes it one",
    ),
    (
        r"softmax\(\) (received|missing)",
        "softmax needs the axis to sum over: torch.softmax(scores, dim=-1)",
    ),
    (
        r"'(Dropout|Linear|Embedding)' object has no attribute|must be Tensor, not (Dropout|Linear)",
        "nn.Dropout(…) makes a module; call the one that __init__ made: self.dropout(weights)",
    ),
    (
        r"AttributeError: '\w+' object has no attribute '(\w+)'",
        r"is `\1` spelled as in __init__, and made there?",
    ),
    (
        r"cannot assign module before Module.__init__\(\) call",
        "super().__init__() has to be the first line of __init__",
    ),
    (
        r"shapes cannot be multiplied|must match the size|inconsistent tensor size|size mismatch",
        "print the shapes before that line: print(q.shape, k.shape); is a transpose missing (k.mT)?",
    ),
    (r"view size is not compatible", "after a transpose, write .reshape(…) instead of .view(…)"),
    (r"'ellipsis'", "a line is still `...`: write it first"),
    (r"'NoneType' object", "something is None: does a function end without `return`?"),
)


def find_hint(message: str) -> str:
    """Return a hint for an error message, "kind: text"; "" if none is known.

    >>> find_hint("NameError: name 'W_q' is not defined")
    'W_q belongs to the module: self.W_q'
    """
    for pattern, hint in HINTS:
        if found := re.search(pattern, message):
            return found.expand(hint) if "\\" in hint else hint
    return ""
