"""What a head does, as numbers: scores of queries and of heads, and what they are compared with."""
