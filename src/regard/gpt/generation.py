"""Autoregressive generation: the prompt in one forward pass, then one token at a time.

Prompts of different lengths share a batch: the shorter ones are padded on the left, and the padding is masked
out. This file knows prompts, stop conditions and the loop; `sampler` chooses each token, and the model
computes the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.sampler import Sampler
from regard.gpt.token_batch import pad_rows
from regard.gpt.tokens import encode_prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

Prompt = str | Tensor | Sequence[int] | Sequence[str] | Sequence[Tensor] | Sequence[Sequence[int]]
"""Text or token ids, one prompt or several. Several may differ in length, except in a tensor (B, T)."""

Stop = int | str | Sequence[int | str] | None
"""Tokens or strings after which generation stops."""


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
    """The prompt with its continuation, of the prompt's type: text, a tensor, or lists of token ids.

    - `prompt`: one or several prompts, as text (if the model has a tokenizer) or as token ids.
    - `max_new_tokens`: the longest continuation.
    - `temperature`, `top_k`, `top_p`, `seed`: see `sampler.Sampler`. Temperature 0 is greedy.
    - `stop`: tokens or strings that end a continuation, of which they are part. In a tensor (B, T), rows that
      end early are padded with their last token.
    - `cache=False` recomputes all keys and values for every token: the same result, more slowly.
    """
    prompts = _parse_prompt(model, prompt)
    sampler = Sampler(temperature, top_k, top_p, seed)
    continuations: list[list[int]] = [[] for _ in prompts.ids]
    for tokens in _steps(model, prompts.ids, max_new_tokens, sampler, stop, cache):
        for row, token in zip(continuations, tokens, strict=True):
            if token is not None:
                row.append(token)
    return prompts.join(continuations)


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
    """Yield the continuation of one prompt as it is computed: strings for text, ids for token ids.

    The arguments are those of `generate`.
    """
    prompts = _parse_prompt(model, prompt)
    if len(prompts.ids) != 1:
        raise ValueError(f"prompt: expected one to stream, got {len(prompts.ids)}: use generate for several")
    sampler = Sampler(temperature, top_k, top_p, seed)
    steps = _steps(model, prompts.ids, max_new_tokens, sampler, stop, cache)
    tokens = (row[0] for row in steps if row[0] is not None)
    return _decode_stream(_tokenizer(model), prompts.ids[0], tokens) if prompts.is_text else tokens


def _steps(
    model: GPT, prompts: list[list[int]], limit: int, sampler: Sampler, stop: Stop, cached: bool
) -> Iterator[list[int | None]]:
    """Check the arguments, then yield the next token of every row, None for a row that has ended."""
    limit = check_whole_number("max_new_tokens", limit, 0)
    longest, context_length = max(map(len, prompts)), model.config.context_length
    if longest > context_length:
        raise ValueError(f"prompt: expected at most context_length={context_length} tokens, got {longest}")
    if longest + limit > context_length:
        raise ValueError(
            f"max_new_tokens: expected at most {context_length - longest}, since the prompt has {longest} "
            f"tokens and the model's context_length is {context_length}, got {limit}"
        )
    least, most = min(map(min, prompts)), max(map(max, prompts))
    if least < 0 or most >= model.config.vocab_size:
        raise ValueError(
            f"prompt: expected tokens from 0 to {model.config.vocab_size - 1}, got {least} to {most}"
        )
    return _run(model, prompts, limit, sampler, _stop_condition(model, stop), cached)


@torch.inference_mode()
def _run(
    model: GPT,
    prompts: list[list[int]],
    limit: int,
    sampler: Sampler,
    is_complete: Callable[[list[int]], bool],
    cached: bool,
) -> Iterator[list[int | None]]:
    # One table for the prompts, padded on the left, and for the tokens to come.
    B, T = len(prompts), max(map(len, prompts))
    ids = torch.zeros(B, T + limit, dtype=torch.long)
    # A tensor made in inference mode has no version counter, and masks are memoized by it for all layers.
    with torch.inference_mode(False):
        is_token = torch.ones(B, T + limit, dtype=torch.bool, device=model.device)
    ids[:, :T], is_token[:, :T] = pad_rows(prompts)
    padded = not bool(is_token.all())
    ids = ids.to(model.device)
    caches = model.caches(T + limit) if cached else None
    continuations: list[list[int]] = [[] for _ in prompts]
    complete = [False] * B
    training = model.training
    model.eval()
    try:
        for now in range(T, T + limit):
            # The whole prompt first; then, with a cache, only the newest token.
            new = ids[:, :now] if caches is None or now == T else ids[:, now - 1 : now]
            attention_mask = is_token[:, :now] if padded else None
            states = model.states(new, attention_mask=attention_mask, cache=caches)  # (B, new, d_model)
            tokens = sampler.sample(model.logits(states[:, -1]))  # (B,)
            ids[:, now] = tokens
            # A row that is complete goes on being computed with the others, and yields None.
            row_tokens: list[int | None] = [*tokens.tolist()]
            for row, token in enumerate(row_tokens):
                if complete[row]:
                    row_tokens[row] = None
                elif token is not None:
                    continuations[row].append(token)
                    complete[row] = is_complete(continuations[row])
            yield row_tokens
            if all(complete):
                return
    finally:
        model.train(training)


class _Prompts(NamedTuple):
    """Prompts as lists of ids, and a function that joins continuations to them in their original type."""

    ids: list[list[int]]
    is_text: bool
    join: Callable[[list[list[int]]], Any]


def _parse_prompt(model: GPT, prompt: Prompt) -> _Prompts:
    """Tell the types of prompts apart; a ValueError lists them."""
    rows: list[list[int]]
    if isinstance(prompt, str):
        prompts = _parse_prompt(model, [prompt])
        return prompts._replace(join=lambda new: prompts.join(new)[0])
    if isinstance(prompt, Tensor):
        if prompt.ndim not in (1, 2) or prompt.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"prompt: expected integers (length,) or (batch, length), got {tuple(prompt.shape)} "
                f"{prompt.dtype}"
            )
        table = prompt if prompt.ndim == 2 else prompt[None]
        rows = table.tolist()

        def join_tensor(continuations: list[list[int]]) -> Tensor:
            longest = max(map(len, continuations))
            padded = [
                new + (new[-1:] or row[-1:]) * (longest - len(new))
                for row, new in _pairs(rows, continuations)
            ]
            # `view`: the tensor of empty lists would have the shape (B,) instead of (B, 0).
            new = torch.tensor(padded, dtype=prompt.dtype, device=prompt.device).view(len(rows), longest)
            return torch.cat([table, new], 1).view(*prompt.shape[:-1], -1)

        return _Prompts(_not_empty(rows), False, join_tensor)
    items: list[Any] = list(prompt)
    if items and all(isinstance(item, str) for item in items):
        tokenizer = _tokenizer(model)
        texts = [str(item) for item in items]
        rows = [encode_prompt(tokenizer, text) for text in texts]

        def join_text(continuations: list[list[int]]) -> list[str]:
            new = [_decode_new(tokenizer, row, ids) for row, ids in _pairs(rows, continuations)]
            return [text + more for text, more in zip(texts, new, strict=True)]

        return _Prompts(_not_empty(rows), True, join_text)
    if items and all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        rows = [items]
        return _Prompts(rows, False, lambda new: rows[0] + new[0])
    if items and all(isinstance(item, Tensor) and item.ndim == 1 for item in items):
        parsed = [_parse_prompt(model, item) for item in items]
        rows = [prompts.ids[0] for prompts in parsed]
        return _Prompts(
            rows, False, lambda new: [prompts.join([row]) for prompts, row in _pairs(parsed, new)]
        )
    if items and all(
        isinstance(item, Sequence) and all(isinstance(token, int) for token in item) for item in items
    ):
        rows = [list(item) for item in items]
        return _Prompts(
            _not_empty(rows), False, lambda new: [row + added for row, added in _pairs(rows, new)]
        )
    raise ValueError(
        "prompt: expected text, a list of texts, token ids, or a list of lists of token ids, "
        f"got {type(prompt).__name__} of {len(items)}"
    )


def _pairs(rows: Sequence[Any], continuations: list[list[int]]) -> Iterator[tuple[Any, list[int]]]:
    return zip(rows, continuations, strict=True)


def _not_empty(rows: list[list[int]]) -> list[list[int]]:
    if not rows or not all(rows):
        raise ValueError("prompt: expected at least one token in each, got an empty one")
    return rows


def _tokenizer(model: GPT) -> Tokenizer:
    if model.tokenizer is None:
        raise ValueError("prompt: this model has no tokenizer: give token ids instead of text")
    return model.tokenizer


def _stop_condition(model: GPT, stop: Stop) -> Callable[[list[int]], bool]:
    """A function of the new tokens of a row that says whether it ends there."""
    items = [] if stop is None else [stop] if isinstance(stop, int | str) else list(stop)
    tokens: set[int] = set()
    strings: list[str] = []
    for item in items:
        if isinstance(item, str) and item:
            # The name of a special token does not appear in decoded text, so its id is a stop as well.
            token_id = _tokenizer(model).token_to_id(item)
            tokens |= set() if token_id is None else {token_id}
            strings.append(item)
        elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < model.config.vocab_size:
            tokens.add(item)
        else:
            raise ValueError(
                f"stop: expected tokens from 0 to {model.config.vocab_size - 1} or strings, got {item!r}"
            )

    def is_complete(new: list[int]) -> bool:
        if new[-1] in tokens:
            return True
        text = _tokenizer(model).decode(new) if strings else ""
        return any(string in text for string in strings)

    return is_complete


def _decode_new(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text of the new tokens.

    They are decoded after the prompt's last token, since some tokenizers drop a space at the start of a text.
    """
    before: str = tokenizer.decode(prompt[-1:])
    after: str = tokenizer.decode(prompt[-1:] + new)
    return after[len(before) :]


def _decode_stream(tokenizer: Tokenizer, prompt: list[int], tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of the tokens. A character of several tokens is yielded with the last of them."""
    new: list[int] = []
    yielded = 0
    for token in tokens:
        new.append(token)
        text = _decode_new(tokenizer, prompt, new)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[yielded:]
            yielded = len(text)
    if (rest := _decode_new(tokenizer, prompt, new)[yielded:]) != "":
        yield rest
