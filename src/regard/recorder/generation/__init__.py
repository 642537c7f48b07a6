"""Joins the attention calls of token-by-token generation into one map for each layer."""
