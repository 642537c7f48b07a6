"""The short version of the attack with hostile files; `make attack` draws thousands of each format."""

import pytest

from tests.attack import files


@pytest.mark.at_length("test_damaged_layers_are_refused_by_name")
def test_hostile_files_load_or_end_in_a_sentence():
    figures = files.attack(draws=1, seed=0)
    assert figures["formats"] == len(files.FORMATS)
    assert 0 < figures["files that loaded"] < figures["files"]
