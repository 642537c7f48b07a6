"""Masks: predicates of positions that compose, draw themselves and answer questions about themselves."""
