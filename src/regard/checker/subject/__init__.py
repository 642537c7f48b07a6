"""What is being checked: found, constructed, and called in the way that it expects."""
