"""Pictures that vision models read: their pixels for display, and which tokens are which of their patches."""

from regard.pictures.patch_layout import PatchAxes, PatchLayout, PatchSpan, Pictures
from regard.pictures.patches import Patches
from regard.pictures.picture import Picture

__all__ = ["PatchAxes", "PatchLayout", "PatchSpan", "Patches", "Picture", "Pictures"]
