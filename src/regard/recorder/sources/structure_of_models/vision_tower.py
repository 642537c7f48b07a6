"""Finds the vision tower of a model: the part that cuts a picture into patches and attends among them.

It is the smallest module around a convolution that steps by its own size, the patch embedding, which has
attention inside. The names of the tokens before the patches come from the tower's parameters. This file
knows modules; what the tokens of a captured layer are is decided in `picture_reader`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.pictures.picture import Normalisation

HALF = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
NORMALISATIONS = {
    "clip_vision_model": (*CLIP, "CLIP's processor does"),
    "clip": (*CLIP, "CLIP's processor does"),
    "qwen2_vl": (*CLIP, "Qwen2-VL's processor does"),
    "qwen2_vl_vision": (*CLIP, "Qwen2-VL's processor does"),
    "qwen2_5_vl": (*CLIP, "Qwen2.5-VL's processor does"),
    "qwen2_5_vl_vision": (*CLIP, "Qwen2.5-VL's processor does"),
    "pixtral": (*CLIP, "Pixtral's processor does"),
    "siglip_vision_model": (*HALF, "SigLIP's processor does"),
    "siglip": (*HALF, "SigLIP's processor does"),
    "vit": (*HALF, "ViT's processor does"),
    "beit": (*HALF, "BEiT's processor does"),
    "deit": (*IMAGENET, "DeiT's processor does"),
    "vit_mae": (*IMAGENET, "ViTMAE's processor does"),
    "dinov2": (*IMAGENET, "DINOv2's processor does"),
    "dinov2_with_registers": (*IMAGENET, "DINOv2's processor does"),
    "dinov3_vit": (*IMAGENET, "DINOv3's processor does"),
    "swin": (*IMAGENET, "Swin's processor does"),
}
"""By the type of a model: mean and standard deviation of its released checkpoints, and whose they are."""
SPECIAL_PARAMETERS = {
    "cls_token": "CLS",
    "class_token": "CLS",
    "class_embedding": "CLS",
    "distillation_token": "distillation",
    "dist_token": "distillation",
    "register_tokens": "register",
    "reg_token": "register",
}
"""What a tower calls its parameters for tokens before the patches, in the order of these tokens."""


class VisionTower(NamedTuple):
    """The part of a model that reads pictures."""

    name: str
    """The module's name in the model; "" for the model itself."""
    module: nn.Module
    patch: tuple[int, int]
    """The height and width of a patch in pixels."""
    padding: tuple[int, int]
    channels: int
    frames: int | None
    """How many frames of a video the patch embedding joins; None if it takes pictures."""

    def holds(self, name: str) -> bool:
        """Return whether a module of the model belongs to the tower."""
        return not self.name or name.startswith(f"{self.name}.")

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of a picture with so many pixels."""
        sizes = zip((height, width), self.patch, self.padding, strict=True)
        rows, cols = ((n + 2 * padding - patch) // patch + 1 for n, patch, padding in sizes)
        return rows, cols

    @property
    def merge(self) -> int:
        """How many patches to a side become one token of a text, and follow each other; 1 for row by row."""
        merge = getattr(getattr(self.module, "config", None), "spatial_merge_size", 1)
        return merge if isinstance(merge, int) and merge > 0 else 1

    @property
    def permutes_windows(self) -> bool:
        """Whether it sorts its patches by windows before it attends, as Qwen2.5-VL does."""
        return hasattr(self.module, "permute_input_for_window_attn")

    @property
    def normalisation(self) -> Normalisation | None:
        """How the pixels of its family are normalised, if that is known."""
        kind = getattr(getattr(self.module, "config", None), "model_type", None)
        return Normalisation(*NORMALISATIONS[kind]) if kind in NORMALISATIONS else None

    def prefix_names(self) -> list[str]:
        """Return the names of the tokens before the patches, as the tower's parameters show them."""
        counts: dict[str, int] = {}
        for name, parameter in self.module.named_parameters():
            if (kind := SPECIAL_PARAMETERS.get(name.rpartition(".")[2])) is not None:
                counts[kind] = math.prod(parameter.shape[:-1])
        names = [kind for kind in ("CLS", "distillation") if kind in counts]
        return names + [f"register {n + 1}" for n in range(counts.get("register", 0))]


def find_vision_tower(model: nn.Module, attention_names: Collection[str]) -> VisionTower | None:
    """Return the first vision tower of a model whose attention modules have these names, or None."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        # Pictures have one channel or three; other convolutions are inside of a network.
        if not isinstance(module, nn.Conv2d | nn.Conv3d) or module.in_channels not in (1, 3):
            continue
        patch, stride = module.kernel_size[-2:], module.stride[-2:]
        # As text it can only be "valid": PyTorch refuses "same" with a stride.
        padding = (0, 0) if isinstance(module.padding, str) else module.padding[-2:]
        # A convolution of one pixel mixes channels.
        if patch != stride or patch == (1, 1):
            continue
        parent = name
        while parent:
            parent = parent.rpartition(".")[0]
            if any(not parent or other.startswith(f"{parent}.") for other in attention_names):
                frames = module.kernel_size[0] if isinstance(module, nn.Conv3d) else None
                found: Any = (*patch, *padding)
                return VisionTower(parent, modules[parent], found[:2], found[2:], module.in_channels, frames)
    return None


class PixelInputs(NamedTuple):
    """The pixels among the arguments of a forward pass."""

    pixels: Tensor
    """(N, C, H, W) with one channel or three, or patches (P, …) that `grids` describes."""
    grids: Tensor | None = None
    """For each picture the numbers of frames, rows and columns of its patches, (N, 3)."""


PIXEL_ARGUMENTS = ("pixel_values", "images", "image", "pixels", "x")


def find_pixels(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PixelInputs | None:
    """Find the pixels among the arguments of a forward pass; None if there are none."""
    grids = kwargs.get("image_grid_thw", kwargs.get("grid_thw"))
    for x in (*(kwargs.get(name) for name in PIXEL_ARGUMENTS), *args[:1]):
        if not isinstance(x, Tensor) or not x.dtype.is_floating_point or not x.numel():
            continue
        if x.ndim == 5 and x.shape[2] in (1, 3):  # (B, pictures of each text, C, H, W)
            x = x.flatten(0, 1)
        if x.ndim == 4 and x.shape[1] in (1, 3):
            return PixelInputs(x)
        if x.ndim == 2 and isinstance(grids, Tensor) and grids.ndim == 2 and grids.shape[1] == 3:
            return PixelInputs(x, grids)
    return None
