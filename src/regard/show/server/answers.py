"""The answers to a page's requests: a name and a query give JSON or bytes, a name and a body a job's lines.

HTTP (`app`) and a notebook's comm (`regard.show.widget`) carry the same requests and answers. Reading a new
text, running the model again with cuts and generating need a model: the caller supplies functions for them.
This file knows `Contents` and the limits of requests; it does not know how requests arrive, nor models.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import torch

from regard.recorder import Capture
from regard.recorder.tokens_of_maps.tokens import TextTooLongError
from regard.show.data.contents import Contents
from regard.show.data.cuts import Cut, parse_cuts, random_cuts
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.predictions import mean_loss
from regard.show.data.shown_text import ShownText
from regard.show.data.survey_rows import describe_survey_head
from regard.show.data.text_maps import EditedRun
from regard.show.server.jobs import (
    Line,
    ModelJob,
    ReportProgress,
    SendLine,
    progress_of,
    translate_errors,
)
from regard.show.server.limits import Limits, RefusedError, check_number, check_temperature, check_text
from regard.support.characters import escape

MAX_NUMBER = 1 << 31  # of any number in a request
RANDOM_TOKENS = 1024  # of a text up to which a cut is compared with random heads, which takes as long again
PATIENT = frozenset({"thumbs", "layer_heads", "heads", "retained"})
"""The answers that take a while, and wait for the others, see `work_queue`."""


class Read(Protocol):
    """A function that runs a model on a text and captures it, reporting its progress.

    It reads the `first` tokens only, if that is given, and `continuation`, the ids of tokens that the model
    generated, after the text. It raises `TextTooLongError` for a text that the model cannot read.
    """

    def __call__(
        self,
        text: str,
        report: ReportProgress,
        /,
        *,
        first: int | None = None,
        continuation: Sequence[int] = (),
    ) -> Capture: ...


class RunCut(Protocol):
    """A function that runs a model again on a captured text with some of it cut, and captures that run."""

    def __call__(self, capture: Capture, cuts: Sequence[Cut], report: ReportProgress, /) -> Capture: ...


class Generate(Protocol):
    """A function that continues a text; every item is a line for the page (see `regard.gpt.cache_demo`)."""

    def __call__(self, text: str, *, tokens: int, temperature: float = 0.0) -> Iterable[Line]: ...


@dataclass(frozen=True)
class Json:
    """An answer that is sent as JSON."""

    content: Any

    def encode(self) -> bytes:
        """Return the JSON in ASCII: a token may be half of a character, which UTF-8 cannot encode."""
        return json.dumps(self.content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Query:
    """The parameters of a request, checked as they are read."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters

    def __contains__(self, name: str) -> bool:
        return name in self.parameters

    def __getitem__(self, name: str) -> str:
        if name not in self.parameters:
            raise RefusedError(400, f"{name}: expected this parameter in the request, got none")
        return self.parameters[name]

    def number(self, name: str) -> int:
        """Return a parameter as a whole number from 0."""
        return check_number(name, self[name], 0, MAX_NUMBER)

    @property
    def head(self) -> int | str:
        """The head's number, or "mean"."""
        return "mean" if self["head"] == "mean" else self.number("head")

    @property
    def quantity(self) -> Quantity:
        """What cells are made of: by default the weights of tokens."""
        words: dict[str, Any] = {name: self[name] for name in ("shade", "units") if name in self}
        for name in ("units_of", "position", "token"):
            if name in self:
                words[name] = self.number(name)
        return Quantity.parse(**words)


@dataclass
class Answers:
    """What a page can request: numbers of the captures by `computed`, work of a model by `jobs`.

    Arguments:
        contents: the captures to show.
        read: captures a new text; None if there is no model.
        generate: continues a text; None if there is no model that can.
        run_cut: runs the model again with some of it cut; None without a model.
        limits: bounds on requests.
    """

    contents: Contents
    read: Read | None = None
    generate: Generate | None = None
    run_cut: RunCut | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.contents.can |= {
            "capture": self.read is not None,
            "generate": self.generate is not None,
            "cut": self.run_cut is not None,
            "retained": True,
        }
        self.contents.forget_meta()

    def compute(self, name: str, parameters: Mapping[str, str]) -> Json | bytes:
        """Return the answer to a request for numbers, or raise `RefusedError`. It may take a while.

        Arguments:
            name: what is requested, one of `computed`.
            parameters: the query, as texts.
        """
        if name not in self.computed:
            raise RefusedError(404, f"there is no answer named {name!r}")
        answer = translate_errors(partial(self.computed[name], self), Query(parameters))
        return answer if isinstance(answer, bytes) else Json(answer)

    def prepare(self, name: str, body: object) -> Json | ModelJob:
        """Return the job for a request, or its answer where nothing needs to run, or raise `RefusedError`.

        Arguments:
            name: what is requested, one of `jobs`.
            body: the request's JSON object.
        """
        if name not in self.jobs:
            raise RefusedError(404, f"there is no job named {name!r}")
        if not isinstance(body, dict):
            raise RefusedError(400, 'expected a JSON object, such as {"text": "…"}')
        return translate_errors(partial(self.jobs[name], self), body)

    def _text(self, query: Query) -> ShownText:
        return self.contents[query.number("text")]

    def _thumbs(self, query: Query) -> bytes:
        """Return the pictures of a layer's heads, and after them each head's sink key and its share."""
        thumbs, sinks, _ = self._text(query).thumbnail(query["layer"])
        pairs = torch.tensor(
            [[sink["key"], sink["share"]] for sink in sinks], dtype=torch.float64, device="cpu"
        )
        # <f8 and <f4: JavaScript's typed arrays are little-endian on every machine that runs a browser.
        return thumbs.tobytes() + pairs.numpy().astype("<f8", copy=False).tobytes()

    def _tile(self, query: Query) -> bytes:
        head, z, i, j = (query.number(name) for name in ("head", "z", "i", "j"))
        mass, peak = self._text(query).tile(query["layer"], head, z, i, j, query.quantity)
        return _floats(mass) + _floats(peak)

    def _row(self, query: Query) -> bytes:
        text, row = self._text(query), query.number("row")
        return _floats(text.row(query["layer"], query.head, row, query.quantity))

    def _column(self, query: Query) -> bytes:
        text, col = self._text(query), query.number("col")
        return _floats(text.column(query["layer"], query.head, col, query.quantity))

    def _steps(self, query: Query) -> dict[str, Any]:
        return self._text(query).steps(query["layer"], query.number("head"), query.number("row"))

    def _survey_head(self, query: Query) -> dict[str, Any]:
        if self.contents.survey is None:
            raise RefusedError(404, "this page shows no survey")
        return describe_survey_head(self.contents.survey, query["layer"], query.number("head"))

    def _capture(self, body: Mapping[str, Any]) -> ModelJob:
        if self.read is None:
            raise RefusedError(404, "this page shows a capture without a model, so it cannot read new texts")
        read, text, contents = self.read, check_text(body.get("text"), self.limits), self.contents
        options = self._reading_options(body)
        # Edited runs take the place of one another, and do not count.
        if len(contents.texts) - len(contents.edited) - len(contents.removed) >= self.limits.texts:
            raise RefusedError(
                409, f"The page holds {self.limits.texts} texts, which is its limit: remove one of them."
            )

        def work(send_line: SendLine) -> None:
            try:
                capture = read(text, progress_of(send_line), **options)
                # Keys, since a capture with a cache has fewer queries than tokens.
                tokens = max((layer.shape[3] for layer in capture.layers), default=0)
                if tokens > self.limits.tokens:
                    raise TextTooLongError(tokens, self.limits.tokens)
            except TextTooLongError as error:
                send_line({"too_long": {"tokens": error.tokens, "most": error.most}})
            else:
                send_line({"text": contents.add(capture)})

        return ModelJob("reading a text", work)

    def _reading_options(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a request says of how its text is read: see `Read`."""
        options: dict[str, Any] = {}
        if (first := body.get("first")) is not None:
            options["first"] = check_number("first", first, 1, self.limits.tokens)
        if (ids := body.get("continuation")) is not None:
            if not isinstance(ids, list) or len(ids) > self.limits.generated:
                raise RefusedError(
                    400, f"continuation: expected a list of at most {self.limits.generated} token ids"
                )
            options["continuation"] = [check_number("continuation", x, 0, MAX_NUMBER) for x in ids]
        return options

    def _cut(self, body: Mapping[str, Any]) -> ModelJob:
        """Run the model again on a text with cuts; this run takes the place of the text's earlier one."""
        if self.run_cut is None:
            raise RefusedError(404, "this page has no model that could run with something cut")
        run_cut, contents = self.run_cut, self.contents
        number = check_number("text", body.get("text"), 0, MAX_NUMBER)
        run = contents[number].run
        text = number if run is None else run.text
        seen = contents.texts[text]
        cuts = parse_cuts(body.get("cuts"), seen)
        # Without predictions there is no loss to compare.
        is_short = seen.predictions is not None and seen.predictions.losses.shape[1] <= RANDOM_TOKENS
        others = random_cuts(cuts, seen) if is_short and body.get("random", True) else None

        def work(send_line: SendLine) -> None:
            capture = run_cut(seen, cuts, progress_of(send_line))
            loss = None
            # A random cut may be refused where the chosen one is not: another layer's mask hides its edge.
            with suppress(ValueError):
                if others is not None:
                    random = run_cut(seen, others, progress_of(send_line))
                    loss = mean_loss(random.predictions, contents.batch_index)
            # Sending fails if the client has gone: then nothing takes the place of the earlier run.
            send_line({"progress": {"doing": "comparing", "done": 1, "of": 1}})
            edited = EditedRun(text, tuple(cuts), loss)
            send_line({"text": contents.add(capture, contents.titles[text], edited)})

        return ModelJob("running with something cut", work)

    def _remove(self, body: Mapping[str, Any]) -> Json:
        """Remove a text or an edited run and answer with the number of the text to show next."""
        number = check_number("text", body.get("text"), 0, MAX_NUMBER)
        return Json({"text": self.contents.remove(number)})

    def _generate(self, body: Mapping[str, Any]) -> ModelJob:
        if self.generate is None:
            raise RefusedError(404, "this page has no model that can generate text")
        generate, text = self.generate, check_text(body.get("text"), self.limits)
        most = self.limits.generated
        tokens = check_number("tokens", body.get("tokens", min(32, most)), 1, most)
        temperature = check_temperature(body.get("temperature", 0))

        def work(send_line: SendLine) -> None:
            for line in generate(text, tokens=tokens, temperature=temperature):
                send_line(line)

        return ModelJob("generating", work)

    # Of the class: an instance that held its own methods would keep its threads until Python collects cycles.
    computed: ClassVar[dict[str, Callable[[Answers, Query], Any]]] = {
        "meta": lambda answers, query: answers.contents.meta,
        "thumbs": _thumbs,
        "heads": lambda answers, query: answers._text(query).heads(),
        "layer_heads": lambda answers, query: answers._text(query).layer_heads(query["layer"]),
        "attribution": lambda answers, query: answers._text(query).attribution(query.quantity),
        "tile": _tile,
        "row": _row,
        "column": _column,
        "steps": _steps,
        "retained": lambda answers, query: answers._text(query).layer_retained(query["layer"]),
        "prediction": lambda answers, query: answers._text(query).prediction(query.number("position")),
        "survey_head": _survey_head,
    }
    """What each answer is computed by. Bytes are sent as they are, all else as JSON."""
    jobs: ClassVar[dict[str, Callable[[Answers, Mapping[str, Any]], Json | ModelJob]]] = {
        "capture": _capture,
        "generate": _generate,
        "cut": _cut,
        "remove": _remove,
    }
    """What each job is prepared by."""


def log_failure(name: str, error: Exception) -> str:
    """Log an error that no request should cause, and return a sentence for the reader."""
    text = f"a request failed: {name}\n{''.join(traceback.format_exception(error))}"
    logging.getLogger(__name__).error("%s", escape(text))
    return f"internal error: {type(error).__name__}: {error}"


def _floats(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().astype("<f4", copy=False).tobytes()
