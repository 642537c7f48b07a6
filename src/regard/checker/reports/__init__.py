"""What a check says: verdicts, failures, diagnoses and their evidence, as data and as text."""
