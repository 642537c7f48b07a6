"""The text that commands read when they are given none.

Names and whole phrases are repeated in it word for word, so that induction heads have something to find.
"""

TITLE = "The lamp at Farrow Point"
STORY = """\
In the year of the great storm, Mary Ellis kept the lamp at Farrow Point. Every night Mary Ellis climbed the \
long stair, and every night the lamp was lit. "If the lamp is lit," said her father, "the ships will come \
home." And so it was that the ships came home.

One night Captain Thomas Reed, who had sailed from Lisbon with silver and salt, could not see the land. \
"There is no lamp at Farrow Point," said Captain Thomas Reed. "There is no lamp, and there is no land." The \
wind was in the north, and the sea was high.

But Mary Ellis had climbed the long stair. She had no oil, and so she burned the chair, the table and the \
door; and when the door was gone, she burned the letters that Captain Thomas Reed had written from Lisbon. \
"If the lamp is lit," said Mary Ellis, "the ships will come home."

And so it was that the ships came home. Captain Thomas Reed walked from the sea to Farrow Point with silver \
and salt, and he asked for the letters that he had written from Lisbon. "They are in the lamp," said Mary \
Ellis. "They were the best light that we had."
"""

UNFINISHED_STORY = STORY[: STORY.rindex(" Ellis")]
"""The story up to a word that has followed the last one before."""
