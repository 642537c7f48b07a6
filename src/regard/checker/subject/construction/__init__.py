"""From a file or a name to code that runs: it is found, read, built and called."""
