"""The text that commands read when they are given none.

Names and whole phrases are repeated in it word for word, so that induction heads have something to find.
"""

from pathlib import Path

TITLE = "The lamp at Farrow Point"
STORY = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
UNFINISHED_STORY = STORY[: STORY.rindex(" Ellis")]
"""The story up to a word that has followed the last one before."""
