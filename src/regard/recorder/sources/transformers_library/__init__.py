"""The attention interface of Transformers, its masks, and attention under Regard's name in it."""
