"""Hints for errors of Python and PyTorch that learners meet, by what the error says."""

from __future__ import annotations

import re

# In order: the first that fits is given, so that particular messages come before general ones.
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
    (r"has no attribute", "a name is used that __init__ does not set, or it is spelled differently there"),
    (r"before Module\.__init__\(\)", "the first line of __init__ is super().__init__()"),
    (
        r"view size is not compatible",
        "after a transpose the numbers of a row are no longer neighbours in memory, and .view needs that: "
        "write .reshape",
    ),
    (r"is invalid for input of size", "the sizes of a view or reshape multiply to the size of the tensor"),
    (
        r"shapes cannot be multiplied",
        "print the shapes of both: a product (n, m) @ (m, p) needs the same m on both sides",
    ),
    (
        r"must match the size|inconsistent tensor size|size mismatch",
        "print the shapes of both: the axes have to agree, or one of them is 1",
    ),
    (
        r"Expected size for first two dimensions",
        "print the shapes of both: q @ k.mT needs q (…, T, D) and k.mT (…, D, S)",
    ),
    (r"einsum\(\)", 'give every axis a letter: torch.einsum("bhtd,bhsd->bhts", q, k)'),
    (
        r"unexpected keyword argument|positional argument",
        "keep the arguments of the class and of forward as the lesson has them",
    ),
    (r"but got float", "// divides whole numbers, / gives a fraction: d_out // num_heads"),
    (r"is not defined", "a method is called as self.merge(…); any other name has to be defined or imported"),
    (r"operator\.invert", "~ needs a boolean mask: torch.ones(T, T, dtype=torch.bool)"),
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
