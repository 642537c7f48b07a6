"""A small language for lesson 10: every sentence of it, drawn with equal chance, with the entropies known.

    . mia found the lamp near the river yesterday and she took the lamp from the river home .

Eight choices make a sentence. The pronoun, the second object and the second place follow from words that
stand some words before, so that only a model that looks back can know them.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

NAMES = ("mia", "ada", "eva", "ida", "tom", "ben", "max", "leo")  # the first half is "she", the second "he"
VERBS, VERBS_AGAIN = ("found", "bought", "saw", "made"), ("took", "carried", "brought", "sent")
OBJECTS = ("lamp", "boat", "book", "coat", "drum", "kite", "bell", "ring")
PREPOSITIONS, TIMES = ("near", "behind", "at"), ("today", "yesterday", "later")
PLACES = ("river", "house", "bridge", "market", "school", "garden")
OTHERS = (".", "the", "and", "she", "he", "from", "home")
WORDS = (*OTHERS, *NAMES, *VERBS, *VERBS_AGAIN, *OBJECTS, *PREPOSITIONS, *TIMES, *PLACES)
LENGTH = 19  # words of a sentence, with the full stop before it


def ids_of(*words: str) -> Tensor:
    """Return the numbers of words, (words,).

    >>> ids_of("the", "lamp").tolist()
    [1, 23]
    """
    return torch.tensor([WORDS.index(word) for word in words])


@cache
def all_sentences() -> Tensor:
    """Return every sentence of the language, (165888, 19)."""
    groups = (NAMES, VERBS, OBJECTS, PREPOSITIONS, PLACES, VERBS_AGAIN, TIMES)
    choices = torch.cartesian_prod(*(ids_of(*group) for group in groups))
    name, verb, thing, preposition, place, verb_again, time = choices.unbind(1)
    she, he = ids_of("she", "he")
    pronoun = torch.where(torch.isin(name, ids_of(*NAMES[:4])), she, he)
    stop, the, and_, from_, home = (
        word.expand(len(name)) for word in ids_of(".", "the", "and", "from", "home")
    )
    before = [name, verb, the, thing, preposition, the, place]
    after = [and_, pronoun, verb_again, the, thing, from_, the, place, home]
    orders = ([time, *before, *after], [*before, time, *after], [*before, *after, time])
    return torch.cat([torch.stack([stop, *order, stop], dim=1) for order in orders])


def draw_sentences(count: int, generator: torch.Generator) -> Tensor:
    """Return `count` random sentences, (count, 19)."""
    sentences = all_sentences()
    return sentences[torch.randint(len(sentences), (count,), generator=generator)]


def entropy() -> float:
    """Return the entropy of a sentence for each word, in nats: no model has a lower mean loss.

    Every sentence is equally likely, and each stands once in `all_sentences`.
    """
    return math.log(len(all_sentences())) / (LENGTH - 1)


@cache
def loss_without_attention() -> float:
    """Return the lowest loss of a model that knows the present word and its position, and nothing before."""
    sentences, total = all_sentences(), 0.0
    for position in range(LENGTH - 1):
        pairs = sentences[:, position] * len(WORDS) + sentences[:, position + 1]
        counts = torch.bincount(pairs, minlength=len(WORDS) ** 2).view(len(WORDS), -1).double()
        joint = counts / len(sentences)
        conditional = joint / joint.sum(1, keepdim=True)
        # nansum: a word that never stands at this position has 0 / 0 as its conditional.
        total -= torch.xlogy(joint, conditional).nansum().item()
    return total / (LENGTH - 1)
