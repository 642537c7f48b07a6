"""The page served on this machine: its application, its limits and its guard."""
