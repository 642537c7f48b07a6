"""What the right answer is: questions, projections as the module wires them, and variants of attention."""
