"""Files that anyone may have written: what is no regular file, too long, or no JSON ends in one sentence."""

import os
import socket
from pathlib import Path

import pytest

import regard
from regard.gpt import GPT, Config
from regard.gpt.training.corpus import read
from regard.heads.corpus_survey.corpus import digest
from regard.support.files import (
    CaptureFileError,
    FileError,
    ModelFileError,
    TextFileError,
    check_type,
    converting_errors,
    get_field,
    naming_errors,
    parse_json,
    read_chunks,
    read_json,
    read_text,
)

LINKS = [
    ("nowhere", "is a symbolic link to a file that does not exist"),
    ("{name}", "cannot be read: .*Too many levels of symbolic links"),
]
"""Where a link leads that cannot be followed, and what is said of it."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected JSON"),
        ('{"a": 1, "b": 2, "a": 3}', "expected each key of an object once, got 'a' 2 times"),
        ("[" * 100_000, "too deep"),
        ('{"a":' * 100_000, "too deep"),
        ("9" * 19, "fit into 64 bits"),
        ("-" + "9" * 5000, "fit into 64 bits"),
        ("1e999", "expected finite numbers, got '1e999'"),
        ("[NaN]", "expected finite numbers, got 'NaN'"),
        ("-Infinity", "expected finite numbers"),
        (r'"\ud800"', "half a character"),
        ("[" + "[]," * 3_000_000 + "[]]", "expected JSON of at most 4,194,304 values, got about 6,000,002"),
    ],
)
def test_json_that_is_refused(text, says):
    with pytest.raises(ValueError, match=says) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 300


def test_json_that_is_read():
    assert parse_json(r'{"a": [9223372036854775807, -1.5, null, "\ud83d\ude00"]}') == {
        "a": [(1 << 63) - 1, -1.5, None, "\U0001f600"]
    }
    assert str(parse_json("[NaN, Infinity]", finite=False)) == "[nan, inf]"


def test_fields_have_types():
    assert get_field({"a": 1}, "a", int) == 1
    assert check_type("a", 1, float) == 1.0
    for value, kind, says in (
        (True, int, "a: expected a whole number, got True"),
        ("1", float, "a: expected a number, got '1'"),
        ([1] * 1000, dict, r"a: expected an object, got \[1, 1, 1, 1, 1, 1, \.\.\.\]"),
    ):
        with pytest.raises(ValueError, match=says):
            check_type("a", value, kind)
    with pytest.raises(ValueError, match="b: expected text, got none"):
        get_field({}, "b", str)


def test_an_error_is_one_line_without_control_characters():
    message = str(FileError("a\x1b[31m\nb" + "c" * 5000))
    assert message.startswith(r"a\u001b[31m\nbc")
    assert len(message) < 1100


def test_errors_get_the_name_of_the_file_once():
    with (
        pytest.raises(CaptureFileError, match=r"^map is damaged: shape: odd$"),
        naming_errors(Path("other"), ModelFileError),
        naming_errors(Path("map"), CaptureFileError, " is damaged"),
    ):
        raise ValueError("shape: odd")


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), BaseException("a panic\nof Rust")])
def test_whatever_a_library_raises_becomes_ours(error):
    with (
        pytest.raises(ModelFileError, match=r"^x is not a model: ('x'|MemoryError|a panic)$"),
        converting_errors(Path("x"), ModelFileError, "a model"),
    ):
        raise error


def test_ctrl_c_is_no_error_of_a_file():
    with pytest.raises(KeyboardInterrupt), converting_errors(Path("x"), ModelFileError, "a model"):
        raise KeyboardInterrupt


def make(folder, kind):
    """Something that is no regular file."""
    path = folder / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket", "missing"])
def test_what_is_no_regular_file_is_never_opened(kind, tmp_path, monkeypatch):
    """Opening a pipe would wait for ever, and reading /dev/zero would never end."""
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path, kind)
    for reader in (read, digest, lambda path: list(read_chunks(path, "corpus"))):
        with pytest.raises(TextFileError, match="expected a text file"):
            reader(path)
    with pytest.raises(ModelFileError, match="expected a JSON file"):
        read_json(path, ModelFileError)
    with pytest.raises(CaptureFileError):
        regard.load(path)
    with pytest.raises(ModelFileError):
        GPT.from_pretrained(path)


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", INDEX, "tokenizer.json", "generation_config.json"]
)
def test_every_file_of_a_model_is_a_regular_one_and_no_link_to_nowhere(name, tmp_path):
    """Without its tokenizer or generation config a model would load, and be another one."""
    model = GPT(Config(vocab_size=8, context_length=4, num_layers=1, num_heads=1, d_model=2))
    model.save(tmp_path / "model")
    path = tmp_path / "model" / name
    path.unlink(missing_ok=True)
    for kind in ("pipe", "folder", "device") if name != INDEX else ():
        make(tmp_path, kind).rename(path)
        with pytest.raises(ModelFileError, match=f"{name}, which is a"):
            GPT.from_pretrained(tmp_path / "model")
        path.rename(tmp_path / kind)
    for target, says in LINKS:
        path.symlink_to(target.format(name=name))
        with pytest.raises(ModelFileError, match=f"{name}, which {says}"):
            GPT.from_pretrained(tmp_path / "model")
        path.unlink()


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room on the disk
    with pytest.raises(ModelFileError, match=r"of at most 16,777,216 bytes, got 1,099,511,627,776"):
        read_json(tmp_path / "config.json", ModelFileError)


def test_a_text_of_zero_bytes_is_not_read_to_its_end(tmp_path):
    with (tmp_path / "book.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TextFileError, match="zero bytes"):
        read(tmp_path / "book.txt")
    with pytest.raises(TextFileError, match="zero bytes"):
        list(read_chunks(tmp_path / "book.txt", "corpus"))


def test_text_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(
        ModelFileError, match=r"config\.json: expected a JSON file in UTF-8, and byte 7 is not"
    ):
        read_text(tmp_path / "config.json", ModelFileError, "a JSON file")
