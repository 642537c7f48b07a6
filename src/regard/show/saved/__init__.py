"""The page as one HTML file: its data packed and its modules bundled."""
