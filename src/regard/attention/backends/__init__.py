"""The ways to compute attention without storing the matrix, and how one of them is chosen."""
