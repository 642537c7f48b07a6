"""Passes over the tiles of a map: what is summed, pooled or chosen without the matrix."""
