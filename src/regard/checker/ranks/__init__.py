"""Attention over several processes: started, fed, compared, and its mistakes named."""
