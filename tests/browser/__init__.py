"""The page in a real browser. A package, so that its tests may bear the names of those they mirror."""
