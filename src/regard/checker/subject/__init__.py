"""The code under test: how it is found, constructed, called and wired."""
