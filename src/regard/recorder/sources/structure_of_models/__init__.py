"""What is known of a model before it runs: its layers, their names, their code, their heads."""
