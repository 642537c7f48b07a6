"""Where attention calls come from: PyTorch, Transformers, Regard's GPT and adapters for other models."""
