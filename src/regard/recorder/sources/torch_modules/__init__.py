"""PyTorch's own attention modules, and its fused encoder layer."""
