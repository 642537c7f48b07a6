"""How long tests wait: for as long as it takes on a machine that is busy with everything else."""

HANGING = 300.0
"""Seconds after which something that takes moments on an idle machine counts as hanging."""
