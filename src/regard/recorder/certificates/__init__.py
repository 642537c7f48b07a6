"""Whether a recorded map is the model's own attention: evidence, examination, certificate."""
