"""`Capture`: what a capture saw, layer by layer. It knows maps, tokens and names; it does not know models.

Pictures are the business of `regard.show`, which puts itself at `Capture.viewer` when it is imported;
files are that of `storage`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.certificate import Certificate, Evidence
from regard.recorder.summary import LayerSummary, summarise

if TYPE_CHECKING:
    from regard.heads import HeadTable


class LayerData(NamedTuple):
    """What a capture keeps of a layer: its map, or with keep="statistics" only a summary of it."""

    map: AttentionMap | None = None
    values: Tensor | None = None  # (B, G, S, E)
    summary: LayerSummary | None = None

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """(B, H, T, S)."""
        if self.map is not None:
            return self.map.matrix
        if self.summary is None:
            raise ValueError("layer: expected a map or a summary of one, got neither")
        B, H, T = self.summary.entropy.shape
        return B, H, T, self.summary.received.shape[-1]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self if x is not None)


class Layer:
    """One attention of a model, as it ran."""

    def __init__(
        self,
        number: int,
        name: str,
        stack: str,
        map: AttentionMap | None,
        evidence: Evidence,
        heads: Sequence[int],
        values: Tensor | None = None,
        summary: LayerSummary | None = None,
    ) -> None:
        self.number = number
        """Its place in its stack, counted from 0."""
        self.name = name
        """Where it stands in the model: `transformer.h.0.attn`."""
        self.stack = stack
        """"" in a model of one stack; else "encoder", "decoder" or "cross" (the decoder on the encoder)."""
        self.evidence = evidence
        self.heads = tuple(heads)
        """The number in the model of each head of the map."""
        self._kept = LayerData(map, values, summary)

    def kept(self) -> LayerData:
        """What there is of the layer; read now, where it lies in a file."""
        return self._kept

    @property
    def in_memory(self) -> bool:
        """Whether it is held here, and not read from a file."""
        return any(x is not None for x in self._kept)

    @property
    def key(self) -> str:
        """What the layer is called: "3", or "decoder.3"."""
        return f"{self.stack}.{self.number}" if self.stack else str(self.number)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S) of its map."""
        return self._kept.matrix

    @property
    def map(self) -> AttentionMap:
        """(B, H, T, S)."""
        found = self.kept().map
        if found is None:
            raise ValueError(
                f"layer {self.key}: only its statistics were kept: see seen.layer({self.key!r}).summary; "
                'for its map capture again with keep="maps", and with to=folder if memory is short'
            )
        return found

    @property
    def summary(self) -> LayerSummary:
        """An overview and the statistics of rows and keys; computed now, unless the capture kept them."""
        found = self.kept()
        return summarise(self.map) if found.summary is None else found.summary

    @property
    def values(self) -> Tensor | None:
        """(B, G, S, E), if the capture was asked to keep them."""
        return self.kept().values

    @property
    def nbytes(self) -> int:
        """What is kept of the layer, in memory or on disk."""
        return self.kept().nbytes

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return f"Layer({self.key}, {self.name}, {shape}, {self.evidence})"


class Viewer(Protocol):
    """What draws a capture. `regard.show` is one."""

    def show(self, seen: Capture, **options: Any) -> Any: ...

    def figure(self, seen: Capture, layer: int | str, head: int | None, **options: Any) -> Any: ...

    def page(self, seen: Capture, path: str, **options: Any) -> Any: ...

    def in_notebook(self, seen: Capture) -> str: ...


@dataclass
class Capture:
    """What a capture saw. `seen[3]` is the map of layer 3, `seen[3, 5]` that of its head 5."""

    layers: list[Layer] = field(default_factory=list)
    model: str = ""
    """What the model calls itself."""
    ids: Tensor | None = None
    """The tokens that were read (and written, under `generate`), (B, T)."""
    tokens: list[list[str]] | None = None
    """The same as text, one list a batch entry."""
    real: Tensor | None = None
    """Which of them are text and not padding, boolean (B, T); None where all are."""
    boundary: int | None = None
    """How many tokens were the prompt's, where the rest was generated."""
    target_ids: Tensor | None = None
    """What the decoder read (and wrote), (B, T), beside an encoder, whose tokens `ids` are."""
    target_tokens: list[list[str]] | None = None
    """The same as text."""
    missing: dict[str, str] = field(default_factory=dict)
    """The modules that mix tokens and were not captured: the name of each, and its class."""
    fingerprint: str | None = None
    """What `seal` made of the tokens and the layers when they had run."""
    passes: list[Capture] = field(default_factory=list, repr=False)
    """What earlier passes in the same block saw, where this one did not continue them."""

    viewer: ClassVar[Viewer | None] = None

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AttentionMap]:
        return (layer.map for layer in self.layers)

    @property
    def maps(self) -> list[AttentionMap]:
        """The maps of all layers, in the order in which they ran."""
        return list(self)

    def layer(self, key: int | str) -> Layer:
        """A layer by its number, or by its name where there are several stacks: "decoder.3", "cross.0"."""
        found = [x for x in self.layers if x.key == str(key)] or [x for x in self.layers if x.name == key]
        if len(found) != 1:
            known = ", ".join(repr(x.key) for x in self.layers) or "none: nothing ran inside the block"
            raise KeyError(f"layer: expected one of those captured ({known}), got {key!r}")
        return found[0]

    def __getitem__(self, index: int | str | tuple[int | str, int]) -> AttentionMap:
        key, head = index if isinstance(index, tuple) else (index, None)
        layer = self.layer(key)
        if head is None:
            return layer.map
        if head not in layer.heads:
            raise KeyError(f"head: expected one of those captured {list(layer.heads)}, got {head!r}")
        one: AttentionMap = layer.map[:, layer.heads.index(head)]
        return one

    def stack(self, name: str) -> list[AttentionMap]:
        """The maps of one stack in order: "encoder", "decoder" or "cross"."""
        return [layer.map for layer in self.layers if layer.stack == name]

    @property
    def certificate(self) -> Certificate:
        """Layer by layer, how far the maps are from what the model really used."""
        evidence = [layer.evidence for layer in self.layers]
        if self.fingerprint is not None and self.fingerprint != self._fingerprint():
            problem = "the tokens or the layers of this capture are not those that the model ran with"
            evidence = [replace(found, problem=problem) for found in evidence]
        return Certificate([layer.key for layer in self.layers], evidence, self.missing)

    def seal(self) -> None:
        """Note the tokens that were read and the layers that ran: from now on the certificate covers both."""
        self.fingerprint = self._fingerprint()

    def _fingerprint(self) -> str:
        tokens = [None if x is None else x.tolist() for x in (self.ids, self.target_ids)]
        layers = [(layer.key, layer.name, *layer.shape) for layer in self.layers]
        return hashlib.sha256(json.dumps([tokens, layers]).encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """What is kept, in memory or on disk."""
        return sum(layer.nbytes for layer in self.layers)

    def heads(self, **options: Any) -> HeadTable:
        """What every head does: its scores beside their nulls, and labels where they are clear.

        Options are those of `regard.heads.describe`.
        """
        from regard.heads import describe

        return describe(
            self,
            [self._read_by(layer) for layer in self.layers],
            keys=[layer.key for layer in self.layers],
            heads=[layer.heads for layer in self.layers],
            attention_mask=self.real,
            model=self.model,
            **options,
        )

    def _read_by(self, layer: Layer) -> Tensor | None:
        """The tokens that a layer looked at, as far as they are known."""
        ids = self.target_ids if layer.stack == "decoder" and self.target_ids is not None else self.ids
        return ids if ids is not None and layer.stack != "cross" and ids.shape[1] == layer.shape[3] else None

    def show(self, **options: Any) -> Any:
        """Open the capture to look at: a widget in a notebook, a page elsewhere."""
        return self._viewer("show()").show(self, **options)

    def figure(self, layer: int | str, head: int | None = None, **options: Any) -> Any:
        """A Matplotlib figure of a layer, or of one of its heads."""
        return self._viewer("figure()").figure(self, layer, head, **options)

    def save(self, path: str | PathLike[str], **options: Any) -> None:
        """Keep the capture: a folder that `regard.load` opens, or one page if the path ends with .html."""
        if fspath(path).lower().endswith((".html", ".htm")):
            self._viewer("save(page)").page(self, fspath(path), **options)
            return
        from regard.recorder.storage.folder import save

        save(self, path, **options)

    def _repr_html_(self) -> str | None:
        """What a notebook displays: the page while it is small; the plain text if nothing can draw."""
        return None if self.viewer is None else self.viewer.in_notebook(self)

    def _viewer(self, what: str) -> Viewer:
        if self.viewer is None:
            raise RuntimeError(f"{what}: nothing here can draw yet: `import regard.show` first")
        return self.viewer

    def __repr__(self) -> str:
        if not self.layers:
            return "Seen(nothing yet)"
        certificate = self.certificate
        certified = sum(found.certified for found in certificate)
        shapes = ["×".join(map(str, layer.shape)) for layer in self.layers]
        shape = shapes[0] if len(set(shapes)) == 1 else "several shapes"
        parts = [f"{len(self)} layer{'s' * (len(self) > 1)} of {shape}", f"{certified} certified"]
        if self.model:
            parts.insert(0, self.model)
        if self.missing:
            parts.append(f"{len(self.missing)} missing")
        return f"Seen({', '.join(parts)})"
