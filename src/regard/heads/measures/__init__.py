"""What a head does, as numbers: one file a score."""
