"""The texts of the needle test: needles that no model can know, and sentences to hide them among.

A needle is a sentence in two parts. The first stands again at the end of the context; the second, which
nothing but the needle can tell, is the answer. This file holds text only.
"""

from __future__ import annotations

from typing import NamedTuple


class Needle(NamedTuple):
    """A sentence to hide in a text, in two parts, and how it is asked for at the end."""

    prompt: str
    """Its beginning."""
    answer: str
    """Its end, which is to be copied."""
    question: str = ""
    """What stands before the answer at the end of the context; by default the prompt again."""


NEEDLES = (
    Needle(" The word that opened the green gate was", " copper, violin, and seven lost brothers."),
    Needle(" The ship that Hannah Moor sold to the baker was called", " the Silver Goat of Arden Hill."),
    Needle(" The old man hid his letters under", " a blue table in the house of Peter Quill."),
    Needle(" The best thing to eat on Stone Island is", " cold bread with honey and a little black salt."),
    Needle(" In the last room of the tower they kept", " nine white horses made of glass and iron."),
    Needle(" Every Friday the captain's daughter wrote to", " Doctor Samuel Frost, who lived in a windmill."),
    Needle(" The name of the thief was known only to", " three sisters, a blind priest and the river."),
    Needle(" What Mrs. Bell wanted most in the world was", " yellow paper, a fast boat and some rain."),
)

FILLER = (
    " The road went down to the water and then along the shore.",
    " It had rained in the night, and the fields were dark.",
    " A few people were already on their way to the market.",
    " Nobody spoke much at that hour of the morning.",
    " The trees on the hill had begun to lose their leaves.",
    " Two boys were throwing stones into the pond.",
    " From time to time a cart came by and the dust rose.",
    " She looked out of the window and thought of the winter.",
    " There was a fire in the kitchen and the door stood open.",
    " He had read the same page twice without seeing it.",
    " The clock struck the hour, and somebody laughed outside.",
    " They said that the summer had been a short one.",
    " At noon the sun came through and the roofs were dry again.",
    " A dog lay before the shop and did not move.",
    " The women talked about the price of wool.",
    " It was the kind of day on which nothing happens.",
    " Later the wind turned, and the boats came in early.",
    " The children were called home one after another.",
    " In the evening the lamps were lit along the street.",
    " One could hear the mill from the other side of the valley.",
    " He put on his coat and went to look after the animals.",
    " The bread was good, and there was enough of it.",
    " Some of the houses had been empty for years.",
    " Then it was quiet, and the night came over the fields.",
)
