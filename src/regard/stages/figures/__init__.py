"""The walk through the stages in a terminal, and the pictures of each step."""
