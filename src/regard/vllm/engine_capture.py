"""`EngineCapture`: watches the attention layers of one vLLM worker and writes what each request attended to.

After a layer's implementation has run, its new queries and the keys and values that it read from the paged
cache become rows of a map, which is compared with the implementation's own output there and then. Two
functions are wrapped as attributes of single objects, so that nothing is left behind: the `forward` of every
layer's implementation, and the `build` of the metadata, which says which rows belong to which request.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.recorder.attention_call import AttentionCall
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.certificate import ROWS
from regard.recorder.certificates.output_comparison import examine
from regard.recorder.layer import VALUES
from regard.recorder.placement import ShardId
from regard.recorder.sources.structure_of_models.layer_names import assign_layer_ids
from regard.recorder.storage.capture_folder import save_shard
from regard.support.override import SharedOverride
from regard.vllm.attention_settings import (
    UnsupportedLayerError,
    WatchedLayer,
    place_heads,
    read_settings,
)
from regard.vllm.block_layout import BlockLayout
from regard.vllm.last_token import LastToken, RequestMark, read_mark
from regard.vllm.request_record import LayerRecord, LayerStep, RequestRecord

STEP = "regard_step"
"""The attribute of vLLM's metadata that holds the step which it was built for."""
RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$")  # what vLLM appends to the id of a request


@dataclass(frozen=True)
class EngineStep:
    """Which requests a step computes: request i has the rows from `starts[i]` up to `starts[i + 1]`."""

    request_ids: list[str]
    starts: list[int]
    lengths: list[int]
    """The number of keys of each request, the new ones included."""
    blocks: Tensor
    """The numbers of each request's blocks, in the group of layers that share them."""
    is_causal: bool


class RequestRows(NamedTuple):
    """The rows of one request that a layer computes in a step."""

    request_id: str
    first: int
    """The position of the first row."""
    query: Tensor  # (T, H, D)
    output: Tensor  # what vLLM computed, (T, H, E) or (T, H·E)
    cache: Tensor
    blocks: Tensor
    """The numbers of the request's blocks in the cache."""


class EngineCapture:
    """The capture of one worker, from `attach` to `finish`.

    - `runner`: the worker's model runner.
    - `modules`: the attention modules of the model, by name.
    - `folder`: gets a folder for each request; None if none is captured.
    - `rank`, `ranks`: the number of this worker among those that share the heads, and how many these are.
    - `total_kv_heads`: the number of key/value heads in a layer of the model, on all ranks.
    - `layers`: the numbers or names of the layers to capture; None captures all.
    - `values`: whether to store the values too.
    - `verify`: whether to compare every row with the output, and not 64 of each step.
    - `marked_only`: whether to leave requests alone that have no mark in their `extra_args`.
    - `model`: the name of the model; `decode` turns token ids (1, S) into text.
    """

    def __init__(
        self,
        runner: Any,
        modules: dict[str, Any],
        folder: Path | None,
        *,
        rank: int = 0,
        ranks: int = 1,
        total_kv_heads: int = 0,
        layers: Collection[int | str] | None = None,
        values: bool = False,
        verify: bool = False,
        marked_only: bool = False,
        model: str = "",
        decode: Callable[[Tensor], list[list[str]]] | None = None,
    ) -> None:
        self.runner, self.modules, self.folder = runner, modules, folder
        self.rank, self.ranks, self.total_kv_heads = rank, ranks, total_kv_heads
        self.values, self.max_rows = values, None if verify else ROWS
        self.model, self.decode = model, decode
        self.unmarked = None if marked_only or folder is None else RequestMark(True, {})
        self.is_whole = layers is None
        self.error: Exception | None = None
        """What ended the capture before `finish`."""
        self.missing: dict[str, str] = {}
        """The modules that mix tokens and are not captured, each with the reason."""
        self.watched = self._choose_layers(layers)
        self.written: dict[str, dict[str, Any]] = {}
        """What was written of each request, as `Worker.stop` returns it."""
        self._layouts: dict[str, BlockLayout] = {}
        self._records: dict[str, RequestRecord] = {}
        self._marks: dict[str, RequestMark | None] = {}
        self._last_tokens: dict[str, LastToken] = {}
        self._undo = ExitStack()

    def _choose_layers(self, layers: Collection[int | str] | None) -> dict[str, WatchedLayer]:
        """Return the layers to watch, by name; the others are `missing`, or were not asked for."""
        modules, settings, placements = self.modules, {}, {}
        for name, module in modules.items():
            try:
                found = read_settings(module)
                placements[name] = place_heads(found, self.rank, self.ranks, self.total_kv_heads)
                settings[name] = found
            except UnsupportedLayerError as error:
                self.missing[name] = str(error)
        if not settings:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self.missing.items())[:1])
            raise ValueError(f"start: none of the {len(modules)} attention layers can be captured: {reasons}")
        layer_ids = assign_layer_ids({name: modules[name] for name in settings})
        watched = {}
        for name, found in settings.items():
            layer_id = layer_ids[modules[name]]
            keys = {str(layer_id.number), str(layer_id.key), name}
            if layers is None or not keys.isdisjoint(map(str, layers)):
                heads = range(self.rank * found.heads, (self.rank + 1) * found.heads)
                watched[name] = WatchedLayer(layer_id, modules[name], found, heads, placements[name])
        if not watched:
            raise ValueError(f"layers: expected some of {', '.join(settings)}, got {layers}")
        return watched

    def attach(self) -> None:
        """Begin to watch."""
        override = SharedOverride()
        with ExitStack() as undo:
            undo.enter_context(override.opened())
            for group in (group for groups in self.runner.attn_groups for group in groups):
                for builder in group.metadata_builders:
                    override.replace(builder, "build", _wrap_in(self._build))
                    if getattr(builder, "supports_update_block_table", False):
                        override.replace(builder, "update_block_table", _wrap_in(self._update_block_table))
            for name, layer in self.watched.items():
                override.replace(layer.module.impl, "forward", _wrap_in(self._forward, name))
            self._undo = undo.pop_all()

    def detach(self) -> None:
        """Leave vLLM as it was."""
        self._undo.close()

    def finish(self) -> dict[str, dict[str, Any]]:
        """End the capture, write the requests that still run, and return what was written of each."""
        self.detach()
        if self.error is not None:
            raise RuntimeError(f"the capture ended before it was stopped: {self.error}") from self.error
        for request_id in list(self._records):
            self._write(request_id)
        return self.written | self.collect()

    def collect(self) -> dict[str, dict[str, Any]]:
        """Return the shares of the last token of every request that asks for them; forget finished ones."""
        answers = {RANDOM_SUFFIX.sub("", name): last.answer() for name, last in self._last_tokens.items()}
        for request_id in [x for x in self._last_tokens if x not in self.runner.requests]:
            del self._last_tokens[request_id]
        return answers

    def _build(
        self,
        inner: Callable[..., Any],
        common_prefix_len: int,
        common_attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Build the metadata of a group of layers, and note the step on it."""
        metadata = inner(common_prefix_len, common_attn_metadata, *args, **kwargs)
        with self._ended_by_errors():
            common, request_ids = common_attn_metadata, list(self.runner.input_batch.req_ids)
            step = EngineStep(
                request_ids,
                common.query_start_loc_cpu.tolist(),
                # vLLM may pad it to the size of a CUDA graph.
                common.seq_lens[: len(request_ids)].tolist(),
                common.block_table_tensor,
                common.causal is True,
            )
            setattr(metadata, STEP, step)
        return metadata

    def _update_block_table(
        self, inner: Callable[..., Any], metadata: Any, blk_table: Tensor, slot_mapping: Tensor
    ) -> Any:
        """Build the metadata of another group of layers, which differs in its blocks only."""
        updated = inner(metadata, blk_table, slot_mapping)
        with self._ended_by_errors():
            setattr(updated, STEP, replace(getattr(metadata, STEP), blocks=blk_table))
        return updated

    def _forward(
        self,
        name: str,
        inner: Callable[..., Any],
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run a layer's attention, then record it."""
        result = inner(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        step = getattr(attn_metadata, STEP, None)  # None while the engine warms up
        if step is not None and self.error is None:
            with self._ended_by_errors(), torch.no_grad():
                # vLLM passes scales here if the kernel quantises its output.
                if any(x is not None for x in (*args, *kwargs.values())):
                    raise UnsupportedLayerError(f"{name}: its output is quantised by the same kernel")
                self._record_step(name, step, query, kv_cache, output)
        return result

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """End the capture, and never the engine, if the block raises an error; `finish` raises it."""
        try:
            yield
        # An error of ours is not to end an engine that serves other people.
        except Exception as error:
            self.error = self.error or error
            self._records.clear()

    def _record_step(self, name: str, step: EngineStep, query: Tensor, cache: Tensor, output: Tensor) -> None:
        if not step.is_causal:
            raise UnsupportedLayerError(f"{name}: its queries see later keys, which is not supported yet")
        # The layers of a step run in order, and its tokens are the same for all.
        is_first = name == next(iter(self.watched))
        if is_first:
            self._write_finished()
        layer = self.watched[name]
        for i, request_id in enumerate(step.request_ids):
            own = slice(step.starts[i], step.starts[i + 1])
            first = step.lengths[i] - (own.stop - own.start)  # the position of the first row
            mark = self._mark(request_id)
            if own.start == own.stop or mark is None:
                continue
            rows = RequestRows(request_id, first, query[own], output[own], cache, step.blocks[i])
            if not mark.captured:
                self._read_last_row(layer, mark, rows)
                continue
            record = self._records.setdefault(request_id, RequestRecord())
            if is_first:
                self._read_tokens(record, request_id, first, own)
            self._record_rows(layer, record, rows)

    def _mark(self, request_id: str) -> RequestMark | None:
        """What a request asks for, read when it first runs. A mark that makes no sense is answered."""
        if request_id not in self._marks:
            parameters = self.runner.requests[request_id].sampling_params  # None for a pooling model
            try:
                mark = read_mark(getattr(parameters, "extra_args", None)) or self.unmarked
                if mark is not None and mark.captured and self.folder is None:
                    raise ValueError("extra_args: a capture was asked for, and start was given no folder")
            except ValueError as error:
                mark = None
                self.written[RANDOM_SUFFIX.sub("", request_id)] = {"refused": str(error)}
            self._marks[request_id] = mark
        return self._marks[request_id]

    def _read_last_row(self, layer: WatchedLayer, mark: RequestMark, rows: RequestRows) -> None:
        """Reduce the last row of a request's step to its shares, and compare that row with vLLM's output."""
        request_id, first = rows.request_id, rows.first + len(rows.query) - 1
        last_row = rows._replace(first=first, query=rows.query[-1:], output=rows.output[-1:])
        visible, call = self._read_call(layer, last_row)
        m = call.attention_map()
        evidence = examine(m, call.v, call.output, max_rows=None)
        last = self._last_tokens.setdefault(request_id, LastToken(mark.spans))
        prompt = self.runner.requests[request_id].num_prompt_tokens
        weights = m.to_dense()[0, :, 0].float()
        last.read(str(layer.layer_id.key), layer.heads, weights, visible, prompt, evidence)

    def _read_tokens(self, record: RequestRecord, request_id: str, first: int, rows: slice) -> None:
        request, ids = self.runner.requests[request_id], self.runner.input_ids.gpu[rows].tolist()
        record.prompt_length = request.num_prompt_tokens
        if request.prompt_token_ids is None:  # it was given as embeddings
            record.read_tokens(first, [None] * len(ids), ())
        else:
            record.read_tokens(first, ids, request.prompt_token_ids)

    def _record_rows(self, layer: WatchedLayer, record: RequestRecord, rows: RequestRows) -> None:
        visible, call = self._read_call(layer, rows)
        first = rows.first
        m = call.attention_map()
        evidence = examine(m, call.v, call.output, max_rows=self.max_rows)

        of_keys = {"k": m.k, VALUES: call.v} if self.values else {"k": m.k}

        def stored(rows: slice, keys: slice) -> dict[str, Tensor]:
            parts = {"q": m.q[0, :, rows], "lse": m.lse[0, :, rows]}
            parts |= {name: x[0, :, keys] for name, x in of_keys.items()}
            # On a CPU this would be vLLM's own memory, which the next step writes to.
            return {name: x.to("cpu", copy=True).contiguous() for name, x in parts.items()}

        layer_record = record.layers.setdefault(layer.layer_id.name, LayerRecord(layer))
        before = first - visible  # the cached keys before the new ones
        if not layer_record.continues(first):
            prefix = stored(slice(0), slice(before))
            if not layer_record.rewind(first, prefix["k"]) and first:
                # What lies behind the window is not there any more, and no row sees it.
                prefix |= {name: pad(prefix[name], (0, 0, visible, 0)) for name in of_keys}
                layer_record.steps.append(LayerStep(0, prefix, None))
        layer_record.steps.append(LayerStep(first, stored(slice(None), slice(before, None)), evidence))

    def _read_call(self, layer: WatchedLayer, rows: RequestRows) -> tuple[int, AttentionCall]:
        """Return the first key that some rows see, and their attention to the cached tokens."""
        settings, T, first = layer.settings, len(rows.query), rows.first
        visible = settings.first_visible(first)
        cached = self._layout(layer, rows.cache).read(rows.cache, rows.blocks, visible, first + T)
        output = rows.output.view(T, settings.heads, -1)
        q, k, v, output = (x[None] for x in (rows.query.transpose(0, 1), *cached, output.transpose(0, 1)))
        return visible, AttentionCall(q, k, v, output, None, **settings.scoring)

    def _layout(self, layer: WatchedLayer, cache: Tensor) -> BlockLayout:
        """Where a layer's keys and values lie in its cache, learned when it first runs."""
        name, settings = layer.layer_id.name, layer.settings
        if name not in self._layouts:
            # Some implementations write nothing for a layer that reads another layer's cache.
            owner = getattr(layer.module, "kv_sharing_target_layer_name", None) or name
            module = self.modules[owner]
            self._layouts[name] = BlockLayout.learn(
                cache,
                settings.kv_heads,
                settings.width,
                settings.value_width,
                lambda *tokens: module.impl.do_kv_cache_update(module, *tokens),
            )
        return self._layouts[name]

    def _write_finished(self) -> None:
        """Write the requests that the engine has finished. One that is preempted has not."""
        for request_id in [x for x in self._records if x not in self.runner.requests]:
            self._write(request_id)
        self._marks = {x: mark for x, mark in self._marks.items() if x in self.runner.requests}

    def _write(self, request_id: str) -> None:
        """Write a request as a capture, and forget it."""
        record = self._records.pop(request_id)
        name = RANDOM_SUFFIX.sub("", request_id)
        name = request_id if name in self.written else name  # two requests of one name
        ids = record.token_ids()
        layers = [layer.layer() for layer in record.layers.values()]
        length = layers[0].shape[3]
        prompt = record.prompt_length
        seen = Capture(
            layers=layers,
            model=self.model,
            ids=ids,
            tokens=None if ids is None or self.decode is None else self.decode(ids),
            boundary=prompt if prompt is not None and prompt < length else None,
            missing=self.missing,
            is_whole=self.is_whole,
        )
        seen.seal()
        assert self.folder is not None
        # A request's id may be any text that a client sends.
        path = self.folder / re.sub(r"[^\w.-]", "_", name)
        if self.ranks > 1:
            run = hashlib.sha256(request_id.encode()).hexdigest()[:16]  # the same on all ranks
            save_shard(seen, path, ShardId(run, self.rank, self.ranks))
        else:
            seen.save(path)
        self.written[name] = {
            "folder": str(path),
            "tokens": length,
            "first_row": length - layers[0].shape[2],
            "certified": seen.certificate.certified,
        }


def _wrap_in(wrapper: Callable[..., Any], *args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a function that wraps a method: calls of it become `wrapper(*args, method, …)`."""
    return functools.partial(functools.partial, wrapper, *args)
