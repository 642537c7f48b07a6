"""Linear attention and state-space layers: their functions, their modules, their kernels."""
