"""Hostile files: thousands of damaged files of every format, each of which must load or end in a sentence.

Each draw takes a small sample of a format and damages it: flipped, lost, moved and repeated bytes, sizes that
cannot be, and JSON values of other types. What loads is used a little. It must take less than a second of a
processor's time and 200 MB, and raise nothing but the error of that kind of file. The draws run in a process
of their own, whose memory is limited; a draw that hangs or crashes it is named by its format and number.
"""

import contextlib
import faulthandler
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

import regard
from regard import heads
from regard.gpt import GPT, Config
from regard.gpt.tokens import bpe_tokenizer, character_tokenizer
from regard.gpt.training import history
from regard.gpt.training import train as training
from regard.gpt.training.corpus import prepare
from regard.gpt.training.settings import TrainingSettings
from regard.heads.corpus_survey.survey import Shard, SurveyModel, SurveyPlan, join_survey, survey_shard
from regard.heads.corpus_survey.survey_chunks import chunk_file
from regard.heads.tables.table import HeadRow, Score
from regard.show.data.survey_rows import describe_survey, describe_survey_heads
from regard.support import files
from tests.attack.progress import counted
from tests.gpt.transformers_files import shard, write_llama
from tests.patience import HANGING

DRAWS = 5000  # files of each format
MAX_SECONDS, MAX_BYTES = 1.0, 200 << 20

SIZES = (0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
STRANGE = (
    *(None, True, 0, -1, 1, 3, 1_000_000, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 64, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "\0", "\ud800", "../../etc/passwd", "/dev/zero", "inf", "long " * 2000),
    *([], [[]], [0] * 2000, {}, {"kind": "Full"}, {"a": {"b": [1]}}),
)


class Format(NamedTuple):
    """A format: how to write a sample, how to read it, and what may be raised."""

    write: Callable[[Path], Path]
    """Writes a sample into a folder and returns the file that is damaged."""
    read: Callable[[Path], Any]
    """Reads the file, or the folder that it is in, and uses what it gets."""
    kind: str
    """The name of the error type, in `regard.support.files`."""
    damage: Callable[[bytes, random.Random], bytes]


# Damage


def damage_bytes(data, rng):
    """Damage the bytes of a file, without knowing what they mean."""
    out, how = bytearray(data), rng.randrange(8)
    start = rng.randrange(len(out) + 1) if rng.random() < 0.5 else min(len(out), int(rng.expovariate(0.02)))
    stop = min(len(out), start + int(rng.expovariate(0.05)) + 1)
    if how in (0, 1):
        for _ in range(rng.randint(1, 8)):
            if out:
                out[min(len(out) - 1, rng.randrange(len(out)) if how else start)] ^= 1 << rng.randrange(8)
    elif how == 2:
        del out[start:]
    elif how == 3:
        del out[start:stop]
    elif how == 4:
        out[start:start] = out[start:stop] * rng.choice((1, 2, 50))
    elif how == 5:
        out[start:stop] = bytes(stop - start)
    elif how == 6:
        out[start:stop] = rng.randbytes(stop - start)
    else:
        out[start : start + 8] = struct.pack("<Q", rng.choice(SIZES))
    return bytes(out)


def damage_json(data, rng):
    """Damage a JSON file: mostly its values, keys and levels, sometimes its bytes."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    lines = data.decode().splitlines() if b"\n{" in data else [data.decode()]
    number = rng.randrange(len(lines))
    plain = json.loads(lines[number])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        plain = _damage_value(plain, rng)
    text = json.dumps(plain)
    how = rng.random()
    if how < 0.05:
        depth = rng.choice((50, 900, 100_000))
        text = text.replace("1", "[" * depth + "]" * depth, 1)
    elif how < 0.15 and '": ' in text:
        start = rng.choice([i for i in range(len(text)) if text.startswith('": ', i)])
        name = text[text.rfind('"', 0, start) + 1 : start]
        text = f'{text[: start + 3]}0, "{name}": {text[start + 3 :]}'
    lines[number] = text
    return ("\n".join(lines) + ("\n" if data.endswith(b"\n") else "")).encode()


def _damage_value(plain, rng):
    """The same data with one value replaced, removed or repeated, at any level."""
    if isinstance(plain, str) and plain[:1] == "{" and rng.random() < 0.8:  # JSON in JSON
        with contextlib.suppress(ValueError):
            return json.dumps(_damage_value(json.loads(plain), rng))
    if not isinstance(plain, dict | list) or not plain or rng.random() < 0.05:
        return rng.choice(STRANGE)
    plain = plain.copy()
    key = rng.choice(list(plain)) if isinstance(plain, dict) else rng.randrange(len(plain))
    how = rng.random()
    if how < 0.1:
        del plain[key]
    elif how < 0.15 and isinstance(plain, list):
        plain.append(plain[key])
    elif how < 0.2 and isinstance(plain, dict):
        plain[rng.choice(("extra", "", "window", "\ud800"))] = rng.choice(STRANGE)
    elif how < 0.25 and isinstance(plain, dict):
        plain[key] = plain[rng.choice(list(plain))]
    elif isinstance(plain[key], int) and how < 0.4:
        plain[key] = plain[key] + rng.choice((-1, 1, 1000))
    else:
        plain[key] = _damage_value(plain[key], rng)
    return plain


def damage_safetensors(data, rng):
    """Damage a safetensors file: mostly its header, with its length made to fit."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    (length,) = struct.unpack("<Q", data[:8])
    header = damage_json(data[8 : 8 + length].rstrip(), rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


GGUF_CODES = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))


def encode_gguf(fields, tensors, counts=None):
    """A GGUF file of fields (name, type, value) and tensors (name, shape, type, offset), and 4 kB of data."""
    count = counts or (len(tensors), len(fields))
    out = struct.pack("<4sIQQ", b"GGUF", 3, *count)
    for name, kind, value in fields:
        out += _encode_text(name) + struct.pack("<I", kind) + _encode_value(kind, value)
    for name, shape, kind, offset in tensors:
        out += _encode_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32) + bytes(range(256)) * 16


def _encode_text(text):
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _encode_value(kind, value):
    """A value; an array is (type, values, length)."""
    if kind == 8:
        return _encode_text(value)
    if kind == 9:
        inner, values, length = value
        items = b"".join(_encode_value(inner, item) for item in values)
        return struct.pack("<IQ", inner, length) + items
    return struct.pack(f"<{GGUF_CODES[kind]}", value)


def gguf_parts():
    """The fields and tensors of a small Llama."""
    tokens = [*"abcdefgĠ", "ab", "<s>"]
    numbers = {
        "block_count": 2,
        "context_length": 16,
        "embedding_length": 8,
        "feed_forward_length": 8,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    }
    fields = [("general.architecture", 8, "llama"), ("general.alignment", 4, 32)]
    fields += [(f"llama.{name}", 4, value) for name, value in numbers.items()]
    fields += [
        ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5),
        ("llama.rope.freq_base", 6, 10000.0),
        ("tokenizer.ggml.model", 8, "gpt2"),
        ("tokenizer.ggml.pre", 8, "gpt-2"),
        ("tokenizer.ggml.tokens", 9, (8, tokens, len(tokens))),
        ("tokenizer.ggml.merges", 9, (8, ["a b"], 1)),
        ("tokenizer.ggml.token_type", 9, (5, [1] * 9 + [3], 10)),
        ("tokenizer.ggml.eos_token_id", 4, 9),
    ]
    shapes = {"token_embd": (8, 10), "output_norm": (8,)}
    for layer in range(2):
        block = {"attn_q": (8, 8), "attn_k": (8, 4), "attn_v": (8, 4), "attn_output": (8, 8)}
        block |= {"ffn_gate": (8, 8), "ffn_up": (8, 8), "ffn_down": (8, 8)}
        block |= {"attn_norm": (8,), "ffn_norm": (8,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    tensors, offset = [], 0
    for name, shape in shapes.items():
        tensors.append((f"{name}.weight", shape, 1, offset))
        offset += -(-2 * math.prod(shape) // 32) * 32
    return fields, tensors


# Formats


def _model(**options):
    """A small GPT with a tokenizer, the same every time."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 10, "context_length": 16, "num_layers": 2, "num_heads": 2, "d_model": 8}
    model = GPT(Config(**sizes | options)).eval()
    model.tokenizer = character_tokenizer("abcdefg ")
    return model


def write_model(file, **options):
    def write(folder):
        _model(**options).save(folder)
        return folder / file

    return write


def write_tokenizer(folder):
    """A tokenizer with every part that one may have."""
    _model(vocab_size=300).save(folder)
    tokenizer = bpe_tokenizer(["the cat sat on the mat because the cat was tired\n" * 3], 280)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("q", "k")])
    split = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def write_family_config(folder):
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
    settings = {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **scaling}}
    (path := write_llama(folder, **settings)).with_name("generation_config.json").write_text(
        json.dumps({"eos_token_id": [3], "top_p": 0.5})
    )
    return path


def write_index(folder):
    write_llama(folder)
    return shard(folder)


def write_gguf(folder):
    folder.mkdir(exist_ok=True)
    (folder / "model.gguf").write_bytes(encode_gguf(*gguf_parts()))
    return folder / "model.gguf"


def read_model(path):
    """Load a model from a file or its folder, and run it."""
    model = GPT.from_pretrained(path if path.suffix == ".gguf" else path.parent)
    ids = [0, 1, 2]
    with torch.no_grad(), contextlib.suppress(ValueError):  # such as a context of two tokens
        model(torch.tensor([ids]))
        if model.tokenizer is not None:
            model.generate("abc", max_new_tokens=1)


def write_map(folder):
    folder.mkdir(exist_ok=True)
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    mask = (regard.causal & regard.window(4)) | regard.documents(torch.tensor([[0, 0, 1, 1, 1, 2]] * 2))
    regard.attention_map(q, k, mask=mask & regard.padding([6, 4]), softcap=30.0).save(folder / "map")
    return folder / "map"


def read_map(path):
    m = regard.load(path)
    if 0 not in m.shape:
        m[(0,) * (m.ndim - 1)]
    m.entropy()


def write_capture(pattern, store):
    def write(folder):
        model = _model()
        regard.capture(model, text="abc cab", tokenizer=model.tokenizer, store=store).save(folder)
        return min(folder.glob(pattern))

    return write


def read_capture(path):
    seen = regard.load(path.parent)
    str(seen.certificate)
    repr(seen)
    for layer in seen.layers:
        data = layer.data()
        if data.map is not None:
            data.map.entropy()


def write_survey(folder):
    folder.mkdir(exist_ok=True)
    (folder / "corpus.txt").write_text("abc cab gag fed\n" * 40)
    survey_shard(*_survey(folder), folder / "heads.csv", Shard(0, 1))
    return chunk_file(folder / "heads.csv", 0)


def _survey(folder):
    """A model and the plan of a survey."""
    gpt = _model(context_length=32)

    def encode(text):
        return gpt.tokenizer.encode(text.replace("\n", " ")).ids

    return SurveyModel("m", gpt.maps, encode, None, "digest"), SurveyPlan(folder / "corpus.txt", length=32)


def read_survey(path):
    folder = path.parent.parent
    survey_shard(*_survey(folder), folder / "heads.csv", Shard(0, 1))  # reads the chunks that are there


def write_examples(folder):
    write_survey(folder)
    join_survey(*_survey(folder), folder / "heads.csv")
    return folder / "heads.csv.examples"


def read_examples(path):
    result = heads.read_survey(path)
    json.dumps([describe_survey(result), describe_survey_heads(result)], allow_nan=False)


def write_table(folder):
    folder.mkdir(exist_ok=True)
    score = Score(0.5, 0.1, math.nan, 0.4, 0.6, 0.5)
    rows = [
        HeadRow(0, head, head, ("induction",), 0, {"induction": score, "sink": score}) for head in range(2)
    ]
    heads.HeadTable(rows).to_json(folder / "heads.json")
    return folder / "heads.json"


def read_table(path):
    table = heads.HeadTable.from_json(path)
    str(table)
    table.to_json()


def _run_arguments():
    corpus = prepare("the cat sat on the mat because the cat was tired\n" * 4, 8)
    sizes = {"num_layers": 1, "num_heads": 2, "d_model": 8}
    config = Config(vocab_size=corpus.vocab_size, context_length=8, **sizes)
    return config, corpus, TrainingSettings(steps=2, batch_size=2, evaluate_every=1, evaluate_tokens=64)


def write_run(file):
    def write(folder):

        config, corpus, settings = _run_arguments()
        folder.parent.mkdir(exist_ok=True)
        training.train(config, corpus, folder, settings, device="cpu", quiet=True)
        return folder / file

    return write


def read_run(path):
    """Resume a run, but train no more."""
    run, training.TrainingRun.run = training.TrainingRun.run, lambda self, stop: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config, corpus, settings = _run_arguments()
            training.train(config, corpus, path.parent, settings, resume=True, device="cpu", quiet=True)
    finally:
        training.TrainingRun.run = run


def read_history(path):
    json.dumps(history.read_run(path.parent), allow_nan=False)


OWN_CONFIG = {"window": (4, None), "eos_token_id": (1,), "norm": "rms", "positions": "rotary"}
CONFIG, WEIGHTS = write_model("config.json", **OWN_CONFIG), write_model("model.safetensors")
CAPTURE, LAYER = write_capture("capture.json", "maps"), write_capture("layer-*.safetensors", "maps")
SUMMARY = write_capture("layer-*.safetensors", "statistics")
FORMATS = {
    "gguf": Format(write_gguf, read_model, "ModelFileError", damage_bytes),
    "config": Format(CONFIG, read_model, "ModelFileError", damage_json),
    "llama_config": Format(write_family_config, read_model, "ModelFileError", damage_json),
    "weights": Format(WEIGHTS, read_model, "ModelFileError", damage_safetensors),
    "index": Format(write_index, read_model, "ModelFileError", damage_json),
    "tokenizer": Format(write_tokenizer, read_model, "ModelFileError", damage_json),
    "map": Format(write_map, read_map, "CaptureFileError", damage_safetensors),
    "capture": Format(CAPTURE, read_capture, "CaptureFileError", damage_json),
    "layer": Format(LAYER, read_capture, "CaptureFileError", damage_safetensors),
    "summary": Format(SUMMARY, read_capture, "CaptureFileError", damage_safetensors),
    "survey": Format(write_survey, read_survey, "SurveyFileError", damage_safetensors),
    "examples": Format(write_examples, read_examples, "SurveyFileError", damage_safetensors),
    "table": Format(write_table, read_table, "SurveyFileError", damage_json),
    "checkpoint": Format(write_run("checkpoint.safetensors"), read_run, "RunFileError", damage_safetensors),
    "metrics": Format(write_run("metrics.jsonl"), read_history, "RunFileError", damage_json),
    "heads": Format(write_run("heads.jsonl"), read_history, "RunFileError", damage_json),
}


# The process that reads


def _work(draws, seed, folder, said):
    """Draw files of each format. What is said in the end is the figures, or the draw that went wrong."""
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.simplefilter("ignore")
    figures = {"formats": len(FORMATS), "files": draws * len(FORMATS), "files that loaded": 0}
    figures["worst seconds"] = 0.0
    for name, format in FORMATS.items():
        sample = format.write(folder / name)
        format.read(sample)  # the sample itself is a good file
        whole = sample.read_bytes()
        for draw in counted(draws, name):
            said.write_text(at := f"{name}, draw {draw} (seed {seed}): the process crashed or hung")
            faulthandler.dump_traceback_later(HANGING, exit=True)
            problem = _draw(format, sample, whole, random.Random(f"{seed} {name} {draw}"), figures)
            faulthandler.cancel_dump_traceback_later()
            if problem is not None:
                said.write_text(at.replace("the process crashed or hung", problem))
                sys.exit(1)
        shutil.rmtree(folder / name)
    said.write_text(json.dumps(figures))


def _draw(format, sample, whole, rng, figures):
    """Damage a sample, read it and add to the figures; return what is wrong with that, or None."""
    sample.write_bytes(format.damage(whole, rng))
    kept = {path.name for path in sample.parent.iterdir()}
    _limit_memory(MAX_BYTES)
    start, problem = time.process_time(), None
    try:
        format.read(sample)
        figures["files that loaded"] += 1
    except getattr(files, format.kind) as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            problem = f"expected one sentence, got {str(error)[:300]!r} of {len(str(error))} characters"
    except BaseException as error:
        problem = f"expected {format.kind}, got {type(error).__name__}: {str(error)[:300]}"
    seconds = time.process_time() - start
    _limit_memory(None)
    if problem is None and seconds > MAX_SECONDS:
        problem = f"took {seconds:.2f} s of a processor"
    figures["worst seconds"] = max(figures["worst seconds"], seconds)
    for path in sample.parent.iterdir():
        if path.name not in kept and path.is_file():
            path.unlink()  # what a resume wrote
    return problem


def _limit_memory(more):
    """Limit the address space to so many bytes beyond what is used now; None lifts the limit."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (hard if more is None else used + more, hard))


def attack(draws=DRAWS, seed=0):
    """Draw so many files of each format; an AssertionError names the first draw that went wrong."""
    with tempfile.TemporaryDirectory(prefix="regard-attack-") as folder:
        said = Path(folder) / "said"
        arguments = (draws, seed, Path(folder), said)
        worker = multiprocessing.get_context("spawn").Process(target=_work, args=arguments, daemon=True)
        worker.start()
        worker.join()
        assert worker.exitcode == 0, said.read_text() if said.exists() else "before the first draw"
        return json.loads(said.read_text())
