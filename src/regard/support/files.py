"""Reads files that anyone may have written, and writes files so that an interrupted write changes nothing.

Each kind of file has one error type, a `FileError`, which says in one sentence what is wrong. Only regular
files are opened, so that a pipe or a device never blocks; sizes are compared with limits before anything is
read; JSON is parsed strictly. This file knows bytes, text and JSON; what the fields of a file mean is known
to its reader.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import reprlib
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from regard.support.characters import escape

MAX_CONFIG_BYTES = 1 << 24
"""The largest config or index of weights: the index of 90,000 tensors has 9 MB."""
MAX_JSON_BYTES = 1 << 26
"""The largest JSON file of tokens or heads: a tokenizer of 260,000 tokens has 35 MB."""
MAX_VALUES = 1 << 22
"""The most commas and brackets in a JSON text: as a Python object each takes up to 100 bytes."""
CHUNK = 1 << 14  # characters of a text that are read at a time, extended to the end of the line
MAX_LINE = 1 << 20
MAX_REASON = 200  # characters of another library's error message that are repeated in ours
MAX_MESSAGE = 1000  # characters of a message
LARGEST_INTEGER = (1 << 63) - 1
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of half a character

T = TypeVar("T")
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
# reprlib, since repr of a deep or huge value takes long and may raise RecursionError.
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60


class FileError(ValueError):
    """A file cannot be used: the message names file and field, what was expected and what it holds.

    It is one line without control characters, whatever the file holds.
    """

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]}…"
        super().__init__(escape(message).replace("\n", "\\n"))


class ModelFileError(FileError):
    """A file of a model cannot be used: its config, weights, index or tokenizer, or a GGUF file."""


class CaptureFileError(FileError):
    """A file of a saved map or capture cannot be used."""


class RunFileError(FileError):
    """A file of a training run cannot be used: its checkpoint, or its history."""


class SurveyFileError(FileError):
    """A file of a survey cannot be used: its progress, or a table of heads."""


class TextFileError(FileError):
    """A text file cannot be used."""


Kind = type[FileError]


def is_present(path: Path) -> bool:
    """Whether there is anything of this name: a symbolic link, too, that leads nowhere or to itself.

    An optional file is absent only if there is nothing: what cannot be opened is an error.
    """
    try:
        return os.path.lexists(path)
    except ValueError:  # a path with a zero byte
        return False


def check_regular_file(path: Path, kind: Kind, contents: str) -> int:
    """Return the size of a file, or raise `kind` if it is missing or no regular file.

    `contents` says what it should hold, as "a JSON file". Opening a pipe would wait for its other end, and
    opening a device may do anything, so neither is opened.
    """
    try:
        # stat follows links, as the open does later: a link to a regular file may be read.
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        problem = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        if is_present(path) and isinstance(error, FileNotFoundError):
            problem = "is a symbolic link to a file that does not exist"
        raise kind(f"path: expected {contents}, got {path}, which {problem}") from None
    if not stat.S_ISREG(status.st_mode):
        raise kind(f"path: expected {contents}, got {path}, which is {_describe_mode(status.st_mode)}")
    return status.st_size


def _describe_mode(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe: save its contents to a file first" if stat.S_ISFIFO(mode) else "a device or a socket"


def open_file(path: Path, kind: Kind, contents: str) -> BufferedReader:
    """Open a regular file for reading; `kind` is raised if it is none, or cannot be opened."""
    check_regular_file(path, kind, contents)
    try:
        return path.open("rb")
    except OSError as error:
        raise kind(f"path: expected {contents}, got {path}, which cannot be read: {error}") from None


def read_text(path: Path, kind: Kind, contents: str, most: int = MAX_JSON_BYTES) -> str:
    """The text of a UTF-8 file of at most so many bytes; `kind` is raised if it is none."""
    with open_file(path, kind, contents) as file:
        # The size is that of the open file: the path may lead elsewhere since it was checked.
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise kind(f"{path}: expected {contents} of at most {most:,} bytes, got {size:,}")
        data = file.read(size)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise kind(f"{path}: expected {contents} in UTF-8, and byte {error.start} is not") from None


def read_chunks(path: Path, argument: str) -> Iterator[str]:
    """The text of a UTF-8 file in chunks that end with a line; a `TextFileError` if it is no text file.

    A line is cut after `MAX_LINE` characters. `argument` is what errors begin with.
    """
    empty = True
    # -sig: Windows' editors begin UTF-8 files with a byte order mark, which would be a token of its own.
    # newline="": line ends stay as they are.
    with TextIOWrapper(open_file(path, TextFileError, "a text file"), "utf-8-sig", newline="") as opened:
        try:
            while chunk := opened.read(CHUNK):
                # To the end of the line, so that no word is cut: a cut one would be encoded as other tokens.
                chunk += opened.readline(MAX_LINE)
                if "\0" in chunk:  # the rest need not be read
                    problem = f"but {path} contains zero bytes: it is binary, or UTF-16"
                    raise TextFileError(f"{argument}: expected text, {problem}")
                empty = empty and not chunk.strip()
                yield chunk
        except UnicodeDecodeError as error:
            raise TextFileError(
                f"{argument}: expected UTF-8 text, but {path} is not ({error.reason}): "
                "is it binary, or in another encoding?"
            ) from None
    if empty:
        raise TextFileError(f"{argument}: expected text, but {path} is empty")


def read_json(path: Path, kind: Kind) -> dict[str, Any]:
    """The object in a JSON file."""
    text = read_text(path, kind, "a JSON file", MAX_CONFIG_BYTES)
    with naming_errors(path, kind):
        return parse_object(text)


def parse_object(text: str, *, finite: bool = True) -> dict[str, Any]:
    """The object in a JSON text; see `parse_json`."""
    plain = parse_json(text, finite=finite)
    if not isinstance(plain, dict):
        raise ValueError(f"expected a JSON object, got {shorten(plain)}")
    return plain


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Parse JSON strictly; a ValueError of one sentence says what is wrong.

    A key may occur once in an object, integers fit into 64 bits, and numbers are finite unless `finite` is
    False. Texts of very many values are refused before they are parsed.
    """
    # Counted in the text, before anything is built: 64 MB of `[],[],…` would be several GB of lists.
    if (values := sum(map(text.count, ",[{"))) > MAX_VALUES:
        raise ValueError(f"expected JSON of at most {MAX_VALUES:,} values, got about {values:,}")
    try:
        plain = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_integer,
            parse_float=_finite if finite else float,
            parse_constant=_finite if finite else float,
        )
        # Python's parser accepts half a surrogate pair; it fails later, where the text is printed or saved.
        if SURROGATE.search(text):
            json.dumps(plain, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON: {error}") from None
    except UnicodeEncodeError:
        raise ValueError("expected JSON: a text in it holds half a character (a lone surrogate)") from None
    except RecursionError:
        raise ValueError("expected JSON with fewer levels: its lists and objects are too deep") from None
    return plain


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"expected each key of an object once, got {shorten(name)} {count} times")
    return plain


def _integer(text: str) -> int:
    # The length first: int() of a very long text takes quadratic time, and from 4,301 digits on it raises.
    if len(text) > 20 or not -LARGEST_INTEGER <= (number := int(text)) <= LARGEST_INTEGER:
        raise ValueError(f"expected integers that fit into 64 bits, got {shorten(text)}")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"expected finite numbers, got {shorten(text)}")
    return number


def get_field(data: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """The value of a field, which must be of this type; a ValueError names it."""
    if name not in data:
        raise ValueError(f"{name}: expected {WORDS[kind]}, got none")
    return check_type(name, data[name], kind)


def check_type(name: str, value: Any, kind: type[T]) -> T:
    """Return the value of a field if it is of this type, or raise a ValueError that names it.

    A whole number is a number, and true is neither.
    """
    # JSON has one type of number, and JavaScript writes 1.0 as 1.
    if kind is float and type(value) is int:
        return float(value)  # type: ignore[return-value]
    # Not isinstance: true is an int to Python.
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {WORDS[kind]}, got {shorten(value)}")
    return value


def shorten(value: object) -> str:
    """A value as an error message shows it: short, however large or deep it is.

    >>> shorten([[[[[[[[1]]]]]]]]), shorten("a" * 70)
    ('[[[[[[[...]]]]]]]', "'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'")
    """
    return _repr.repr(value)


@contextmanager
def naming_errors(path: Path, kind: Kind, problem: str = "", advice: str = "") -> Iterator[None]:
    """Raise a ValueError of the block as `kind`, after the name of the file and its `problem`.

    `advice` follows at the end. A `FileError` names its file already and stays as it is.
    """
    try:
        yield
    except FileError:
        raise
    except ValueError as error:
        raise kind(f"{path}{problem}: {error}{advice}") from None


@contextmanager
def converting_errors(path: Path, kind: Kind, contents: str) -> Iterator[None]:
    """Raise whatever another library raises in the block as `kind`: their readers raise any type.

    A panic of a library in Rust is not even an `Exception`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, FileError):
        raise
    except BaseException as error:
        reason = str(error).strip().partition("\n")[0][:MAX_REASON] or type(error).__name__
        raise kind(f"{path} is not {contents}: {reason}") from None


REASONS = {
    errno.EACCES: "which is read-only for this user",
    errno.EPERM: "which is read-only for this user",
    errno.EROFS: "which is on a read-only file system",
    errno.ENOSPC: "where no space is left",
    errno.EDQUOT: "where no space is left in this user's quota",
}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` if the block raises no exception.

    It is in a folder of its own beside `path`, where libraries may put temporary files of theirs too. If the
    process is killed, that folder stays until `remove_temporary_files`.
    """
    # The same folder, since os.replace is atomic only within a file system.
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary = folder / path.name
        temporary.touch()
        # The mode that the umask gives a new file, before a library replaces it.
        mode = temporary.stat().st_mode
        yield temporary
        # Without fsync, a power cut after the rename may leave an empty file under the final name.
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)  # a library may have put a file there that only the owner can read
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporary_files(folder: Path, pattern: str) -> None:
    """Delete what `atomic_write` left of files whose names match a pattern, in processes that were killed."""
    for leftover in folder.glob(f".{pattern}.{'[a-z0-9_]' * 8}"):  # as mkdtemp names them
        shutil.rmtree(leftover, ignore_errors=True)  # a file of this name is not ours, and stays


def check_target(name: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise ValueError, before any work is done, if a file has another suffix or its folder is not there.

    `name` is the argument that the message begins with.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        *others, last = suffixes
        expected = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{name}: expected a file that ends with {expected}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{name}: expected a file in a folder that exists, got {path}: make {path.parent}")


def check_folder_writable(name: str, folder: Path) -> None:
    """Raise an OSError, before any work is done, unless a file can be written to a folder.

    `name` is the argument that the message begins with. A file is written, since permission bits do not tell.
    """
    try:
        # TemporaryFile has no name on Linux (O_TMPFILE), so that nothing is left if the process is killed
        # here.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        raise write_error(name, folder, error) from None


def make_folder(name: str, folder: Path, kind: str = "a folder") -> None:
    """Make a folder, unless it is there; an error says why not, of the argument `name`."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{name}: expected {kind}, got {folder}, which is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(name, folder, error) from None


def write_error(name: str, place: Path, error: OSError) -> OSError:
    """The error that says why nothing can be written to `place`, which is the argument `name`."""
    reason = REASONS.get(error.errno or 0, f"which cannot be written to: {error.strerror or error}")
    return OSError(f"{name}: expected a place that can be written to, got {place}, {reason}")
