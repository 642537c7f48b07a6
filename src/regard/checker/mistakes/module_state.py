"""Mistakes of modules: tensors that do not move or are not saved, and lengths that do not fit."""

from regard.checker.mistakes.mistake import Mistake

_BUFFER = (
    'self.register_buffer("mask", torch.ones(max_len, max_len, dtype=torch.bool).tril(), persistent=False)'
)
_PLAIN = "self.mask = torch.ones(max_len, max_len, dtype=torch.bool).tril()"
_SAVED = 'self.register_buffer("mask", torch.ones(max_len, max_len, dtype=torch.bool).tril())'
_HEAD_LENGTH = (
    "        if T > len(self.mask):\n"
    '            raise ValueError(f"x: expected at most {len(self.mask)} tokens, got {T}")\n'
)
_LAYER_LENGTH = _HEAD_LENGTH.replace("T > ", "S > ").replace("{T}", "{S}")

MODULE_MISTAKES = (
    Mistake(
        "plain-attribute",
        "that keeps a tensor as a plain attribute, which is neither moved nor saved with the module",
        "`.to(device)` leaves it behind, so that forward fails there, and state_dict does not hold it.",
        'self.register_buffer("mask", mask, persistent=False), or nn.Parameter if it is learned',
        "`self.mask = torch.tril(…)`, `self.scale = torch.sqrt(torch.FloatTensor([d]))`",
        symptom='Right on the CPU. On a GPU forward fails: "Expected all tensors to be on the same device".',
        why="nn.Module moves and saves what it has registered: parameters, buffers and modules. A "
        "tensor assigned with = is an ordinary Python attribute.",
        test="everything-moves-with-the-module",
        plants={"head": ((_BUFFER, _PLAIN),), "layer": ((_BUFFER, _PLAIN),)},
    ),
    Mistake(
        "plain-list",
        "that keeps modules or parameters in a plain list",
        "The optimiser, `.to()` and state_dict miss them: they are not trained, not moved, not saved.",
        "self.heads = nn.ModuleList(…), or nn.ParameterList",
        "`self.heads = [Head(…) for _ in range(n)]`",
        symptom="The loss falls less than it should, and the parameter count is too small. After "
        "loading a checkpoint the model is worse than before, since those layers are random "
        "again.",
        why="nn.Module registers modules that are assigned to attributes. It does not look into lists.",
        test="saved-weights-are-all-weights",
        plants={
            "head": (
                (
                    "        self.query = nn.Linear(d_model, head_size)\n",
                    "        self.layers = [nn.Linear(d_model, head_size)]\n",
                ),
                ("self.query(x)", "self.layers[0](x)"),
            )
        },
        unseen_because="The output is right; parameters() and state_dict miss the list.",
    ),
    Mistake(
        "persistent-mask",
        "whose mask is saved with the weights, so that they load only at one maximum length",
        "A checkpoint for 512 tokens does not load into a module for 1024: the mask's shape differs.",
        'self.register_buffer("mask", mask, persistent=False)',
        "register_buffer without persistent=False, which is common in tutorials",
        warning=True,
        symptom='"size mismatch for mask" when you load a checkpoint into a model with another maximum '
        "length.",
        why="A buffer is part of state_dict unless persistent=False. A mask is no weight: it can be "
        "made again at any length.",
        test="weights-load-at-another-length",
        plants={"head": ((_BUFFER, _SAVED),), "layer": ((_BUFFER, _SAVED),)},
    ),
    Mistake(
        "obscure-length-error",
        "in which a sequence over the maximum length fails with an error about broadcasting",
        "The message names tensor sizes, not the length that was exceeded.",
        'if T > self.max_len: raise ValueError(f"expected at most {self.max_len} tokens, got {T}")',
        "mask[:T, :T] with a T larger than the mask",
        warning=True,
        symptom='"The size of tensor a (65) must match the size of tensor b (64)", far from the cause.',
        why="mask[:T, :T] of a smaller mask is the whole mask, without an error. The next operation "
        "then fails to broadcast.",
        test="a-text-too-long-is-refused-in-words",
        plants={"head": ((_HEAD_LENGTH, ""),), "layer": ((_LAYER_LENGTH, ""),)},
        unseen_because="It is the wording of an error; no number differs.",
    ),
)
