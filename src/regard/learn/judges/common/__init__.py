"""What the judges of several lessons share: first runs, variants, guesses, verdicts."""
