"""Captures on disk: stores that write while a model runs, and the folder that they leave."""
