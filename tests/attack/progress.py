"""How far an attack is: a line every ten seconds, so that the short versions in the suite print nothing."""

import time

SECONDS = 10.0


def counted(draws, what):
    """Yield the number of each draw, and say from time to time how many are done."""
    said = time.monotonic()
    for number in range(draws):
        yield number
        if time.monotonic() - said > SECONDS:
            print(f"  {what}: {number + 1:,} of {draws:,}", flush=True)
            said = time.monotonic()
