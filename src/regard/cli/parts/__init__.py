"""What several commands share: models, texts, options, output, signals, the page's server."""
