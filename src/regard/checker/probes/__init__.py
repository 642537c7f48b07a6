"""The probes: each checks one property of a subject and records what it finds in the session."""
