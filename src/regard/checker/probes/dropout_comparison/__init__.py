"""Dropout: whether it acts, how often, and on what."""
