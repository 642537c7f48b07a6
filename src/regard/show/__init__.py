"""Pictures: figures, the page and its server."""
