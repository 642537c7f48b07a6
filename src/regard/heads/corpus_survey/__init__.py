"""Every head over a corpus: chunks of texts, sums that go on where they stopped, the best examples."""
