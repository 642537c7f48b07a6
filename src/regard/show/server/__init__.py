"""The page's web server: its application, its limits and its guard."""
