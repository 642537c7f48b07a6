"""The corpus: nanoGPT's split, windows that depend only on seed and step, and errors for bad files."""

from pathlib import Path

import pytest
import torch

from regard.gpt.training.corpus import prepare, python_documentation, read

TEXT = "".join(chr(97 + i * i % 26) + (" " if i % 5 == 0 else "") for i in range(1000))


def test_targets_are_the_next_tokens() -> None:
    inputs, targets = prepare(TEXT, 8).training_batch(0, 0, 6, slice(None))
    assert inputs.shape == targets.shape == (6, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_order_depends_on_seed_and_step_alone() -> None:
    one, two = prepare(TEXT, 8), prepare(TEXT, 8)
    two.training_batch(3, 7, 4, slice(None))  # what was drawn before does not matter
    assert torch.equal(
        one.training_batch(3, 5, 4, slice(None))[0], two.training_batch(3, 5, 4, slice(None))[0]
    )
    for seed, step in ((3, 6), (4, 5)):
        assert not torch.equal(
            one.training_batch(3, 5, 4, slice(None))[0], one.training_batch(seed, step, 4, slice(None))[0]
        )


def test_validation_reads_every_token_once() -> None:
    corpus = prepare(TEXT, 8)
    seen = torch.cat([targets for _, targets in corpus.validation_batches(10**9, 5, slice(None))]).flatten()
    assert torch.equal(seen, corpus.validation[1 : 1 + len(seen)].long())
    assert len(corpus.validation) - 1 - len(seen) < 8


def test_validation_of_fewer_tokens_is_spread_out() -> None:
    corpus = prepare(TEXT, 8)
    corpus.validation[:] = torch.arange(len(corpus.validation)).clamp(max=corpus.vocab_size - 1)
    first = torch.cat([inputs for inputs, _ in corpus.validation_batches(3 * 8, 5, slice(None))])
    assert first.shape == (3, 8)
    parts = [inputs for i in range(2) for inputs, _ in corpus.validation_batches(3 * 8, 1, slice(i, None, 2))]
    assert torch.equal(torch.cat([parts[0], parts[2], parts[1]]), first)


def test_an_empty_text() -> None:
    with pytest.raises(ValueError, match="corpus: expected text, got an empty string"):
        prepare("", 8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "expected UTF-8 text, .* is not .*start byte.*: is it binary"),
        (b"text and \0 zero", "contains zero bytes"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_a_mark_at_the_start_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\ufefftext".encode())
    assert read(path) == "text"


def test_the_library_is_read_in_the_order_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zoo.py", "ant.py", "tests/ant.py", "cat/fish.py", "cat/dog.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'"""Of {name}."""')
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert python_documentation().endswith(
        "\n\nOf ant.py.\n\nOf cat/dog.py.\n\nOf cat/fish.py.\n\nOf zoo.py.\n"
    )
