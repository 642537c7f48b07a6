"""Training a GPT: the loop, its data, checkpoints, evaluation and the history of a run."""
