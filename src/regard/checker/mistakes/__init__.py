"""The catalogue of mistakes, by theme."""
