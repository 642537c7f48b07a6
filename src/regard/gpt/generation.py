"""Text from a model, token by token: the prompt at once, then one token after another.

Prompts of different lengths share a batch: the shorter ones are padded on the left, where nobody looks. This
file knows prompts, stops and the loop; `sampling` chooses each token, and the model computes its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.sampler import Sampling
from regard.gpt.tokens import prompt_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

Prompt = str | Tensor | Sequence[int] | Sequence[str] | Sequence[Tensor] | Sequence[Sequence[int]]
"""Text or token ids, one or many. Many may differ in length, except in a tensor (B, T)."""

Stop = int | str | Sequence[int | str] | None
"""Tokens or strings that end a text."""


def generate(
    model: GPT,
    prompt: Prompt,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Stop = None,
    cache: bool = True,
) -> Any:
    """The prompt with what follows it, in the form in which it came: text, a tensor, lists of ids.

    Temperature 0 is greedy. A text ends with a `stop`, which is part of it, or after `max_new_tokens`; in a
    tensor (B, T) those that end early are filled up with their last token. `cache=False` computes everything
    anew for every token: the same result, slowly.
    """
    prompts = _understood(model, prompt)
    sampling = Sampling(temperature, top_k, top_p, seed)
    added: list[list[int]] = [[] for _ in prompts.ids]
    for tokens in _steps(model, prompts.ids, max_new_tokens, sampling, stop, cache):
        for row, token in zip(added, tokens, strict=True):
            if token is not None:
                row.append(token)
    return prompts.answer(added)


def stream(
    model: GPT,
    prompt: Prompt,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Stop = None,
    cache: bool = True,
) -> Iterator[Any]:
    """What follows one prompt, as it comes: pieces of text after text, tokens after tokens."""
    prompts = _understood(model, prompt)
    if len(prompts.ids) != 1:
        raise ValueError(f"prompt: expected one to stream, got {len(prompts.ids)}: generate takes many")
    sampling = Sampling(temperature, top_k, top_p, seed)
    steps = _steps(model, prompts.ids, max_new_tokens, sampling, stop, cache)
    tokens = (row[0] for row in steps if row[0] is not None)
    return _pieces(_tokenizer(model), prompts.ids[0], tokens) if prompts.text else tokens


def _steps(
    model: GPT, prompts: list[list[int]], limit: int, sampling: Sampling, stop: Stop, cached: bool
) -> Iterator[list[int | None]]:
    """Checks what is asked for; then each step gives the next token of every text, None once it has ended."""
    limit = check_whole_number("max_new_tokens", limit, 0)
    longest, context = max(map(len, prompts)), model.config.context
    if longest > context:
        raise ValueError(f"prompt: expected at most context={context} tokens, got {longest}")
    if longest + limit > context:
        raise ValueError(
            f"max_new_tokens: expected at most {context - longest}, since the prompt has {longest} tokens "
            f"and the model's context is {context}, got {limit}"
        )
    least, most = min(map(min, prompts)), max(map(max, prompts))
    if least < 0 or most >= model.config.vocab_size:
        raise ValueError(
            f"prompt: expected tokens from 0 to {model.config.vocab_size - 1}, got {least} to {most}"
        )
    return _run(model, prompts, limit, sampling, _ending(model, stop), cached)


@torch.inference_mode()
def _run(
    model: GPT,
    prompts: list[list[int]],
    limit: int,
    sampling: Sampling,
    ends: Callable[[list[int]], bool],
    cached: bool,
) -> Iterator[list[int | None]]:
    B, T = len(prompts), max(map(len, prompts))
    ids = torch.zeros(B, T + limit, dtype=torch.long)
    with torch.inference_mode(False):  # such a tensor's masks are worked out once for all layers
        real = torch.ones(B, T + limit, dtype=torch.bool, device=model.device)
    for row, prompt in enumerate(prompts):
        ids[row, T - len(prompt) : T] = torch.tensor(prompt)
        real[row, : T - len(prompt)] = False
    padded = not bool(real.all())
    ids = ids.to(model.device)
    caches = model.caches(T + limit) if cached else None
    texts: list[list[int]] = [[] for _ in prompts]
    ended = [False] * B
    training = model.training
    model.eval()
    try:
        for now in range(T, T + limit):
            # The whole prompt first; then, with a cache, the newest token only.
            new = ids[:, :now] if caches is None or now == T else ids[:, now - 1 : now]
            states = model.states(new, real=real[:, :now] if padded else None, cache=caches)
            tokens = sampling.choose(model.logits(states[:, -1]))  # (B,)
            ids[:, now] = tokens
            shown: list[int | None] = [*tokens.tolist()]
            for row, token in enumerate(shown):
                if ended[row]:
                    shown[row] = None
                elif token is not None:
                    texts[row].append(token)
                    ended[row] = ends(texts[row])
            yield shown
            if all(ended):
                return
    finally:
        model.train(training)


class _Prompts(NamedTuple):
    """Prompts as lists of ids, and how to give an answer in the form in which they came."""

    ids: list[list[int]]
    text: bool
    answer: Callable[[list[list[int]]], Any]


def _understood(model: GPT, prompt: Prompt) -> _Prompts:
    rows: list[list[int]]
    if isinstance(prompt, str):
        many = _understood(model, [prompt])
        return many._replace(answer=lambda added: many.answer(added)[0])
    if isinstance(prompt, Tensor):
        if prompt.ndim not in (1, 2) or prompt.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"prompt: expected whole numbers (length,) or (batch, length), got {tuple(prompt.shape)} "
                f"{prompt.dtype}"
            )
        table = prompt if prompt.ndim == 2 else prompt[None]
        rows = table.tolist()

        def as_tensor(added: list[list[int]]) -> Tensor:
            longest = max(map(len, added))
            filled = [new + (new[-1:] or row[-1:]) * (longest - len(new)) for row, new in _pairs(rows, added)]
            # torch.tensor of empty lists would be float, hence the shape.
            new = torch.tensor(filled, dtype=prompt.dtype, device=prompt.device).view(len(rows), longest)
            return torch.cat([table, new], 1).view(*prompt.shape[:-1], -1)

        return _Prompts(_not_empty(rows), False, as_tensor)
    items: list[Any] = list(prompt)
    if items and all(isinstance(item, str) for item in items):
        tokenizer = _tokenizer(model)
        texts = [str(item) for item in items]
        rows = [prompt_ids(tokenizer, text) for text in texts]

        def as_text(added: list[list[int]]) -> list[str]:
            new = [_continuation(tokenizer, row, ids) for row, ids in _pairs(rows, added)]
            return [text + more for text, more in zip(texts, new, strict=True)]

        return _Prompts(_not_empty(rows), True, as_text)
    if items and all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        rows = [items]
        return _Prompts(rows, False, lambda added: rows[0] + added[0])
    if items and all(isinstance(item, Tensor) and item.ndim == 1 for item in items):
        each = [_understood(model, item) for item in items]
        rows = [one.ids[0] for one in each]
        return _Prompts(rows, False, lambda added: [one.answer([new]) for one, new in _pairs(each, added)])
    if items and all(
        isinstance(item, Sequence) and all(isinstance(token, int) for token in item) for item in items
    ):
        rows = [list(item) for item in items]
        return _Prompts(
            _not_empty(rows), False, lambda added: [row + new for row, new in _pairs(rows, added)]
        )
    raise ValueError(
        "prompt: expected text, a list of texts, token ids, or a list of lists of token ids, "
        f"got {type(prompt).__name__} of {len(items)}"
    )


def _pairs(rows: Sequence[Any], added: list[list[int]]) -> Iterator[tuple[Any, list[int]]]:
    return zip(rows, added, strict=True)


def _not_empty(rows: list[list[int]]) -> list[list[int]]:
    if not rows or not all(rows):
        raise ValueError("prompt: expected at least one token in each, got an empty one")
    return rows


def _tokenizer(model: GPT) -> Tokenizer:
    if model.tokenizer is None:
        raise ValueError("prompt: this model came without a tokenizer: give token ids instead of text")
    return model.tokenizer


def _ending(model: GPT, stop: Stop) -> Callable[[list[int]], bool]:
    """Whether a text, as the new tokens so far, has come to its end."""
    given = [] if stop is None else [stop] if isinstance(stop, int | str) else list(stop)
    tokens: set[int] = set()
    strings: list[str] = []
    for item in given:
        if isinstance(item, str) and item:
            # A special token has a name that never shows in the text.
            named = _tokenizer(model).token_to_id(item)
            tokens |= set() if named is None else {named}
            strings.append(item)
        elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < model.config.vocab_size:
            tokens.add(item)
        else:
            raise ValueError(
                f"stop: expected tokens from 0 to {model.config.vocab_size - 1} or strings, got {item!r}"
            )

    def ends(new: list[int]) -> bool:
        if new[-1] in tokens:
            return True
        text = _tokenizer(model).decode(new) if strings else ""
        return any(string in text for string in strings)

    return ends


def _continuation(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text of the new tokens, after the prompt's last: some tokenizers drop the space at a start."""
    before: str = tokenizer.decode(prompt[-1:])
    after: str = tokenizer.decode(prompt[-1:] + new)
    return after[len(before) :]


def _pieces(tokenizer: Tokenizer, prompt: list[int], tokens: Iterator[int]) -> Iterator[str]:
    """The text as it grows. A character of several tokens comes with the last of them."""
    new: list[int] = []
    written = 0
    for token in tokens:
        new.append(token)
        text = _continuation(tokenizer, prompt, new)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[written:]
            written = len(text)
    if (rest := _continuation(tokenizer, prompt, new)[written:]) != "":
        yield rest
