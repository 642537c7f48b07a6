"""Backends: ways to compute attention without storing the T×S matrix. `attend` chooses one for each call."""
