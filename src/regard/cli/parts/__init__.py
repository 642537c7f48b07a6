"""What several commands share: models, texts, options, progress, signals, the page's server."""
