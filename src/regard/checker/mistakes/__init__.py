"""The mistakes of the catalogue, by theme."""
