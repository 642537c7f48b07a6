"""The output against the oracle's: forms of masks, diagnoses, and when nothing is decided."""
