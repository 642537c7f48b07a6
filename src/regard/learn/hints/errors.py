"""Errors of Python and PyTorch that learners meet: in a sentence, and with a hint by what the error says."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

# An error of the learner's code in a message, with the number of its line (see `describe_error`).
ERROR = re.compile(r"^line (\d+), .*(Error|Exception|Warning): |^\w+Error: ", re.DOTALL)

GENERAL_DIFFERENCE = "is the first value that differs from the solution's on this input"
# A line that multiplies tensors of different shapes number by number.
STAR_ERROR = re.compile(r"line \d+, .*[\w)\]] \* [\w(].*must match the size")
STAR = "`*` multiplies number by number, and `@` is the product of matrices, rows times columns"
# In order: the first that fits is given, so that particular messages come before general ones.
PARTICULAR: tuple[tuple[str, str], ...] = (
    (
        r"NameError: name '(W_\w|dropout|causal_mask|num_heads|split|merge)'",
        r"\1 belongs to the module: self.\1",
    ),
    (
        r"NameError: name '(head_dim|d_model|d_out|d_context|max_seq_len|d)'",
        r"`\1` is not known here: __init__ knows its own arguments, and no other function does",
    ),
    (r"NameError: name '(sqrt|inf|pi|cos|sin|exp)'", r"\1 is in the module math: math.\1"),
    (r"NameError: name '(softmax|tril|triu|ones|zeros|cat|arange|Tensor)'", r"\1 belongs to torch: torch.\1"),
    (r"NameError: name '(math|torch)'", r"`import \1` belongs at the top of the file"),
    (r"NameError: name 'F'", "`import torch.nn.functional as F` belongs at the top of the file"),
    (r"NameError: name 'nn'", "`from torch import nn` belongs at the top of the file"),
    (r"NameError: name '(np|numpy)'", "NumPy is not imported, nor needed: torch and math have it all"),
    (r"NameError: name '(\w+)'", r"`\1` is not known here: a name has to be assigned or imported first"),
    (
        r"\(self\.head_dim\).*has no attribute 'head_dim'",
        "this module does not keep head_dim: a tensor knows its width",
    ),
    (
        r"unsupported operand type\(s\) for @: '(Linear|Tensor)' and '(Linear|Tensor)'",
        "a projection is called, not multiplied, as in self.W_q(x)",
    ),
    (
        r"nn\.Dropout\(|'Dropout' object has no attribute|must be Tensor, not Dropout",
        "nn.Dropout(…) makes a module; call the one that __init__ made: self.dropout(weights)",
    ),
    (
        r"(not|if|bool\().*Boolean value of Tensor with more",
        "`not` and `if` need one answer, and a tensor has many",
    ),
    (
        r"Boolean value of Tensor with more than one value is ambiguous",
        "a comparison of tensors has one answer for each number: .any() or .all() makes it one",
    ),
    (r"softmax\(\) (received|missing)", "softmax needs the axis to sum over, dim=-1"),
    (r"must be Tensor, not list", "a list is no tensor: torch.stack(…) makes one of a list of tensors"),
    (
        r"sqrt\(\): argument 'input' .* must be Tensor, not int",
        "torch.sqrt is for tensors; a width is a whole number, and math.sqrt is for those",
    ),
    (
        r"must be real number, not torch.Size",
        "a shape has several sizes; the last one is the width, k.shape[-1]",
    ),
    (
        r"(math\.\w+)\(.*(?:only one element tensors can be converted|only length-1 arrays)",
        r"\1 takes one number, and this is a whole tensor",
    ),
    (
        r"only one element tensors can be converted|only length-1 arrays",
        "one number is needed here, and this is a whole tensor",
    ),
    (
        r"reduction dim to be specified for input.numel\(\) == 0",
        "this tensor is empty and has no largest number: out[:, :t] holds no token at t = 0, so begin at 1",
    ),
    (r"1D tensors expected", "torch.dot is for two vectors; a product of matrices is written @"),
    (
        r"module 'torch[\w.]*' has no attribute",
        "PyTorch has no such name: is it spelled right, capital letters too?",
    ),
    (r"before Module\.__init__\(\)", "the first line of __init__ is super().__init__()"),
    (
        r"only supports boolean masks|operator\.invert",
        "a mask holds True and False, not 1.0 and 0.0: dtype=torch.bool, or .bool()",
    ),
    (r"operator, (on|with) a bool tensor", "~ turns True into False and back: ~visible"),
    (r"masked_fill\(\) (received|missing)", "masked_fill needs a mask and what to fill in"),
    (r"does not support item assignment", "one line has one `=`: either x[i] = y, or x = …"),
    (
        r"tril: input tensor must have at least 2|trilu?\(\): argument",
        "tril cuts a matrix: make one of ones first",
    ),
    (
        r"index \d+ is out of bounds for dimension 0",
        "the first axis counts texts and the second tokens: x[:, t] is token t of every text",
    ),
    (r"index \d+ is out of bounds", "the last token has none after it: an index has to stay below the size"),
    (r"expand\(torch\.\w+Tensor", "both sides of `=` need the same shape"),
    (
        r"view size is not compatible",
        "after a transpose the numbers of a row are no longer neighbours in memory, and .view needs that: "
        "write .reshape",
    ),
    (r"'Linear' object has no attribute", "a module is no tensor: its numbers are in .weight"),
    (
        r"does not broadcast with previously seen",
        "one letter stands for axes of different sizes: is a tensor split or transposed in another order?",
    ),
    (
        r"@ (self\.)?W_\w\.weight.*(cannot be multiplied|must match)",
        "nn.Linear keeps its matrix as (out, in) and multiplies by its transpose; call it, as in self.W_q(x)",
    ),
    (
        r"einsum\(\).*no ellipsis",
        "one text has an axis less than a batch, and an equation names them all: three dots stand for those "
        'that it leaves alone, "...td,...sd->...ts"',
    ),
    (r"einsum\(\)", 'give every axis a letter: torch.einsum("bhtd,bhsd->bhts", q, k)'),
    (
        r"<locals>\.\w+\(\) takes 2 positional arguments but 3",
        "register_forward_pre_hook calls a hook with (module, inputs), before the module runs; "
        "register_forward_hook calls it with the output, too",
    ),
    (
        r"must be Tensor, not tuple|'tuple' object has no attribute",
        "this is a tuple, several things at once: its first entry is [0], as in inputs[0]",
    ),
    (
        r"(cos|sin|exp|log)\(\): argument 'input' .* must be Tensor, not (float|int)",
        r"torch.\1 is for tensors, and this is one number: math.\1 takes one",
    ),
    (
        r"embedding\(\): argument 'indices' .* must be Tensor",
        "an embedding is asked for rows, by a tensor of whole numbers: torch.arange(T) for T positions",
    ),
    (
        r"position.*IndexError: index out of range in self",
        "this embedding has a row for each position; what it is asked for are tokens: torch.arange(T)",
    ),
    (
        r"cannot assign '.*' as parameter",
        "a parameter keeps its place, and numbers are copied into it: W.weight.copy_(numbers)",
    ),
    (
        r"'Parameter' object has no attribute 'weight'",
        "a projection was replaced by its numbers: copy them into its weight, W.weight.copy_(numbers)",
    ),
    (
        r"\.transpose\(0, 1\).*(must match the size|Expected size)",
        "axis 0 is the texts; keys are transposed in the last two axes: .transpose(-2, -1), or .mT",
    ),
    (
        r"W_o\(.*shapes cannot be multiplied",
        "W_o takes the heads side by side, d_model numbers for each token: torch.cat(heads, dim=-1), where "
        "each head has head_dim",
    ),
    (
        r"unexpected keyword argument|positional argument",
        "keep the arguments of the class and of forward as the lesson has them",
    ),
    (r"but got float|'float' object cannot be interpreted", "// divides whole numbers, / gives a fraction"),
    (r"'ellipsis'", "a line is still `...`: write it first"),
    (r"'NoneType'", "something is None: does a function end without `return`?"),
)
# What fits many errors, and says less than the line to write, where that is known.
_GENERAL_HINTS: tuple[tuple[str, str], ...] = (
    (r"has no attribute", "a name is used that __init__ does not set, or it is spelled differently there"),
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
)
GENERAL = frozenset(hint for _, hint in _GENERAL_HINTS)


def find_hint(message: str) -> str:
    """Return a hint for an error message, "kind: text"; "" if none is known.

    >>> find_hint("NameError: name 'W_q' is not defined")
    'W_q belongs to the module: self.W_q'
    """
    for pattern, hint in PARTICULAR + _GENERAL_HINTS:
        if found := re.search(pattern, message):
            return found.expand(hint) if "\\" in hint else hint
    return ""


def describe_error(error: BaseException, path: Path) -> str:
    """Return an error of the learner's code in a sentence, with the last line of the file that it passed."""
    # By the name of the file: the frames of PyTorch and of the judge are not what the learner wrote.
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    text = (str(error).strip().splitlines() or [""])[0]
    where = f"line {lines[-1].lineno}, {str(lines[-1].line).split('  #')[0].rstrip(':')}: " if lines else ""
    # An error of PyTorch may print whole tensors.
    return f"{where}{type(error).__name__}: {text}"[:400]
