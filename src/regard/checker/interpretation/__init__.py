"""What unknown code computes: hypotheses of wiring, layout and intent, tried until one explains it."""
