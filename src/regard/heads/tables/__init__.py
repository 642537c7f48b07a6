"""The table of heads, and a head in one sentence."""
