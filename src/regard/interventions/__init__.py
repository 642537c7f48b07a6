"""Interventions: change what a head does while its model runs, on the model's own fused attention."""

from regard.interventions.ablation import ablate, evict
from regard.interventions.activation_patch import patch
from regard.interventions.edge_block import block
from regard.interventions.edit import Edit
from regard.interventions.edited_run import Intervention, intervene
from regard.interventions.effects import Effect, effect, importance
from regard.interventions.output_means import mean_outputs

__all__ = [
    "Edit",
    "Effect",
    "Intervention",
    "ablate",
    "block",
    "effect",
    "evict",
    "importance",
    "intervene",
    "mean_outputs",
    "patch",
]
