"""Attention that a model writes out itself: product, softmax, product, followed operation by operation."""
