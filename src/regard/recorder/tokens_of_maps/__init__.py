"""Which tokens the rows and keys of a map are, and what shows it."""
