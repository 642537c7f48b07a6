"""Which mistakes are named: none that change nothing on what was asked."""

import torch
from torch.nn import functional as F

from regard.checker.diagnose import diagnose, diagnose_pairs
from regard.checker.oracle.oracle import Intent, Observation
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Rotation, Wiring
from tests.checker.corpus import wrong
from tests.checker.layers import FusedHeads


def turned_by(base):
    """Return causal attention with rotary positions of this base."""
    frequencies = base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    return Intent(Wiring(rotate=Rotation(frequencies, "half")), causal=True)


def observations_of(intent):
    random = torch.Generator().manual_seed(0)
    for T in (7, 5):
        q, k, v = (torch.randn(2, 4, T, 8, generator=random, dtype=torch.float64) for _ in range(3))
        yield Observation(question := Question("output", q, k, v), intent.answer(question))


def test_no_mistake_is_named_where_an_interpretation_explains_the_output_without_it():
    usual, other = turned_by(10000.0), turned_by(500.0)
    observations = list(observations_of(other))
    assert diagnose(observations, [usual, other]) == []
    assert diagnose_pairs(observations, [other]) == []


class GrownTable(FusedHeads):
    """Its rotary positions get another base with the first long text, and keep it."""

    def __init__(self, d_model, n_head, max_position_embeddings=64):
        super().__init__(d_model, n_head)
        self.most = max_position_embeddings
        self.angles = None

    def rotate(self, x):
        T, D = x.shape[-2:]
        if self.angles is None or self.angles.shape[0] < T:
            base = 10000 * max(1, T / self.most) ** 1.2
            frequencies = base ** (-torch.arange(0, D, 2).float() / D)
            self.angles = torch.outer(torch.arange(max(T, self.most)).float(), frequencies)
        cos, sin = self.angles[:T].cos().to(x), self.angles[:T].sin().to(x)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)


def test_a_table_that_a_long_text_changes_is_named_as_what_is_kept_between_calls():
    report = wrong(GrownTable, "state-between-calls").judge()
    assert {diagnosis.name for diagnosis in report.diagnoses} == {"state-between-calls", "plain-attribute"}
