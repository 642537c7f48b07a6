"""Mistakes that one call alone does not show: inputs that are overwritten, and state between calls."""

from regard.checker.mistakes.mistake import Mistake

_SCORES = "    scores = q @ k.transpose(-2, -1)\n"
_SCALE = "    scores = scores / math.sqrt(D)\n"
_IMPORT = "import torch.nn.functional as F\n\n\ndef attention("

CALL_MISTAKES = (
    Mistake(
        "input-overwritten",
        "that writes into the tensors it is given",
        "The caller's tensors hold other numbers after the call: a residual connection adds them, and a "
        "second call gets them.",
        "q = q * scale, scores = scores + mask: operators without an underscore, and no `*=` on an argument",
        "`q *= scale`, `mask.masked_fill_(…)`, `x += positions` on an argument, to save memory",
        symptom="One call is right, and a second one on the same tensors is not. In a model a residual "
        "connection is off, or the backward pass fails: “modified by an inplace operation”.",
        why="Python passes a tensor, not a copy of it. `q *= scale` changes the tensor that the caller "
        "holds; `q = q * scale` makes a new one.",
        test="inputs-are-kept",
        plants={"function": ((_SCORES, f"    q /= math.sqrt(D)\n{_SCORES}"), (_SCALE, ""))},
        unseen_because="The output is right; the caller's tensors are other ones afterwards.",
    ),
    Mistake(
        "state-between-calls",
        "whose output depends on earlier calls",
        "The first call is right, and later ones are not: a mask has the length of the first text, or keys "
        "of other texts are still there.",
        "compute it from the inputs of each call, or keep it under a key that holds all it depends on",
        "a mask that is kept from the first call, a counter, a cache that nothing clears",
        symptom="The first batch is right. The next one, of another length, raises an error about shapes, "
        "or gives other numbers than alone: results depend on the order of the texts.",
        why="What is kept on `self` or in a global belongs to the inputs of the call that computed it. The "
        "next call has other inputs.",
        test="earlier-calls-do-not-matter",
        plants={
            "head": (
                (
                    "        allowed = self.mask[:T, :T]\n",
                    '        if not hasattr(self, "allowed"):\n'
                    "            self.allowed = self.mask[:T, :T]\n"
                    "        allowed = self.allowed\n",
                ),
            ),
            "function": (
                (_IMPORT, _IMPORT.replace("\n\n\n", "\n\nMASKS = {}\n\n\n")),
                (
                    "        allowed = keys <= at\n",
                    '        allowed = MASKS.setdefault("causal", keys <= at)\n',
                ),
            ),
        },
    ),
)
