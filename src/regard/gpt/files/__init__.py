"""Weights and tokenizers on disk: folders of Transformers, GGUF, downloads, and what is refused in them."""
