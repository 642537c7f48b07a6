"""How to fix what is wrong in a lesson file: hints that say more each time, and lines that were tried."""
