"""How much a capture will keep, known before it starts; and how much memory is free.

A map keeps q, k and lse: `H·T·D + G·S·D` numbers in the model's dtype and `H·T` in float32. This file reads
those sizes off a model or its configuration; what is done with them is in `stores`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard.attention.arguments import check_whole_number
from regard.attention.inputs import working_dtype
from regard.gpt import Config
from regard.recorder.recording import LayerId
from regard.recorder.sources import gpt as gpt_source
from regard.recorder.sources import torch_mha
from regard.recorder.summary import summary_size

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)}


class SizePart(NamedTuple):
    """The sizes of one layer: as everywhere, H query and G key heads, D wide; values E wide."""

    place: LayerId
    H: int
    G: int
    D: int
    E: int
    T: int
    S: int


class CaptureSize(int):
    """The bytes that a capture will keep: a number, which prints with what would make it smaller."""

    layers: dict[str, int]
    """The bytes of each layer by its key."""
    ways: dict[str, int]
    """What it would be with other options."""
    dense: int
    """What the matrices themselves would take, in the model's dtype."""
    tokens: str

    def __str__(self) -> str:
        first, *others = self.layers.values()
        each = f"{len(self.layers)} layers" + (f" of {written(first)}" if set(others) <= {first} else "")
        lines = [f"{written(self)} for {self.tokens}: {each}"]
        width = max(map(len, self.ways), default=0)
        lines += [f"  {way:<{width}}  {written(size)}" for way, size in self.ways.items()]
        return "\n".join([*lines, f"  (the matrices themselves: {written(self.dense)})"])

    def __repr__(self) -> str:
        return f"CaptureSize({written(self)})"


def capture_size(
    model: nn.Module | Any,
    tokens: int | tuple[int, int],
    *,
    batch: int = 1,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    values: bool = False,
    keep: Literal["maps", "statistics"] = "maps",
) -> CaptureSize:
    """The bytes that `regard.capture(model, …)` will keep for texts of `tokens` tokens, before it runs.

    `model` may be a Transformers configuration or a `regard.gpt.Config`; an encoder and a decoder may read
    different numbers of tokens: `tokens=(source, target)`. The rest are capture's own options.

    >>> from regard.gpt import Config
    >>> config = Config(vocab_size=50257, context_length=4096, num_layers=12, num_heads=12, d_model=768)
    >>> size = capture_size(config, 4096)
    >>> size
    CaptureSize(290.2 MiB)
    >>> print(size)
    290.2 MiB for 4,096 tokens: 12 layers of 24.2 MiB
      layers=[0]            24.2 MiB
      heads=[0]             24.2 MiB
      dtype=torch.bfloat16  146.2 MiB
      keep="statistics"     83.2 MiB
      (the matrices themselves: 9.0 GiB)
    """
    source, target = tokens if isinstance(tokens, tuple) else (tokens, tokens)
    source, target = check_whole_number("tokens", source), check_whole_number("tokens", target)
    B = check_whole_number("batch", batch)
    known = list(_parts(model, source, target))
    if not known:
        raise ValueError(
            f"model: expected attention that capture knows, or a configuration, got {type(model).__name__}"
        )
    wanted = None if layers is None else {str(layer) for layer in layers}
    parts = [p for p in known if wanted is None or wanted & {str(p.place.number), p.place.key, p.place.name}]
    if not parts:
        keys = ", ".join(repr(part.place.key) for part in known)
        raise ValueError(f"layers: expected some of {keys}, got {list(layers or [])}")
    own = _dtype(model)
    value_bytes = own.itemsize if values else 0

    def each(
        heads: Collection[int] | None = heads, dtype: torch.dtype = dtype or own, keep: str = keep
    ) -> dict[str, int]:
        return {part.place.key: _size(part, B, heads, dtype, value_bytes, keep) for part in parts}

    sizes = each()
    size = CaptureSize(sum(sizes.values()))
    size.layers = sizes
    size.tokens = f"{source:,} tokens" if source == target else f"{source:,} and {target:,} tokens"
    size.tokens += f" in each of {B} texts" if B > 1 else ""
    size.dense = sum(B * part.H * part.T * part.S for part in parts) * own.itemsize
    size.ways = {}
    if len(parts) > 1:
        first = parts[0].place
        size.ways[f"layers=[{(first.key if first.stack else first.number)!r}]"] = sizes[first.key]
    if heads is None and any(part.H > 1 for part in parts):
        size.ways["heads=[0]"] = sum(each(heads=[0]).values())
    if keep == "maps" and (dtype or own).itemsize > 2:
        size.ways["dtype=torch.bfloat16"] = sum(each(dtype=torch.bfloat16).values())
    if keep == "maps":
        size.ways['keep="statistics"'] = sum(each(keep="statistics").values())
    return size


def _size(
    p: SizePart, B: int, heads: Collection[int] | None, dtype: torch.dtype, value_bytes: int, keep: str
) -> int:
    """The bytes of one layer; values are kept in the model's own dtype, for the heads that k is kept for."""
    H, G = p.H, p.G
    if heads is not None:
        readers = [head // (H // G) for head in sorted(set(heads)) if head < H]
        H, groups = len(readers), sorted(set(readers))
        even = readers == sorted(groups * (len(readers) // max(len(groups), 1)))
        G = len(groups) if even else H
    working = working_dtype(dtype).itemsize
    beside = B * G * p.S * p.E * value_bytes
    if keep == "statistics":
        return beside + summary_size(B, H, p.T, p.S, working)
    return beside + B * ((H * p.T + G * p.S) * p.D * dtype.itemsize + H * p.T * working)


def _parts(model: Any, source: int, target: int) -> Iterator[SizePart]:
    if isinstance(model, Config):
        for n in range(model.num_layers):
            yield SizePart(
                LayerId(n, f"blocks.{n}.attention"),
                model.num_heads,
                model.num_kv_heads,
                model.head_dim,
                model.head_dim,
                source,
                source,
            )
    elif not isinstance(model, nn.Module):
        yield from _of_config(model, source, target)
    else:
        for module, place in gpt_source.places(model).items():
            H, G, D = module.num_heads, module.num_kv_heads, module.head_dim
            yield SizePart(place, H, G, D, D, source, source)
        for mha, place in torch_mha.places(model).items():
            T, S = _lengths(place.stack, source, target)
            S += (mha.bias_k is not None) + bool(mha.add_zero_attn)
            yield SizePart(place, mha.num_heads, mha.num_heads, mha.head_dim, mha.head_dim, T, S)
        if (config := _config_of(model)) is not None:
            yield from _of_config(config, source, target)


def _lengths(stack: str, source: int, target: int) -> tuple[int, int]:
    """Queries and keys of a layer of a stack."""
    return {"cross": (target, source), "decoder": (target, target)}.get(stack, (source, source))


def _config_of(model: nn.Module) -> Any:
    """The configuration of the first Transformers model in here, or None."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "to_diff_dict"):
            return config
    return None


def _of_config(config: Any, source: int, target: int) -> Iterator[SizePart]:
    """The layers that a Transformers configuration speaks of; those for text, where it has several parts."""
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    def named(*names: str, default: Any = None) -> Any:
        found = (getattr(config, name, None) for name in names)
        return next((value for value in found if isinstance(value, int)), default)

    width = named("hidden_size", "d_model")
    if width is None:
        raise ValueError(f"model: expected sizes in its configuration, got {type(config).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        layers = named("encoder_layers", "num_layers", "num_hidden_layers")
        own = named("encoder_attention_heads", "num_heads", "num_attention_heads")
        stacks = [("encoder", layers, own)]
        layers = named("decoder_layers", "num_decoder_layers", default=layers)
        own = named("decoder_attention_heads", "num_heads", "num_attention_heads")
        stacks += [("decoder", layers, own), ("cross", layers, own)]
    else:
        stacks = [("", named("num_hidden_layers", "n_layer"), named("num_attention_heads", "n_head"))]
    for stack, count, H in stacks:
        if count is None or H is None:
            raise ValueError(f"model: expected layers and heads in {type(config).__name__}, got neither")
        G, D = _grouped(config, named, H) if stack == "" else H, named("head_dim", "d_kv", default=width // H)
        E = named("v_head_dim", default=D)
        if (plain := named("qk_nope_head_dim")) is not None:  # keys are made anew for every head
            G, D = H, plain + named("qk_rope_head_dim", default=0)
        for n in range(count):
            yield SizePart(LayerId(n, "", stack), H, G, D, E, *_lengths(stack, source, target))


def _grouped(config: Any, named: Any, H: int) -> int:
    """How many key heads there are."""
    if getattr(config, "new_decoder_architecture", False):
        return H  # Falcon repeats its keys before it attends
    if getattr(config, "multi_query", False):
        return 1
    found: int = named("num_key_value_heads", "num_kv_heads", default=H)
    return found


def _dtype(model: Any) -> torch.dtype:
    if isinstance(model, nn.Module):
        return next((x.dtype for x in model.parameters() if x.is_floating_point()), torch.float32)
    given = getattr(model, "dtype", None) or getattr(model, "torch_dtype", None)
    return given if isinstance(given, torch.dtype) else torch.float32


def parse_bytes(name: str, given: int | str) -> int:
    """A number of bytes, as 4_000_000, "4GiB", "500 MB" or "1.5g".

    >>> parse_bytes("budget", "4GiB"), parse_bytes("budget", "1.5 MB")
    (4294967296, 1500000)
    """
    if isinstance(given, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", given.lower())
        if found is not None and found[2] in UNITS:
            return int(float(found[1]) * UNITS[found[2]])
    elif isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise ValueError(f'{name}: expected a number of bytes, as 4_000_000, "4GiB" or "500MB", got {given!r}')


def written(size: int) -> str:
    """A number of bytes for people."""
    power = max(0, min(4, (int(size).bit_length() - 1) // 10))
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{int(size)} bytes" if power == 0 else f"{size / 1024**power:.1f} {unit}"


def free_memory(device: torch.device) -> int | None:
    """The bytes that can still be had where a device keeps its tensors; None if nobody can say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    if device.type != "cpu":
        return None
    limits = [found for found in (_available(), _left_to_container()) if found is not None]
    return min(limits, default=None)


def _available() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _left_to_container() -> int | None:
    """What a container may still take; pages of files that can be dropped count as free."""
    places = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    )
    for limit, usage, detail in places:
        try:
            most, used = int(Path(limit).read_text()), int(Path(usage).read_text())
            files = re.search(r"^(?:total_)?inactive_file (\d+)", Path(detail).read_text(), re.MULTILINE)
            return max(0, most - used + (int(files[1]) if files else 0))
        except (OSError, ValueError):  # no such container, or no limit ("max")
            continue
    return None
