"""`Capture`: the result of a capture, with a map, the evidence and the tokens of every layer.

It knows maps, tokens and names; it does not know models. Files are written by `storage`. Pictures are drawn
by `regard.show`, which is imported when a picture is asked for and not before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.certificate import Certificate
from regard.recorder.layer import Layer
from regard.recorder.predictions import Predictions
from regard.recorder.storage.folder import save

if TYPE_CHECKING:
    from regard.heads import HeadTable

PAGES = (".html", ".htm")
NO_TEXT = "-"  # in a fingerprint: there was no text to hash


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


@dataclass
class Capture:
    """The attention of a model as it ran.

    `seen[3]` is the map of layer 3 and `seen[3, 5]` that of its head 5. In a model with several stacks a
    layer is named by its stack and number: `seen["decoder.3"]`.
    """

    layers: list[Layer] = field(default_factory=list)
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
    """The modules that mix tokens and were not captured: the class of each, by its name."""
    edits: tuple[str, ...] = ()
    """The interventions under which the model ran, in words: this is then not the model's own run."""
    fingerprint: str | None = None
    """A hash of the tokens and layers, made by `seal` after they ran; the certificate checks it."""
    predictions: Predictions | None = field(default=None, repr=False)
    """What the model expected after each token, if `capture(…, predictions=True)` was asked for it."""
    passes: list[Capture] = field(default_factory=list, repr=False)
    """The captures of earlier forward passes in the same block which this one does not continue."""

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AttentionMap]:
        return (layer.map for layer in self.layers)

    @property
    def maps(self) -> list[AttentionMap]:
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

    def __getitem__(self, index: int | str | tuple[int | str, int]) -> AttentionMap:
        """Return the map of a layer (B, H, T, S) or of one head (B, T, S), by their numbers in the model."""
        if isinstance(index, tuple) and len(index) != 2:
            raise KeyError(f"expected seen[layer] or seen[layer, head], got {len(index)} of them: {index!r}")
        key, head = index if isinstance(index, tuple) else (index, None)
        layer = self.layer(key)
        if head is None:
            return layer.map
        if head not in layer.heads:
            raise KeyError(f"head: expected one of those captured {list(layer.heads)}, got {head!r}")
        head_map: AttentionMap = layer.map[:, layer.heads.index(head)]
        return head_map

    def maps_of(self, stack: str) -> list[AttentionMap]:
        """Return the maps of one stack ("encoder", "decoder" or "cross") in the order in which they ran."""
        return [layer.map for layer in self.layers if layer.stack == stack]

    @property
    def certificate(self) -> Certificate:
        """For every layer, the evidence that its map is what the model used."""
        evidence = [layer.evidence for layer in self.layers]
        if not self._is_as_sealed():
            problem = "the tokens or the layers of this capture are not those that the model ran with"
            evidence = [replace(layer_evidence, problem=problem) for layer_evidence in evidence]
        return Certificate([layer.key for layer in self.layers], evidence, self.missing)

    def seal(self) -> None:
        """Store a hash of the tokens and layers, so that the certificate notices if they are changed."""
        self.fingerprint = self._fingerprint()

    def _is_as_sealed(self) -> bool:
        """Return whether nothing has changed since `seal`. Text may be added where there was none."""
        if self.fingerprint is None:
            return True
        (run, text), (sealed_run, _, sealed_text) = (
            self._fingerprint().split(),
            self.fingerprint.partition(" "),
        )
        return run == sealed_run and sealed_text in (text, NO_TEXT)

    def _fingerprint(self) -> str:
        """Return two hashes: of what ran, and of its tokens as text."""
        tables = (self.ids, self.target_ids, self.attention_mask)
        tokens = [None if x is None else x.tolist() for x in tables]
        layers = [(layer.key, layer.name, layer.heads, *layer.shape) for layer in self.layers]
        text = [self.tokens, self.target_tokens]
        has_text = any(x is not None for x in text)
        run = [tokens, self.boundary, layers, *self.edits]
        return f"{_hash(run)} {_hash(text) if has_text else NO_TEXT}"

    @property
    def nbytes(self) -> int:
        """The bytes that all layers take, in memory or on disk."""
        return sum(layer.nbytes for layer in self.layers)

    def heads(self, **options: Any) -> HeadTable:
        """Return a table with the scores of every head, their baselines, and labels where they are clear.

        `options` are those of `regard.heads.describe`.
        """
        from regard.heads import describe

        return describe(
            self,
            [self.ids_of(layer) for layer in self.layers],
            keys=[layer.key for layer in self.layers],
            heads=[layer.heads for layer in self.layers],
            attention_mask=self.attention_mask,
            model=self.model,
            **options,
        )

    def ids_of(self, layer: Layer) -> Tensor | None:
        """Return the token ids (B, S) of a layer's keys, or None where they are not known."""
        ids = self.target_ids if layer.stack == "decoder" and self.target_ids is not None else self.ids
        return ids if ids is not None and layer.stack != "cross" and ids.shape[1] == layer.shape[3] else None

    def show(self, **options: Any) -> Any:
        """Open the page in the browser, or inline in a notebook; `options` are those of `viewer.show`."""
        from regard.show import viewer

        return viewer.show(self, **options)

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

    def _repr_html_(self) -> str:
        """Return what a notebook displays: the page while it is small, or a summary with what to call."""
        from regard.show import viewer

        return viewer.in_notebook(self)

    def __repr__(self) -> str:
        if not self.layers:
            return "Capture(nothing yet)"
        certified = sum(evidence.certified for evidence in self.certificate)
        shapes = ["×".join(map(str, layer.shape)) for layer in self.layers]
        shape = shapes[0] if len(set(shapes)) == 1 else "several shapes"
        parts = [f"{len(self)} layer{'s' * (len(self) > 1)} of {shape}", f"{certified} certified"]
        if self.model:
            parts.insert(0, self.model)
        if self.missing:
            parts.append(f"{len(self.missing)} missing")
        if self.edits:
            parts.append(f"edited run: {'; '.join(self.edits)}")
        return f"Capture({', '.join(parts)})"
