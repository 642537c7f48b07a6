"""The example sentence of the stages, and the pictures of each step."""
