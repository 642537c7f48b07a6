"""Small utilities: files, characters, imports, processes, wrappers."""
