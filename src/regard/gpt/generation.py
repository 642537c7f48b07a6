"""Autoregressive generation: the prompt in one forward pass, then one token at a time.

Prompts of different lengths share a batch: the shorter ones are padded on the left, and the padding is masked
out. This file knows prompts, stop conditions and the loop; `sampler` chooses each token, and the model
computes the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.sampler import Sampler
from regard.gpt.token_batch import pad_rows
from regard.gpt.tokens import encode_prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

Prompt = str | Tensor | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""Text or token ids, one prompt or several. Several may differ in length, except in a tensor (B, T)."""

Stop = int | str | Sequence[int | str] | None
"""Tokens or strings after which generation stops."""


def generate(model: GPT, prompt: Prompt, **options: Any) -> Any:
    """The prompt with its continuation, of the prompt's type: text, a tensor, or lists of token ids.

    - `prompt`: one or several prompts, as text (if the model has a tokenizer) or as token ids.
    - `max_new_tokens`: the longest continuation, 100 tokens unless it is given.
    - `temperature`, `top_k`, `top_p`, `seed`: see `sampler.Sampler`. Temperature 0 is greedy.
    - `stop`: tokens or strings that end a continuation, of which they are part. In a tensor (B, T), rows that
      end early are padded with their last token.
    - `cache=False` recomputes all keys and values for every token: the same result, more slowly.
    """
    rows = _encode(model, prompt)
    continuations: list[list[int]] = [[] for _ in rows]
    for tokens in next_tokens(model, rows, **options):
        for new, token in zip(continuations, tokens, strict=True):
            if token is not None:
                new.append(token)
    return _join(model, prompt, rows, continuations)


def stream(model: GPT, prompt: Prompt, **options: Any) -> Iterator[Any]:
    """Yield the continuation of one prompt as it is computed: strings for text, ids for token ids.

    The `options` are those of `generate`. As text, a character of several tokens comes with the last of them.
    """
    rows = _encode(model, prompt)
    if len(rows) != 1:
        raise ValueError(f"prompt: expected one to stream, got {len(rows)}: use generate for several")
    tokens = (token for (token,) in next_tokens(model, rows, **options) if token is not None)
    return _decode_stream(_tokenizer(model), rows[0], tokens) if _is_text(prompt) else tokens


def next_tokens(
    model: GPT,
    prompts: list[list[int]],
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Stop = None,
    cache: bool = True,
) -> Iterator[list[int | None]]:
    """Check the arguments, then yield the next token of every prompt; None for one that is complete."""
    sampler = Sampler(temperature, top_k, top_p, seed)
    limit = check_whole_number("max_new_tokens", max_new_tokens, 0)
    longest, context_length = max(map(len, prompts)), model.config.context_length
    # A prompt may be as long as the context if nothing is to be added (max_new_tokens=0).
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
    return _run(model, prompts, limit, sampler, _stop_condition(model, stop), cache)


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
    ids = torch.zeros(B, T + limit, dtype=torch.long, device="cpu")
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
    # Dropout would make the continuation random; the mode is restored below, also if the caller stops early.
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
    # A caller that abandons the generator closes it, and the model must not stay in eval mode.
    finally:
        model.train(training)


def _encode(model: GPT, prompt: Prompt) -> list[list[int]]:
    """Prompts as lists of token ids; a ValueError lists the types that a prompt may have."""
    if isinstance(prompt, Tensor):
        if prompt.ndim not in (1, 2) or prompt.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"prompt: expected integers (length,) or (batch, length), got {tuple(prompt.shape)} "
                f"{prompt.dtype}"
            )
        rows: list[list[int]] = (prompt if prompt.ndim == 2 else prompt[None]).tolist()
    else:
        one = isinstance(prompt, str) or (len(prompt) and _is_row(prompt))
        items: list[Any] = [prompt] if one else list(prompt)
        if items and all(isinstance(item, str) for item in items):
            rows = [encode_prompt(_tokenizer(model), text) for text in items]
        elif items and all(map(_is_row, items)):
            rows = [list(item) for item in items]
        else:
            raise ValueError(
                "prompt: expected text, a list of texts, token ids, or a list of lists of token ids, "
                f"got {type(prompt).__name__} of {len(items)}"
            )
    if not rows or not all(rows):
        raise ValueError("prompt: expected at least one token in each, got an empty one")
    return rows


def _is_row(item: Any) -> bool:
    """Whether something is a sequence of token ids. True and False are ints to Python."""
    is_sequence = isinstance(item, Sequence) and not isinstance(item, str)
    return is_sequence and all(isinstance(x, int) and not isinstance(x, bool) for x in item)


def _is_text(prompt: Prompt) -> bool:
    return isinstance(prompt, str) or (not isinstance(prompt, Tensor) and isinstance(prompt[0], str))


def _join(model: GPT, prompt: Prompt, rows: list[list[int]], continuations: list[list[int]]) -> Any:
    """The prompts with their continuations, in the type of the prompt."""
    pairs = list(zip(rows, continuations, strict=True))
    if isinstance(prompt, Tensor):
        longest = max(map(len, continuations))
        padded = [new + (new[-1:] or row[-1:]) * (longest - len(new)) for row, new in pairs]
        # `view`: the tensor of empty lists would have the shape (B,) instead of (B, 0).
        added = torch.tensor(padded, dtype=prompt.dtype, device=prompt.device).view(len(rows), longest)
        return torch.cat([prompt.view(len(rows), -1), added], 1).view(*prompt.shape[:-1], -1)
    if isinstance(prompt, str):
        return prompt + _decode_new(_tokenizer(model), *pairs[0])
    if _is_text(prompt):
        new = [_decode_new(_tokenizer(model), *pair) for pair in pairs]
        return [f"{text}{more}" for text, more in zip(prompt, new, strict=True)]
    joined = [row + new for row, new in pairs]
    return joined[0] if isinstance(prompt[0], int) else joined


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
        # All new tokens each time: a stop string may begin anywhere in an earlier token.
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
    yielded, text = 0, ""
    for token in tokens:
        new.append(token)
        text = _decode_new(tokenizer, prompt, new)
        # The bytes of an unfinished character decode to U+FFFD.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[yielded:]
            yielded = len(text)
    if yielded < len(text):
        yield text[yielded:]
