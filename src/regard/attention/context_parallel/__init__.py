"""Attention over a sequence that is spread over several processes: context parallelism, as a ring.

Each process (rank) holds some rows of the sequence: `rows` says which. Keys and values pass round the ring
(`transfer`); each rank computes the piece of the matrix that its queries have with them, and merges the
pieces by their log-sum-exp (`pieces`). `ring` puts these together, with gradients.
"""
