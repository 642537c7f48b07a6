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
from torch.nn.functional import pad

from regard.attention.arguments import check_whole_number
from regard.gpt.map_hooks import LayerInputs, record_layer_inputs
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
    for step in _steps(model, prompts.ids, max_new_tokens, sampler, stop, cache):
        for row, token in zip(continuations, step.tokens, strict=True):
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
    attention: bool = False,
) -> Iterator[Any]:
    """Yield the continuation of one prompt as it is computed: strings for text, ids for token ids.

    With `attention=True` each new token comes as a pair (token, rows). `rows` has a tensor (H, S) for every
    layer: the weights of the query that predicted the token, which is the last of the S tokens before it, on
    these S tokens. No other row is computed. As text, a character of several tokens comes with the last of
    them, and the ones before it are empty strings. Edges that `regard.block` cuts still have their weight in
    the rows; a capture shows the edited run. The other arguments are those of `generate`.
    """
    prompts = _parse_prompt(model, prompt)
    if len(prompts.ids) != 1:
        raise ValueError(f"prompt: expected one to stream, got {len(prompts.ids)}: use generate for several")
    sampler = Sampler(temperature, top_k, top_p, seed)
    steps = _steps(model, prompts.ids, max_new_tokens, sampler, stop, cache, attention)
    if not prompts.is_text:
        return ((step.tokens[0], step.rows) if attention else step.tokens[0] for step in steps)
    pieces = _decode_stream(_tokenizer(model), prompts.ids[0], steps)
    return _pair_with_rows(pieces) if attention else (piece.text for piece in pieces)


class Step(NamedTuple):
    """One step of generation."""

    tokens: list[int | None]
    """The next token of every prompt, None for one that is complete."""
    rows: list[Tensor]
    """The attention rows (H, S) of every layer, for the first prompt, if they were asked for."""


def _steps(
    model: GPT,
    prompts: list[list[int]],
    limit: int,
    sampler: Sampler,
    stop: Stop,
    cached: bool,
    attention: bool = False,
) -> Iterator[Step]:
    """Check the arguments, then yield the steps."""
    limit = check_whole_number("max_new_tokens", limit, 0)
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
    return _run(model, prompts, limit, sampler, _stop_condition(model, stop), cached, attention)


@torch.inference_mode()
def _run(
    model: GPT,
    prompts: list[list[int]],
    limit: int,
    sampler: Sampler,
    is_complete: Callable[[list[int]], bool],
    cached: bool,
    attention: bool,
) -> Iterator[Step]:
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
            # Recorded step by step, so that nothing is left at the model while the caller has the token.
            with record_layer_inputs(model.attention_layers if attention else []) as records:
                states = model.states(new, attention_mask=attention_mask, cache=caches)  # (B, new, d_model)
            rows = [_newest_row(inputs, now) for inputs in records]
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
            yield Step(row_tokens, rows)
            if all(complete):
                return
    # A caller that abandons the generator closes it, and the model must not stay in eval mode.
    finally:
        model.train(training)


def _newest_row(inputs: LayerInputs, tokens: int) -> Tensor:
    """The weights of the newest token of the first prompt on all tokens so far, (H, tokens).

    A window cache has evicted the first keys, which therefore have no weight.
    """
    row = inputs.newest_row()[0]
    with torch.inference_mode(False):  # an ordinary tensor for the caller
        return pad(row.clone(), (tokens - row.shape[-1], 0))


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
    # A string is a sequence of strings: texts must be told before sequences of sequences.
    if items and all(isinstance(item, str) for item in items):
        tokenizer = _tokenizer(model)
        texts = [str(item) for item in items]
        rows = [encode_prompt(tokenizer, text) for text in texts]

        def join_text(continuations: list[list[int]]) -> list[str]:
            new = [_decode_new(tokenizer, row, ids) for row, ids in _pairs(rows, continuations)]
            return [text + more for text, more in zip(texts, new, strict=True)]

        return _Prompts(_not_empty(rows), True, join_text)
    # True and False are ints to Python.
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


class _Piece(NamedTuple):
    """Some text of a continuation, and the steps that it was complete after."""

    text: str
    steps: list[Step]


def _decode_stream(tokenizer: Tokenizer, prompt: list[int], steps: Iterator[Step]) -> Iterator[_Piece]:
    """Yield the text of the tokens. A character of several tokens is yielded with the last of them."""
    new: list[int] = []
    waiting: list[Step] = []
    yielded = 0
    for step in steps:
        new += [token for token in step.tokens if token is not None]
        waiting.append(step)
        text = _decode_new(tokenizer, prompt, new)
        # The bytes of an unfinished character decode to U+FFFD.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield _Piece(text[yielded:], waiting)
            waiting, yielded = [], len(text)
    if waiting:
        yield _Piece(_decode_new(tokenizer, prompt, new)[yielded:], waiting)


def _pair_with_rows(pieces: Iterator[_Piece]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield a pair for each token: a piece of text with its last token, and empty strings before."""
    for text, steps in pieces:
        yield from (("", step.rows) for step in steps[:-1])
        yield text, steps[-1].rows
