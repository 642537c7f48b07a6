"""Computes how much a capture will store before it starts, and how much memory is free.

A map stores q, k and lse: `H·T·D + G·S·D` numbers in the model's dtype and `H·T` in float32. This file reads
those sizes from a model or its configuration; what is done with them is in `storage.stores`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard.attention.arguments import check_whole_number
from regard.attention.inputs import working_dtype
from regard.gpt import Config
from regard.recorder.layer import LayerId
from regard.recorder.placement import kv_slots
from regard.recorder.sources.structure_of_models.layer_names import gpt_layer_ids, mha_layer_ids
from regard.recorder.summary import summary_size
from regard.support.cell_output import PrintedOutput
from regard.support.table import Column, Table

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)}


class LayerSize(NamedTuple):
    """The sizes of one layer: H query and G key heads of width D, values of width E, T queries, S keys."""

    layer_id: LayerId
    H: int
    G: int
    D: int
    E: int
    T: int
    S: int

    def nbytes(
        self, B: int, heads: Collection[int] | None, dtype: torch.dtype, value_bytes: int, store: str
    ) -> int:
        """Return the bytes of the layer for a batch of B texts, with the options of `capture`.

        `value_bytes` are the bytes of one number of the values, 0 if they are not stored.
        """
        H, G = self.H, self.G
        if heads is not None:
            kv_head_of = [head // (H // G) for head in sorted(set(heads)) if head < H]
            H, G = len(kv_head_of), len(kv_slots(kv_head_of))
        working = working_dtype(dtype).itemsize
        values = B * G * self.S * self.E * value_bytes
        if store == "statistics":
            return values + summary_size(B, H, self.T, self.S, working)
        return values + B * ((H * self.T + G * self.S) * self.D * dtype.itemsize + H * self.T * working)


class CaptureSize(PrintedOutput, int):
    """The number of bytes that a capture will store; prints with the options that make it smaller."""

    layers: dict[int | str, int]
    """The bytes of each layer, by its key."""
    options: dict[str, int]
    """The bytes with further options, such as "heads=[0]"; only those that make the capture smaller."""
    dense: int
    """The bytes of the attention matrices themselves, in the model's dtype."""
    tokens: str
    """The number of tokens, as text."""

    def __str__(self) -> str:
        first, *others = self.layers.values()
        each = f"{len(self.layers)} layers" + (f" of {format_bytes(first)}" if set(others) <= {first} else "")
        lines = [f"{format_bytes(self)} for {self.tokens}: {each}"]
        columns = "option", Column("size", format_bytes)
        lines += Table(columns, self.options.items()).lines(indent="  ", header=False)
        return "\n".join([*lines, f"  (the matrices themselves: {format_bytes(self.dense)})"])

    def __repr__(self) -> str:
        return f"CaptureSize({format_bytes(self)})"


def capture_size(
    model: nn.Module | Any,
    tokens: int | tuple[int, int],
    *,
    batch: int = 1,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    values: bool = False,
    store: Literal["maps", "statistics"] = "maps",
) -> CaptureSize:
    """Return the number of bytes that `regard.capture(model, …)` will store, before it runs.

    - `model`: a model, a Transformers configuration or a `regard.gpt.Config`.
    - `tokens`: the length of a text; `(source, target)` if an encoder and a decoder read different lengths.
    - `batch`: the number of texts.
    - `layers`, `heads`, `dtype`, `values`, `store`: the options of `regard.capture`.

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
      store="statistics"    83.2 MiB
      (the matrices themselves: 9.0 GiB)
    """
    source, target = tokens if isinstance(tokens, tuple) else (tokens, tokens)
    source, target = check_whole_number("tokens", source), check_whole_number("tokens", target)
    B = check_whole_number("batch", batch)
    sizes = _selected(model, list(_layer_sizes(model, source, target)), layers)
    model_dtype = _dtype(model)
    value_bytes = model_dtype.itemsize if values else 0

    def by_layer(
        heads: Collection[int] | None = heads, dtype: torch.dtype = dtype or model_dtype, store: str = store
    ) -> dict[int | str, int]:
        return {size.layer_id.key: size.nbytes(B, heads, dtype, value_bytes, store) for size in sizes}

    # The same capture with one more option each.
    options: dict[str, int] = {}
    if len(sizes) > 1:
        first = sizes[0].layer_id.key
        options[f"layers=[{first!r}]"] = by_layer()[first]
    if heads is None and any(size.H > 1 for size in sizes):
        options["heads=[0]"] = sum(by_layer(heads=[0]).values())
    if store == "maps" and (dtype or model_dtype).itemsize > 2:
        options["dtype=torch.bfloat16"] = sum(by_layer(dtype=torch.bfloat16).values())
    if store == "maps":
        options['store="statistics"'] = sum(by_layer(store="statistics").values())

    total = CaptureSize(sum(by_layer().values()))
    total.layers = by_layer()
    total.tokens = f"{source:,} tokens" if source == target else f"{source:,} and {target:,} tokens"
    total.tokens += f" in each of {B} texts" if B > 1 else ""
    total.dense = sum(B * size.H * size.T * size.S for size in sizes) * model_dtype.itemsize
    total.options = {option: size for option, size in options.items() if size < total}
    return total


def _selected(model: Any, sizes: list[LayerSize], layers: Collection[int | str] | None) -> list[LayerSize]:
    """Return the layers that `layers` selects; a ValueError if there are none."""
    if not sizes:
        raise ValueError(
            "model: expected attention that capture recognises, or a configuration, "
            f"got {type(model).__name__}"
        )
    if layers is None:
        return sizes
    names = {str(layer) for layer in layers}
    selected = [size for size in sizes if not names.isdisjoint(size.layer_id.names)]
    if not selected:
        keys = ", ".join(repr(size.layer_id.key) for size in sizes)
        raise ValueError(f"layers: expected some of {keys}, got {list(layers)}")
    return selected


def _layer_sizes(model: Any, source: int, target: int) -> Iterator[LayerSize]:
    """Yield the sizes of every layer of a model or a configuration that reads so many tokens."""
    if isinstance(model, Config):
        H, G, D = model.num_heads, model.num_kv_heads, model.head_dim
        for n in range(model.num_layers):
            yield LayerSize(LayerId(n, f"blocks.{n}.attention"), H, G, D, D, source, source)
    elif not isinstance(model, nn.Module):
        yield from _config_sizes(model, source, target)
    else:
        modules = dict(model.named_modules())
        for module, layer_id in gpt_layer_ids(modules).items():
            H, G, D = module.num_heads, module.num_kv_heads, module.head_dim
            yield LayerSize(layer_id, H, G, D, D, source, source)
        for mha, layer_id in mha_layer_ids(modules).items():
            T, S = _lengths(layer_id.stack, source, target)
            # `add_bias_kv` and `add_zero_attn` append a key each.
            S += (mha.bias_k is not None) + bool(mha.add_zero_attn)
            yield LayerSize(layer_id, mha.num_heads, mha.num_heads, mha.head_dim, mha.head_dim, T, S)
        if (config := _config_of(model)) is not None:
            yield from _config_sizes(config, source, target)


def _lengths(stack: str, source: int, target: int) -> tuple[int, int]:
    """Return the number of queries and of keys of a layer in a stack."""
    return {"cross": (target, source), "decoder": (target, target)}.get(stack, (source, source))


def _config_of(model: nn.Module) -> Any:
    """Return the configuration of the first Transformers model inside a module, or None."""
    for module in model.modules():
        config = getattr(module, "config", None)
        # Transformers' configurations have it; other code has attributes of that name, too.
        if hasattr(config, "to_diff_dict"):
            return config
    return None


def _config_sizes(config: Any, source: int, target: int) -> Iterator[LayerSize]:
    """Yield the sizes of the layers in a Transformers configuration, or in its part for text."""
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    def setting(*names: str, default: Any = None) -> Any:
        """Return the first of these settings that is an integer: families name the same size differently."""
        values = (getattr(config, name, None) for name in names)
        return next((value for value in values if isinstance(value, int)), default)

    width = setting("hidden_size", "d_model")
    if width is None:
        raise ValueError(f"model: expected sizes in its configuration, got {type(config).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        layers = setting("encoder_layers", "num_layers", "num_hidden_layers")
        heads = setting("encoder_attention_heads", "num_heads", "num_attention_heads")
        stacks = [("encoder", layers, heads)]
        layers = setting("decoder_layers", "num_decoder_layers", default=layers)
        heads = setting("decoder_attention_heads", "num_heads", "num_attention_heads")
        stacks += [("decoder", layers, heads), ("cross", layers, heads)]
    else:
        stacks = [("", setting("num_hidden_layers", "n_layer"), setting("num_attention_heads", "n_head"))]
    for stack, count, H in stacks:
        if count is None or H is None:
            raise ValueError(f"model: expected layers and heads in {type(config).__name__}, got neither")
        G = _key_heads(config, setting, H) if stack == "" else H
        D = setting("head_dim", "d_kv", default=width // H)
        E = setting("v_head_dim", default=D)
        # Multi-head latent attention (DeepSeek) computes keys for every head from one latent vector.
        if (plain := setting("qk_nope_head_dim")) is not None:
            G, D = H, plain + setting("qk_rope_head_dim", default=0)
        for n in range(count):
            yield LayerSize(LayerId(n, "", stack), H, G, D, E, *_lengths(stack, source, target))


def _key_heads(config: Any, setting: Any, H: int) -> int:
    """Return the number of key heads."""
    if getattr(config, "new_decoder_architecture", False):
        return H  # Falcon repeats its keys before it attends
    # Falcon-7B and StarCoder have one head of keys.
    if getattr(config, "multi_query", False):
        return 1
    heads: int = setting("num_key_value_heads", "num_kv_heads", default=H)
    return heads


def _dtype(model: Any) -> torch.dtype:
    """Return the dtype of a model's parameters, or the one that a configuration names."""
    if isinstance(model, nn.Module):
        return next((x.dtype for x in model.parameters() if x.is_floating_point()), torch.float32)
    dtype = getattr(model, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def parse_bytes(name: str, value: int | str) -> int:
    """Return a number of bytes, written as 4_000_000, "4GiB", "500 MB" or "1.5g"; `name` is the argument's.

    >>> parse_bytes("budget", "4GiB"), parse_bytes("budget", "1.5 MB")
    (4294967296, 1500000)
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
        if match is not None and match[2] in UNITS:
            return int(float(match[1]) * UNITS[match[2]])
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f'{name}: expected a number of bytes, as 4_000_000, "4GiB" or "500MB", got {value!r}')


def format_bytes(size: int) -> str:
    """Return a number of bytes as text with a unit.

    >>> format_bytes(290 << 20)
    '290.0 MiB'
    """
    power = max(0, min(4, (int(size).bit_length() - 1) // 10))
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{int(size)} bytes" if power == 0 else f"{size / 1024**power:.1f} {unit}"


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of the memory that a device uses; None if that cannot be determined."""
    if device.type == "cuda":
        # What PyTorch has reserved and does not use is free for it as well.
        # The nested numbers, since `memory_reserved` flattens and sorts hundreds of them for each question.
        counts = torch.cuda.memory_stats_as_nested_dict(device)
        reserved, used = (
            counts.get(name, {}).get("all", {}).get("current", 0)
            for name in ("reserved_bytes", "allocated_bytes")
        )
        return int(torch.cuda.mem_get_info(device)[0]) + int(reserved - used)
    if device.type != "cpu":
        return None
    limits = [limit for limit in (_available_to_system(), _available_to_container()) if limit is not None]
    return min(limits, default=None)


def _available_to_system() -> int | None:
    """Return the available bytes of the whole machine."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return None if match is None else int(match[1]) * 1024
    except OSError:  # no Linux
        return None


def _available_to_container() -> int | None:
    """Return the bytes that a container may still take; file pages that can be dropped count as free."""
    # cgroup v2, and v1, where `total_` includes the groups inside.
    cgroups = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    )
    for limit, usage, detail in cgroups:
        try:
            maximum, used = int(Path(limit).read_text()), int(Path(usage).read_text())
            files = re.search(r"^(?:total_)?inactive_file (\d+)", Path(detail).read_text(), re.MULTILINE)
            return max(0, maximum - used + (int(files[1]) if files else 0))
        except (OSError, ValueError):  # no such cgroup, or no limit ("max")
            continue
    return None
