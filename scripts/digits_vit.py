"""Train a small vision transformer to name a handwritten digit that stands somewhere in a noisy picture.

The digits are those that scikit-learn carries (Optical Recognition of Handwritten Digits, by E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, CC BY 4.0). A picture has 32 × 32 pixels, in which a digit of
24 × 24 has a random place, and the model cuts it into 8 × 8 patches.

    python -m scripts.digits_vit    train it; two minutes on one core; needs scikit-learn

The weights are in digits_vit.safetensors, with some digits that the model was not trained on. `load` opens
them without scikit-learn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = Path(__file__).with_suffix(".safetensors")
CONFIG = {
    "image_size": 32,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
    "num_register_tokens": 2,
    "num_labels": 10,
}
SIDE, NOISE = 24, 0.05  # pixels of a digit, and the standard deviation of what is added to all pixels
MEAN, STD = (0.1,), (0.3,)  # by which the pixels are normalised
TRAINED_ON = 1437  # of the 1,797 digits; the others are only tested on
KEPT = 64  # digits in the file
STEPS, BATCH, RATE = 1500, 64, 3e-3


class DigitsModel(NamedTuple):
    """The trained model, with digits that it was not trained on."""

    model: Any
    digits: Tensor  # (64, 8, 8) from 0 to 1
    labels: Tensor  # (64,)


def compose(digits: Tensor, seed: int = 0) -> Tensor:
    """Return pictures (N, 1, 32, 32), normalised, in which each digit (N, 8, 8) has a random place."""
    generator = torch.Generator().manual_seed(seed)
    room = CONFIG["image_size"] - SIDE
    large = F.interpolate(digits[:, None], size=(SIDE, SIDE), mode="bilinear")
    pictures = torch.zeros(len(digits), 1, CONFIG["image_size"], CONFIG["image_size"])
    corners = torch.randint(0, room + 1, (len(digits), 2), generator=generator).tolist()
    for picture, digit, (top, left) in zip(pictures, large, corners, strict=True):
        picture[:, top : top + SIDE, left : left + SIDE] = digit
    noise = NOISE * torch.randn(pictures.shape, generator=generator)
    return ((pictures + noise).clamp(0, 1) - MEAN[0]) / STD[0]


def build(config: dict[str, Any] | None = None) -> Any:
    """Return the model with random weights."""
    import transformers

    settings = transformers.Dinov2WithRegistersConfig(**(config or CONFIG))
    return transformers.Dinov2WithRegistersForImageClassification(settings)


def load() -> DigitsModel:
    """Return the trained model and the digits beside it."""
    with safe_open(WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
        config = json.loads(file.metadata()["config"])
    digits, labels = tensors.pop("digits").float() / 16, tensors.pop("labels").long()
    model = build(config)
    model.load_state_dict({name: x.float() for name, x in tensors.items()})
    return DigitsModel(model.eval(), digits, labels)


@torch.no_grad()
def accuracy(model: Any, digits: Tensor, labels: Tensor, seed: int = 0) -> float:
    """Return the share of digits that the model names rightly, each in one picture."""
    return float((model(compose(digits, seed)).logits.argmax(-1) == labels).float().mean())


def capture_digit(number: int = 3) -> Any:
    """Return a capture of the trained model as it reads one of the digits beside it."""
    import regard

    model, digits, _ = load()
    pixels = compose(digits)[number : number + 1]
    return regard.capture(
        model, inputs={"pixel_values": pixels}, patches=regard.pictures.Patches(mean=MEAN, std=STD)
    )


def write_page(path: Path) -> None:
    """Save the page of the trained model as it reads one digit."""
    capture_digit().to_html(path, titles=["a handwritten digit"])


def train(digits: Tensor, labels: Tensor) -> Any:
    """Train a model on digits (N, 8, 8), each step on new pictures."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for step in range(STEPS):
        batch = torch.randint(0, len(digits), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(compose(digits[batch], seed=step)).logits, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def main() -> None:
    """Train the model and write its weights, in float16, with some digits that it was not trained on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    counts = torch.from_numpy(data.images).to(torch.uint8)  # from 0 to 16
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(0))
    counts, labels = counts[order], torch.from_numpy(data.target).long()[order]
    digits = counts.float() / 16
    model = train(digits[:TRAINED_ON], labels[:TRAINED_ON])
    print(f"named rightly: {accuracy(model, digits[TRAINED_ON:], labels[TRAINED_ON:]):.1%} of the others")
    tensors = {name: x.half().contiguous() for name, x in model.state_dict().items()}
    kept = slice(TRAINED_ON, TRAINED_ON + KEPT)
    tensors |= {"digits": counts[kept].contiguous(), "labels": labels[kept].to(torch.uint8).contiguous()}
    save_file(tensors, WEIGHTS, {"config": json.dumps(CONFIG)})


if __name__ == "__main__":
    main()
