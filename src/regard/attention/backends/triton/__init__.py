"""GPU kernels in Triton: attention forward and backward, pooled weights, and row statistics."""
