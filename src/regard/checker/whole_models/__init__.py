"""Whole models and blocks: how they are run, what each layer computes, and what the whole lets through."""
