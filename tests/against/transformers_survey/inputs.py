"""Inputs for a model: tensors for the arguments of its `forward`, in shapes that are tried in turn."""

import inspect
import itertools
from typing import Any

import torch

B, T, DECODER_T = 2, 33, 9  # longer than every window, chunk and top-k of `sizes`
PADDING = 6  # tokens that the padded cases take from the first entry of the batch

Inputs = dict[str, Any]


def field(model, *names, default):
    """The first of these fields that the configuration or one of its parts has, as a number."""
    configs = [model.config, *(x for x in vars(model.config).values() if hasattr(x, "to_dict"))]
    for name, config in itertools.product(names, configs):
        try:
            value = getattr(config, name, None)
        except Exception:  # fields that differ from layer to layer
            continue
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return default


def token_ids(model, length=T):
    """Ids of ordinary tokens, clear of the special ones at both ends of the vocabulary."""
    top = min(field(model, "vocab_size", default=128), 100)
    return torch.randint(4, max(top, 6), (B, length), generator=torch.Generator().manual_seed(1))


def candidates(model):
    """Inputs that may fit, the likeliest first."""
    parameters = inspect.signature(model.forward).parameters
    required = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    named = list(dict.fromkeys([*required, *([main] if main in parameters else [])]))
    if "input_ids" in parameters and "pixel_values" in parameters:
        yield from _pictures_in_text(model, parameters)
    if "spatial_shapes" in parameters:
        yield from _filled(model, [*named, "pixel_values", "pixel_attention_mask", "spatial_shapes"])
    if "visual_feats" in parameters:
        yield from _filled(model, [*named, "visual_feats", "visual_pos"])
    if "query_embeds" in parameters:
        yield from _filled(model, [*named, "encoder_hidden_states"])
    if "decoder_input_ids" in parameters and "decoder_input_ids" not in named:
        yield from _filled(model, [*named, "decoder_input_ids"])
    yield from _filled(model, named)
    if "input_ids" in parameters:
        yield {"input_ids": token_ids(model)}
        if "bbox" in parameters:
            yield from _filled(model, ["input_ids", "bbox"])
        for other in ("pixel_values", "input_features", "input_values", "pixel_values_videos"):
            if other in parameters:
                yield from _filled(model, ["input_ids", other])


def _filled(model, names):
    """Every choice of shapes for these arguments; none where a name is unknown."""
    choices = [_shapes(model, name) for name in names]
    if "grid_thw" in names:  # towers that take the patches of all pictures in one list
        patches = _patches(model, 24)
        choices = [
            [patches] if x in ("pixel_values", "hidden_states") else c
            for x, c in zip(names, choices, strict=True)
        ]
    for values in itertools.islice(itertools.product(*choices), 60):
        yield dict(zip(names, values, strict=True))


def _pictures_in_text(model, parameters):
    """Text with places for pictures: as many image tokens as the model makes of a picture."""
    token = field(model, "image_token_id", "image_token_index", default=0)
    if not token:
        return
    for pixels in _shapes(model, "pixel_values"):
        extra = {"pixel_values": pixels}
        if "image_grid_thw" in parameters:
            extra = {
                "pixel_values": _patches(model, 32),
                "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]]),
            }
        if "image_sizes" in parameters:
            extra["image_sizes"] = torch.tensor([list(pixels.shape[-2:])] * B)
        for count in (4, 16, 1, 2, 8, 3, 6, 17, 5, 9, 25, 64, 20, 24, 32):
            ids = token_ids(model, T + count)
            ids[:, 3 : 3 + count] = token
            inputs = {"input_ids": ids, **extra}
            if "mm_token_type_ids" in parameters:
                inputs["mm_token_type_ids"] = (ids == token).long()
            if "token_type_ids" in parameters:
                inputs["token_type_ids"] = (ids == token).long()
            yield inputs
        if "image_grid_thw" in parameters:
            return


def _patches(model, count):
    """Pictures as patches in one list, (patches, numbers of a patch)."""
    patch, frames = field(model, "patch_size", default=8), field(model, "temporal_patch_size", default=1)
    return torch.randn(count, 3 * frames * patch * patch, generator=_generator())


def _generator():
    return torch.Generator().manual_seed(2)


def _shapes(model, name):
    """Tensors for an argument of this name, in the shapes that models expect."""

    def noise(*shape):
        return torch.randn(*shape, generator=_generator())

    side = field(model, "image_size", default=32)
    channels = field(model, "num_channels", "in_channels", "in_chans", default=3)
    patch = field(model, "patch_size", default=8)
    frames = field(model, "num_frames", "frames_per_clip", default=4)
    mels = field(
        model, "num_mel_bins", "n_mels", "mel_bins", "input_feat_per_channel", "feature_size", default=16
    )
    width = field(model, "hidden_size", "d_model", "n_embd", default=32)
    positions = field(model, "max_source_positions", default=64)
    if name == "pixel_values":
        sides = list(dict.fromkeys((side, 32, 64, 128, 224)))
        return [
            *(noise(B, channels, x, x) for x in sides),
            *(noise(B, frames, channels, x, x) for x in sides[:2]),
            noise(B, (side // patch) ** 2, channels * patch * patch),
            noise(B, 1, channels, side, side),
            noise(B, 2, channels, side, side),
        ]
    if name in ("pixel_values_videos", "videos"):
        return [noise(B, frames, channels, side, side)]
    if name in ("input_features", "audio_features", "features", "audio_values", "mel_spectrogram"):
        return [
            noise(B, mels, 2 * positions),
            noise(B, T, mels),
            noise(B, mels, 64),
            noise(B, 64, mels),
            noise(B, T, 80),
            noise(B, T, 160),
            noise(B, T, width),
            noise(B, 1, 64, mels),
            noise(B, mels, 200),
        ]
    if name in ("input_values", "audio", "waveform", "input_audio"):
        return [
            noise(B, 4000),
            noise(B, 1, 4000),
            noise(B, 1, 1920),
            noise(B, 64, mels),
            noise(B, mels, 64),
            noise(B, 128, mels),
        ]
    if name in ("input_ids", "text_ids", "sequence"):
        ids, codebooks = token_ids(model), field(model, "num_codebooks", default=4)
        stacked = [ids[..., None].expand(B, T, n) for n in (codebooks, codebooks + 1)]
        return [ids, token_ids(model, 16), ids.repeat(codebooks, 1), *stacked]
    if name == "qformer_input_ids":
        return [token_ids(model, 8)]
    if name in ("decoder_input_ids", "target_ids"):
        return [token_ids(model, DECODER_T)]
    if name in (
        "inputs_embeds",
        "hidden_states",
        "decoder_inputs_embeds",
        "encoder_hidden_states",
        "query_embeds",
    ):
        return [noise(B, T, width)]
    if name == "inputs":
        return [token_ids(model), noise(B, T, field(model, "d_model", default=32)), noise(B, 3, side, side)]
    if name in ("attention_mask", "decoder_attention_mask", "encoder_attention_mask"):
        return [torch.ones(B, T, dtype=torch.long)]
    if name in ("pixel_mask", "pixel_attention_mask"):
        shapes = [(B, side, side), (B, (side // patch) ** 2)]
        return [torch.ones(shape).long() for shape in (shapes if name == "pixel_mask" else shapes[::-1])]
    if name == "spatial_shapes":
        return [torch.tensor([[side // patch] * 2] * B)]
    if name in ("visual_feats", "visual_pos"):
        return [noise(B, 5, field(model, f"{name}_dim".replace("feats", "feat"), default=4))]
    if name == "bbox":
        corner = torch.randint(0, 400, (B, T, 2), generator=_generator())
        return [torch.cat([corner, corner + 30], -1)]
    if name in ("token_type_ids", "image_token_type_ids"):
        return [torch.zeros(B, T, dtype=torch.long)]
    if name == "position_ids":
        return [torch.arange(T).expand(B, T)]
    if name in ("grid_thw", "image_grid_thw", "video_grid_thw"):
        return [torch.tensor([[1, 4, 4], [1, 2, 4]])]
    if name in ("past_values", "time_series_values", "context"):
        length = field(model, "context_length", default=32)
        return [
            noise(B, length),
            noise(B, length, 1),
            noise(B, length, field(model, "num_input_channels", default=1)),
        ]
    if name in ("past_observed_mask", "past_time_features", "input_padding"):
        return [torch.ones(B, field(model, "context_length", default=32))]
    return []
