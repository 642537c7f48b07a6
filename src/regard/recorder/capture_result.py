"""`Capture`: the result of a capture, with a map, the evidence and the tokens of every layer.

It knows maps, tokens and names; it does not know models. Files are written by `storage`. Pictures are drawn
by `regard.show`, which is imported when a picture is asked for and not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from regard.maps import WeightedMap
from regard.pictures.patch_layout import Pictures
from regard.recorder.certificates.certificate import Certificate, ShardEvidence, join_shard_evidence
from regard.recorder.certificates.foreign_weights import foreign_layer
from regard.recorder.contributions.attribution import Attribution, attribute
from regard.recorder.contributions.output_projection import OutputProjection
from regard.recorder.contributions.residual_stream import ResidualStream
from regard.recorder.contributions.rollout import roll_out, select_stack
from regard.recorder.fingerprint import fits, make_fingerprint
from regard.recorder.layer import Layer, LayerList, LayerMap, shard_evidence
from regard.recorder.placement import ShardId
from regard.recorder.storage.capture_folder import save
from regard.recorder.tokens_of_maps.predictions import Predictions
from regard.recorder.tokens_of_maps.text_layout import check_not_padding, token_positions

if TYPE_CHECKING:
    from regard.heads import HeadTable
    from regard.policies.retention import Retained, RetentionCurve
    from regard.policies.rounded_cache import Rounded
    from regard.spans.span_mass import Parts
    from regard.spans.table import SpanTable

PAGES = (".html", ".htm")


@dataclass
class Capture:
    """The attention of a model as it ran.

    `seen[3]` is the map of layer 3 and `seen[3, 5]` that of its head 5. In a model with several stacks a
    layer is named by its stack and number: `seen["decoder.3"]`.
    """

    layers: list[Layer] = field(default_factory=LayerList)
    """The captured layers, in the order in which they ran."""
    model: str = ""
    """The name that the model was loaded by, or its class."""
    ids: Tensor | None = None
    """The token ids that were read (and written, under `generate`), (B, T)."""
    tokens: list[list[str]] | None = None
    """The same tokens as text, one list for each batch entry."""
    attention_mask: Tensor | None = None
    """True for tokens and False for padding, boolean (B, T); None where nothing is padding."""
    boundary: int | None = None
    """The number of tokens in the prompt, if the model generated the others."""
    target_ids: Tensor | None = None
    """The token ids that a decoder beside an encoder read (and wrote), (B, T); `ids` are the encoder's."""
    target_tokens: list[list[str]] | None = None
    """The decoder's tokens as text."""
    missing: dict[str, str] = field(default_factory=dict)
    """The attention that was not captured: the class of each module, or the reason, by its name."""
    other_mixers: dict[str, str] = field(default_factory=dict)
    """The modules that mix tokens without being attention, as convolutions and recurrent layers do."""
    edits: tuple[str, ...] = ()
    """The interventions under which the model ran, in words: this is then not the model's own run."""
    fingerprint: str | None = None
    """A hash of the tokens and layers, made by `seal` after they ran; the certificate checks it."""
    is_whole: bool = True
    """Whether all layers and heads of the model were selected."""
    residual: ResidualStream | None = field(default=None, repr=False)
    """What the residual stream is made of, if the capture was made with `contributions=True`."""
    predictions: Predictions | None = field(default=None, repr=False)
    """What the model expected after each token, if `capture(…, predictions=True)` was asked for it."""
    pictures: Pictures | None = field(default=None, repr=False)
    """The pictures that a vision model read, and which tokens are their patches; None without any."""
    shard: ShardId | None = None
    """Which part of a capture this is, if several processes run the model; None if it is all of it."""
    elsewhere: tuple[ShardEvidence, ...] = field(default=(), repr=False)
    """The evidence of the other ranks, if several processes run the model; what they captured is theirs."""
    passes: list[Capture] = field(default_factory=list, repr=False)
    """The captures of earlier forward passes in the same block which this one does not continue."""

    def __post_init__(self) -> None:
        if not isinstance(self.layers, LayerList):
            self.layers = LayerList(self.layers)

    @classmethod
    def from_tensors(
        cls,
        layers: Sequence[Mapping[str, Any]],
        *,
        model: str = "",
        ids: Tensor | None = None,
        tokens: list[list[str]] | None = None,
    ) -> Capture:
        """Make a capture of the attention that another engine has computed, certified by the same rule.

        Arguments:
            layers: for each layer "q" (B, H, T, D), "k" and "v" (B, G, S, D), as they entered the attention,
                after rotary positions and norms, and "output" (B, H, T, E), before any projection; and, where
                the layer has them, "mask", "scale", "softcap" and "sinks" as in `regard.attend`, and "name".
            model: the name of the model.
            ids, tokens: the token ids (B, T) that it read, and the same as text.

        >>> import torch, regard
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> output = regard.attend(q, k, v, mask=regard.causal)
        >>> regard.Capture.from_tensors([{"q": q, "k": k, "v": v, "output": output, "mask": regard.causal}])
        Capture(1 layer of 1×2×5×5, 1 certified)
        """
        return cls([foreign_layer(i, fields) for i, fields in enumerate(layers)], model, ids, tokens)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerMap]:
        return (layer.map for layer in self.layers)

    @property
    def maps(self) -> list[LayerMap]:
        """The maps of all layers, in the order in which they ran."""
        return list(self)

    def layer(self, key: int | str) -> Layer:
        """Return a layer by its key (3, or "decoder.3") or by its module's name.

        A number may also be written as text, as it is in an address or on a command line: "3".
        """
        layers = [layer for layer in self.layers if str(layer.key) == str(key)]
        layers = layers or [layer for layer in self.layers if layer.name == key]
        if len(layers) != 1:
            keys = ", ".join(repr(layer.key) for layer in self.layers) or "none: nothing ran inside the block"
            raise KeyError(f"layer: expected one of those captured ({keys}), got {key!r}")
        return layers[0]

    def __getitem__(self, index: int | str | tuple[int | str, int]) -> LayerMap:
        """Return the map of a layer (B, H, T, S) or of one head (B, T, S), by their numbers in the model."""
        if isinstance(index, tuple) and len(index) != 2:
            raise KeyError(f"expected seen[layer] or seen[layer, head], got {len(index)} of them: {index!r}")
        key, head = index if isinstance(index, tuple) else (index, None)
        layer = self.layer(key)
        if head is None:
            return layer.map
        return layer.head_map(head)

    def maps_of(self, stack: str) -> list[LayerMap]:
        """Return the maps of one stack ("encoder", "decoder" or "cross") in the order in which they ran."""
        return [layer.map for layer in self.layers if layer.stack == stack]

    @property
    def certificate(self) -> Certificate:
        """For every layer, the evidence that its map is what the model used: that of all ranks together."""
        evidence = [layer.evidence for layer in self.layers]
        if self.fingerprint is not None and not fits(self.fingerprint, *self._sealed_data()):
            problem = "the tokens or the layers of this capture are not those that the model ran with"
            evidence = [replace(layer_evidence, problem=problem) for layer_evidence in evidence]
        if not self.elsewhere:
            keys = [layer.key for layer in self.layers]
            return Certificate(keys, evidence, self.missing, self.other_mixers)
        parts: dict[int | str, list[ShardEvidence]] = {}
        for part in (*map(shard_evidence, self.layers, evidence), *self.elsewhere):
            parts.setdefault(part.key, []).append(part)
        keys = sorted(parts, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0))
        evidence = [join_shard_evidence(parts[key]) for key in keys]
        return Certificate(keys, evidence, self.missing, self.other_mixers)

    def seal(self) -> None:
        """Store a hash of the tokens and layers, so that the certificate notices if they are changed."""
        self.fingerprint = make_fingerprint(*self._sealed_data())

    def _sealed_data(self) -> tuple[Sequence[Tensor | None], Sequence[Any], Sequence[Any]]:
        """Return what a fingerprint is made of: tables of tokens, the run and its text."""
        layers = [(x.key, x.name, x.heads, *x.shape, *(x.placement or ())) for x in self.layers]
        tables = (self.ids, self.target_ids, self.attention_mask)
        return tables, (self.boundary, layers, *self.edits), [self.tokens, self.target_tokens]

    @property
    def nbytes(self) -> int:
        """The bytes that all layers take, in memory or on disk."""
        return sum(layer.nbytes for layer in self.layers)

    def heads(self, **options: Any) -> HeadTable:
        """Return a table with the scores of every head, their baselines, and labels where they are clear.

        `options` are those of `regard.heads.describe`.
        """
        from regard.heads.tables.description import describe

        table = describe(
            self,
            [self.ids_of(layer) for layer in self.layers],
            keys=[layer.key for layer in self.layers],
            heads=[layer.heads for layer in self.layers],
            attention_mask=self.attention_mask,
            model=self.model,
            patches=None if self.pictures is None else [self.pictures.tower_axes(x.key) for x in self.layers],
            **options,
        )
        return table.with_token_texts(self.token_text)

    def spans(
        self, rows: Parts, cols: Parts | None = None, *, batch: int | None = None, stack: str | None = None
    ) -> SpanTable:
        """Return how much attention each part of a text gives to each part: by head, by layer, and the mean.

        - `rows`: the parts whose queries attend, as `regard.spans.words(…)`, or increasing positions to cut
          at. Positions count from the first token of the text, without padding.
        - `cols`: the parts that are attended to, by default the same.
        - `batch`: which text, if the capture has several.
        - `stack`: "encoder", "decoder" or "cross", in a model that has several; in "cross", `rows` are of the
          decoder's tokens and `cols` of the encoder's.

        A number is the mean over the queries of a row span of the weight on all keys of a column span. What a
        head gives to its sink key has a column of its own; `table.uniform` is the same for uniform attention.
        """
        from regard.spans.span_mass import measure_spans

        return measure_spans(self, rows, cols, batch=batch, stack=stack)

    def retained(
        self,
        policy: Any,
        budget: int | Sequence[int] | None = None,
        *,
        every: int | None = None,
        baselines: bool = True,
    ) -> Retained | RetentionCurve:
        """Return what a cache policy or a sparse selection leaves of the attention, exactly, at any length.

        - `policy`: a name such as "h2o", one of `regard.policies` with its settings, a function of a
          `regard.policies.CacheState`, a mask that shows the kept keys, or "own" for what the layers
          themselves select; or a list of policies with budgets.
        - `budget`: the number of keys that a cache has room for, for each key/value head; or several.
        - `every`: how many keys are evicted at a time, by default an eighth of the budget.
        - `baselines`: whether to measure as many random keys and the best possible choice as well.

        One policy at one budget gives a `Retained` with `.share` and `.error`, (layers, B, H, T) each, which
        needs a capture with `values=True` for the error; several give a `RetentionCurve`. Shares are of the
        attention of this run, in which nothing was evicted.
        """
        from regard.policies.retention import cached_layers, retain

        return retain(cached_layers(self.layers), policy, budget, every=every, baselines=baselines)

    def rounded(self, bits: int, **options: Any) -> Rounded:
        """Return what changes if the keys and values of every layer are rounded to so many `bits`.

        The result has the total variation of every row's weights and the error of every head's output.
        `options` are those of `regard.policies.rounded_cache.measure_rounding`.
        """
        from regard.policies.retention import cached_layers
        from regard.policies.rounded_cache import round_layers

        return round_layers(cached_layers(self.layers), bits, **options)

    def ids_of(self, layer: Layer) -> Tensor | None:
        """Return the token ids (B, S) of a layer's keys, or None where they are not known."""
        if self.pictures is not None and self.pictures.is_tower(layer.key):
            return None
        ids = self.target_ids if layer.stack == "decoder" and self.target_ids is not None else self.ids
        if ids is None or layer.stack == "cross" or layer.evidence.unplaced is not None:
            return None
        return ids if tuple(ids.shape) == (layer.shape[0], layer.shape[3]) else None

    def output_projection(self, layer: int | str) -> OutputProjection:
        """Return the linear layer through which a layer's heads write to the residual stream.

        `layer` is its key. The capture has to be made with `contributions=True`.
        """
        key, residual = self.layer(layer).key, self._recorded_residual("output_projection")
        if key not in residual.projections:
            reason = residual.not_found.get(key, "it did not run")
            raise ValueError(f"layer {key}: its output projection is not known: {reason}")
        return residual.projections[key]

    def value_weighted(self, layer: int | str) -> WeightedMap:
        """Return the map of a layer with each weight times the size of what its key would add.

        Its entries are A_ij · ‖W_h v_j‖, (B, H, T, S): a key with a large weight and a small value adds
        little. `layer` is its key. The capture has to be made with `contributions=True`.
        """
        captured = self.layer(layer)
        m = captured.softmax_map("value-weighted attention")
        return m.weighted(self.output_projection(layer).norms_of(captured))

    def attribution(
        self, token: int | str, against: int | str | None = None, position: int = -1, batch: int = 0
    ) -> Attribution:
        """Return what a logit owes to the embedding, to each head and to each MLP, which add up to it.

        - `token`: the token whose logit it is: its id, or a text that is exactly one token (" cat").
        - `against`: another token; then it is the difference of the two logits.
        - `position`: the position of the token before, whose row of logits it is, counted as in `ids`.
        - `batch`: the number of the text in the batch.

        The norms' scales are held fixed. The capture has to be made with `contributions=True`.
        """
        residual = self._recorded_residual("attribution")
        names = [self._token_name(x) for x in (token, against) if x is not None]
        if self.target_ids is None:  # a decoder's tokens are not those that the mask is about
            length = sum(x.length for x in residual.passes)
            check_not_padding(self.attention_mask, position, batch, length)
        return attribute(
            residual,
            residual.id_of("token", token),
            None if against is None else residual.id_of("against", against),
            position,
            batch,
            " against ".join(names),
            self.layer,
        )

    def _token_name(self, token: int | str) -> str:
        """Return how a token is written in a description: as text if it is known."""
        if isinstance(token, str):
            return repr(token)
        text = self.token_text(token)
        return repr(text) if text else f"token {token}"

    def token_text(self, token: int) -> str:
        """Return the text of a token id that the capture holds; "" if that is not known."""
        for ids, tokens in ((self.ids, self.tokens), (self.target_ids, self.target_tokens)):
            if ids is not None and tokens is not None:
                for row, texts in zip(ids.tolist(), tokens, strict=True):
                    if token in row:
                        return str(texts[row.index(token)])
        return ""

    def _recorded_residual(self, method: str) -> ResidualStream:
        if self.residual is None:
            raise ValueError(
                f"{method}: expected a capture made with contributions=True, got one without: write "
                "regard.capture(model, …, contributions=True); what it adds is in memory only, and is not "
                "saved to a folder"
            )
        return self.residual

    def rollout(
        self,
        position: int | None = -1,
        batch: int = 0,
        by: Literal["attention", "value"] = "attention",
        stack: str | None = None,
    ) -> Tensor:
        """Return how much of each token reaches a position through all layers: (T,), which sums to 1.

        Each layer passes on half by its residual connection and half by attention, averaged over its heads.
        The weights of a layer with sink logits are divided by what is left for the keys.

        - `position`: the position of the query in the last layer, counted as in `ids`, or None for the mean
          over the tokens of the text, as an encoder reads them whose answer is the mean of its states.
        - `batch`: the number of the text in the batch.
        - `by`: "attention", or "value" for weights times ‖W_h v_j‖, with rows that sum to 1, which needs a
          capture with `contributions=True`.
        - `stack`: the stack, such as "encoder", in a model with several; attention to other stacks is left
          out.
        """
        if by not in ("attention", "value"):
            raise ValueError(f"by: expected 'attention' or 'value', got {by!r}")
        not_captured = [*self.missing, *self.other_mixers]
        layers = select_stack(self.layers, stack, is_whole=self.is_whole, not_captured=not_captured)
        B, _, T, _ = layers[0].shape
        if not 0 <= batch < B:
            raise ValueError(f"batch: expected a number from 0 to {B - 1}, got {batch}")
        if position is not None and not -T <= position < T:
            raise ValueError(f"position: expected one of the {T} tokens, got {position}")
        if position is not None and layers[0].stack != "decoder":
            check_not_padding(self.attention_mask, position, batch, T)
        norms = [self.output_projection(x.key).norms_of(x)[batch] for x in layers] if by == "value" else None
        # The mask is that of the text an encoder-decoder model reads, not of what it writes.
        mask = None if layers[0].stack == "decoder" else self.attention_mask
        positions = token_positions(mask, batch, T) if position is None else position
        return roll_out([layer.softmax_map("rollout")[batch] for layer in layers], positions, norms)

    def show(self, **options: Any) -> Any:
        """Open the page in the browser, or inline in a notebook; `options` are those of `viewer.show`."""
        from regard.show import viewer

        return viewer.show(self, **options)

    def widget(self, **options: Any) -> Any:
        """Return the page as a notebook's widget, in step with Python: `w.head = (5, 3)`, `w.cell`.

        It needs the extra `regard[widget]`. `options` are those of `regard.show.widget.widget`.
        """
        from regard.show.widget import widget

        return widget(self, **options)

    def figure(self, layer: int | str, head: int | None = None, **options: Any) -> Any:
        """Draw a layer, or one `head` of it, with Matplotlib and return the figure.

        `layer` is its key and `head` a number in the model. `options` are those of `regard.show.figure`.
        """
        from regard.show.figures import figure

        return figure(self, layer, head, **options)

    def to_html(self, path: str | PathLike[str], **options: Any) -> Path:
        """Write the page with its data as one HTML file that opens anywhere, offline, and return its path.

        `options` are those of `regard.show.saved.bundle.write`.
        """
        from regard.show.saved.bundle import write

        return write(self, path, **options)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the capture to a folder, which `regard.load(folder)` opens again.

        If the folder holds a capture, it is replaced once the new one is complete.
        """
        if fspath(folder).lower().endswith(PAGES):
            raise ValueError(
                f"folder: expected a folder to write the capture to, got {fspath(folder)!r}: "
                f"write seen.to_html({fspath(folder)!r}) for the page as one HTML file"
            )
        save(self, folder)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a picture of the most telling head and what it does."""
        from regard.show.capture_output import capture_output

        return capture_output(self)

    def __repr__(self) -> str:
        if not self.layers:
            return "Capture(nothing yet)"
        certified = sum(evidence.certified for evidence in self.certificate)
        shapes = ["×".join(map(str, layer.shape)) for layer in self.layers]
        shape = shapes[0] if len(set(shapes)) == 1 else "several shapes"
        parts = [f"{len(self)} layer{'s' * (len(self) > 1)} of {shape}", f"{certified} certified"]
        if self.model:
            parts.insert(0, self.model)
        if unplaced := sum(layer.evidence.unplaced is not None for layer in self.layers):
            parts.append(f"{unplaced} without tokens")
        if self.missing:
            parts.append(f"{len(self.missing)} missing")
        if self.other_mixers:
            parts.append(f"{len(self.other_mixers)} not attention")
        if self.edits:
            parts.append(f"edited run: {'; '.join(self.edits)}")
        return f"Capture({', '.join(parts)})"
