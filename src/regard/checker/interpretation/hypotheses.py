"""What attention may do beside the plain form: windows, soft caps, ALiBi, sinks, rotary positions, QK-norm …

Code that is not plain attention is not wrong for that. Before it is called wrong, each of these features is
tried, alone and with another one, on several inputs. Their numbers (a window's size, a cap, rotary
frequencies) are taken from the code: its attributes, its tensors and the literals of its source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import alibi_slopes, chunks, prefix
from regard.attention.masks.named_masks import causal as causal_rule
from regard.attention.masks.named_masks import rule as rule_mask
from regard.attention.masks.named_masks import window as window_rule
from regard.checker.oracle.oracle import Intent, WindowConvention
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Rotation, Wiring
from regard.checker.subject.source import numbers_of, source_of, tensors_of
from regard.checker.subject.subject import Subject


@dataclass(frozen=True)
class Feature:
    """Something that attention may do beside the plain form, and how it changes an interpretation."""

    kind: str  # two features of one kind exclude each other
    words: str  # completes "equals attention …"
    change: Callable[[Intent], Intent | None]  # None if it does not apply
    evident: bool = False  # whether the code's own words point to it


_WORDS = {
    "mask": r"window|local|sliding|band|chunk|block|prefix|triu|tril",
    "cap": r"tanh|cap\b|softcap|clip",
    "rotation": r"rotary|\brope|_rope|rotat|\b(cos|sin)(_|\b)|freqs|theta|polar|complex",
    "bias": r"alibi|slope",
    "sinks": r"sink|off_by_one|softmax_?1|softmax_?one|quiet|s_aux",
    "norm": r"norm(?!al\b)|cosine",
}


# A query or key where it is handed to a norm: `q`, `xq`, `self.to_q(x)`, `keys`, `qk`.
_HEADS = r"(?:self\.)?(?:x|w|w_|to_|proj_)?(?:q|k|quer\w*|keys?|qk)\w{0,5}\b"
# Where a norm acts on queries or keys. One before the projections, as in a pre-norm block, is no QK-norm.
_NORMALISED = (
    r"cosine|normalize\(|\b(?:q|k|qk|query|key)s?_?(?:norm|ln\b|layer_?norm)|(?:norm|ln)_?(?:q|k|qk|query|key)s?\b"
    rf"|{_HEADS}\.norm\(|(?:CALLED)\(\s*{_HEADS}|(?:CALLED),\s*[(\[]\s*{_HEADS}"
    rf"|(?:CALLED)\(\s*\w+\s*\)[^\n]* for \w+ in [(\[]?\s*{_HEADS}"
)


def _normalises_queries(source: str) -> bool:
    """Whether code hands its queries or keys to a norm, by that word or by a name that holds a norm."""
    named = re.findall(r"self\.(\w+)\s*=\s*[\w.]*Norm\w*\(", source)
    called = "|".join([r"\w*norm\w*", r"ln\w*", *map(re.escape, named)])
    return re.search(_NORMALISED.replace("CALLED", called), source, re.I) is not None


def find_features(subject: Subject, wiring: Wiring, head_width: int, longest: int) -> list[Feature]:
    """Return the features to try for a subject, evident ones first.

    Arguments:
        subject: the code under test.
        wiring: its most plausible wiring.
        head_width: the width of a query head.
        longest: the longest sequence on which they are tried; a larger window would hide nothing.
    """
    source, numbers = source_of(subject), numbers_of(subject)
    tensors = tensors_of(subject)
    held = " ".join([source, *(path for path, _ in tensors)])
    found = [
        *_masks(numbers, longest),
        # Gemma 2 caps its scores at 50, Grok-1 at 30.
        *(
            Feature("cap", f"with a soft cap of {cap:g}", partial(replace, softcap=cap))
            for cap in sorted({20.0, 30.0, 50.0, *(n for n in numbers if 0.1 <= n <= 1000)})
        ),
        *_rotations(numbers, tensors, head_width, source),
        *_biases(tensors, wiring.heads),
        *_sinks(tensors, wiring.heads),
        *_norms(numbers, tensors, wiring.heads, head_width),
    ]
    evident = {kind for kind, words in _WORDS.items() if re.search(words, held, re.I)}
    found = [replace(feature, evident=feature.kind in evident) for feature in found]
    # Otherwise a pre-norm block that forgot its scale would be right, with a scale of 1.
    if not _normalises_queries(held):
        found = [feature for feature in found if "normalised queries" not in feature.words]
    return sorted(found, key=lambda feature: not feature.evident)


def likeliest(features: list[Feature], count: int) -> list[Feature]:
    """Return the first `count` features of every evident kind."""
    kinds = dict.fromkeys(feature.kind for feature in features if feature.evident)
    return [f for kind in kinds for f in [f for f in features if f.kind == kind][:count]]


def add_feature(base: Intent, feature: Feature) -> Intent | None:
    """Return an interpretation with one more feature, or None if the feature does not apply to it."""
    changed = feature.change(base)
    return None if changed is None else replace(changed, features=(*base.features, feature.words))


def _wired(base: Intent, **changes: Any) -> Intent:
    """Return an interpretation whose wiring has other fields."""
    return replace(base, wiring=replace(base.wiring, **changes))


def _to_both_sides(n: int, question: Question) -> Question:
    if question.causal:
        # `Intent.error` takes this for an interpretation that does not fit.
        raise ValueError("a causal window has one side")
    return replace(question, window=n + 1, ahead=n)


def looking_back(n: int) -> Mask:
    """Return the mask of buckets of n keys, in which a query sees its own bucket and the one before."""
    return rule_mask(lambda b, h, q, k: (q // n == k // n) | (q // n == k // n + 1))


WINDOW_CONVENTIONS = (
    WindowConvention("itself and n keys before it", lambda n, q: replace(q, window=n + 1), one_more=True),
    WindowConvention("n keys on either side", _to_both_sides, one_more=True),
    WindowConvention("fewer than n keys on either side", lambda n, q: _to_both_sides(n - 1, q)),
    # Longformer's attention_window is the whole width.
    WindowConvention("n // 2 keys on either side", lambda n, q: _to_both_sides(n // 2, q)),
    # lucidrains/local-attention.
    WindowConvention(
        "buckets of n keys, its own and the one before",
        lambda n, q: replace(q, window=None, rule=looking_back(n)),
    ),
    WindowConvention("buckets of n keys", lambda n, q: replace(q, window=None, rule=chunks(n))),
)
# "The last `window` keys, itself included": then one key more is a mistake.
_OWN_KEY = r"(itself|self|its own|the (query|current)('s)?( own)?)"
_COUNTS_ITSELF = re.compile(
    rf"\b{_OWN_KEY}( (key|token|position))?,? (is )?(included|counted)|\b(includ|count)ing {_OWN_KEY}\b"
    r"|\b\w+ ?[-−] ?1 ((previous|earlier|past|preceding) )?(keys|tokens|positions)\b",
    re.I,
)


def window_conventions(source: str) -> list[WindowConvention]:
    """Return what else the window of code with this source text may mean."""
    stated = _COUNTS_ITSELF.search(re.sub(r"[\s#]+", " ", source)) is not None
    return [c for c in WINDOW_CONVENTIONS if not (stated and c.one_more)]


_MASKS: dict[str, Callable[[int, Intent], Intent | None]] = {
    "in a window of {}": lambda n, base: (
        replace(base, window=n) if base.causal else replace(base, rule=window_rule(n, ahead=n - 1))
    ),
    "in chunks of {}": lambda n, base: replace(base, rule=chunks(n)),
    "with a visible prefix of {}": lambda n, base: (
        replace(base, causal=False, rule=causal_rule | prefix(n)) if base.causal else None
    ),
    "in buckets of {} that also see the bucket before": lambda n, base: replace(base, rule=looking_back(n)),
}


def _masks(numbers: list[float], longest: int) -> Iterator[Feature]:
    # A number may leave out the query's own key.
    named = {int(n) + more for n in numbers if n == int(n) for more in (0, 1)}
    sizes = [n for n in sorted({2, 3, 4, 5, 6} | named) if 1 < n < longest - 1]
    for (words, change), n in itertools.product(_MASKS.items(), sizes):
        yield Feature("mask", words.format(n), partial(change, n))


def _rotations(
    numbers: list[float], tensors: list[tuple[str, Tensor]], D: int, source: str
) -> Iterator[Feature]:
    """Yield rotary positions: the code's own frequencies, then those of usual bases, in both pairings."""
    usual = list(_usual_frequencies(numbers, D, source))
    held = [(f, words) for f, words in _held_frequencies(tensors, D) if 2 * len(f) <= D]
    factors = _factors(numbers, source)
    scaled = [(factor * f, f"{words}, scaled by {factor:g}") for factor in factors for f, words in held]
    # Small angles are read off their cosines with few digits, so the usual frequencies come before these.
    held.sort(key=lambda pair: pair[1].startswith(_COSINES))
    exact = sum(not words.startswith(_COSINES) for _, words in held)
    candidates = [*usual[:1], *held[:exact], *usual[1:], *held[exact:], *scaled]
    unique: dict[tuple[float, ...], tuple[Tensor, str]] = {}
    for frequencies, words in candidates:
        # Tables in float32 have seven digits, by which the same frequencies are known and tried once.
        unique.setdefault(tuple(round(float(f), 7) for f in frequencies), (frequencies, words))
    for frequencies, words in list(unique.values())[:120]:
        n = len(frequencies)
        part = "" if 2 * n == D else f" on {2 * n} of {D} channels"
        # GPT-J and Llama's own code pair neighbours; Transformers' Llama and GPT-NeoX pair halves.
        for pairing in ("half", "interleaved"):
            pairs = "channel i with i + n" if pairing == "half" else "neighbours"
            text = f"with rotary positions ({words}; pairs {pairs}{part})"
            yield Feature("rotation", text, partial(_wired, rotate=Rotation(frequencies, pairing)))


def _usual_frequencies(numbers: list[float], D: int, source: str) -> Iterator[tuple[Tensor, str]]:
    """Yield the frequencies of base 10,000 and of bases that the code holds, on all or some channels."""
    bases = [10000.0, *(n for n in numbers if 500 <= n <= 1e8 and n != 10000)]
    # GPT-NeoX rotates a quarter of the channels, and other models a half.
    widths = [D, D // 2, D // 4, *(int(n) for n in numbers if n % 2 == 0 and 2 <= n < D)]
    widths = [
        w for w in dict.fromkeys([*widths, *(int(D * n) for n in numbers if n < 1)]) if w > 1 and w % 2 == 0
    ]
    for base, width in itertools.product(bases, widths):
        yield base ** _powers(width), f"base {base:g}"
    for factor, base in itertools.product(_factors(numbers, source), bases[:3]):
        yield factor * base ** _powers(D), f"base {base:g}, scaled by {factor:g}"
        if D > 2:  # the base is scaled instead of the positions
            scaled = base * factor ** (D / (D - 2))
            yield scaled ** _powers(D), f"base {base:g}, NTK-scaled by {factor:g}"


def _powers(width: int) -> Tensor:
    return -torch.arange(0, width, 2, dtype=torch.float64) / width


def _factors(numbers: list[float], source: str) -> list[float]:
    """Return the factors by which positions may be scaled: the numbers of code that speaks of it."""
    if not re.search(r"scal|factor|interpol|ntk|yarn", source, re.I):
        return []
    return [f for n in numbers if 0.01 <= n <= 64 and n != 1 for f in (1 / n, n)]


_COSINES = "the cosines"


def _held_frequencies(tensors: list[tuple[str, Tensor]], D: int) -> Iterator[tuple[Tensor, str]]:
    """Yield the frequencies that a module's tensors hold: directly, as angles, as sines or as rotations."""
    for path, tensor in tensors:
        words = f"the frequencies of `{path}`"
        flat = tensor.squeeze()
        if flat.ndim == 1 and 1 <= len(flat) <= D // 2 and not flat.is_complex():
            yield flat.double(), words
        if flat.ndim != 2 or flat.shape[0] < 2:
            continue
        if flat.is_complex():
            yield flat[1].angle().double(), words
            continue
        row, half = flat[1].double(), flat.shape[1] // 2
        if bool((flat[0] == 0).all()):  # position 0 of angles, or of their sines
            # Sines in float32 may exceed 1 by rounding.
            for angles in (row, row.clamp(-1, 1).asin()):
                yield from ((angles[part], words) for part in _halves(half, angles))
        elif bool((flat[0] == 1).all()):
            angles, words = row.clamp(-1, 1).acos(), f"{_COSINES} of `{path}`"
            yield from ((angles[part], words) for part in _halves(half, angles))
        elif flat.shape[1] % 2 == 0:  # sines beside cosines
            for a, b in ((row[:half], row[half:]), (row[::2], row[1::2])):
                if torch.allclose(a**2 + b**2, torch.ones_like(a), atol=1e-4):
                    yield from ((sines.asin(), words) for sines in (a, b))


def _halves(half: int, angles: Tensor) -> list[slice]:
    """Return the parts of a row of angles that are the frequencies: all, the first half, every second."""
    everything = [slice(None)]
    return [*everything, slice(0, half), slice(0, None, 2)] if len(angles) % 2 == 0 else everything


def _with_bias(slopes: Callable[[int], Tensor], symmetric: bool, base: Intent) -> Intent:
    def bias(H: int, T: int, S: int) -> Tensor:
        distance = torch.arange(S - T, S)[:, None] - torch.arange(S)  # (T, S), positive for the past
        distance = distance.abs() if symmetric else distance
        return -slopes(H)[:, None, None] * distance

    return _wired(base, bias=bias)


def _held_slopes(slopes: Tensor, H: int) -> Tensor:
    return slopes


def _biases(tensors: list[tuple[str, Tensor]], H: int) -> Iterator[Feature]:
    """Yield a bias by distance: the slopes of ALiBi, or those that the code holds."""
    named: list[tuple[str, Callable[[int], Tensor]]] = [
        ("with ALiBi", lambda H: torch.tensor(alibi_slopes(H), dtype=torch.float64)),
        # This differs from the paper's slopes unless H is a power of two.
        ("with ALiBi", lambda H: 2.0 ** (-8.0 * torch.arange(1, H + 1, dtype=torch.float64) / H)),
    ]
    for path, tensor in tensors:
        if tensor.numel() == H and H > 1 and not tensor.is_complex():
            # Stored with either sign they favour the near; learned ones may have any.
            flat = tensor.flatten()
            signed = [flat.abs()] if bool((flat >= 0).all() | (flat <= 0).all()) else [flat, -flat]
            words = f"with a bias by distance, slopes `{path}`"
            named += [(words, partial(_held_slopes, slopes.double())) for slopes in signed]
    for (words, slopes_of), symmetric in itertools.product(named, (False, True)):
        yield Feature("bias", words, partial(_with_bias, slopes_of, symmetric))


def _sinks(tensors: list[tuple[str, Tensor]], H: int) -> Iterator[Feature]:
    """Yield sink logits: a tensor of the module, or 0 in every head (a softmax with 1 in its denominator)."""
    for path, tensor in tensors:
        if tensor.numel() == H and not tensor.is_complex():
            yield Feature("sinks", f"with the sink logits `{path}`", partial(_wired, sinks=tensor.flatten()))
    zero = torch.zeros(1, dtype=torch.float64)
    yield Feature("sinks", "with a sink logit of 0 in every head", partial(_wired, sinks=zero))


def _normed(
    norm: Callable[[Tensor], Tensor], scale: float | None, factors: Tensor | None, base: Intent
) -> Intent | None:
    """Return an interpretation whose queries and keys are normalised, with a scale of its own.

    `factors` of the scores, by which queries are multiplied, are (H, 1, 1) or (D,).
    """
    wiring = base.wiring
    if wiring.query_norm is not None or wiring.key_norm is not None:
        return None

    def scaled(x: Tensor) -> Tensor:
        return norm(x) if factors is None else norm(x) * factors.to(x)

    own_scale = {} if scale is None else {"scale": scale}
    return _wired(base, query_norm=scaled, key_norm=norm, **own_scale)


def _norms(numbers: list[float], tensors: list[tuple[str, Tensor]], H: int, D: int) -> Iterator[Feature]:
    """Yield normalised queries and keys: by length, with any scale that the code holds, or by mean square."""
    scales: list[tuple[float | None, Tensor | None, str]] = [(None, None, ""), (1.0, None, ", scale 1")]
    scales += [(n, None, f", scale {n:g}") for n in numbers if 1 < n <= 200]
    real = [(path, tensor.flatten().double()) for path, tensor in tensors if not tensor.is_complex()]
    # lucidrains' attention learns a factor of every channel for queries, and one for keys.
    for (first, a), (second, b) in itertools.combinations([(p, x) for p, x in real if len(x) == D], 2):
        learned = f", times `{first}` and `{second}`"
        scales += [(scale, a * b, words + learned) for scale, factors, words in scales if factors is None]
    for path, flat in real:
        # A learned temperature is one number, or one for each head as in Swin V2.
        for values, words in ((flat, path), (flat.exp(), f"exp({path})")) if len(flat) in (1, H) else ():
            capped = values.clamp(max=100.0)  # as Swin's logit scale
            one = len(capped) == 1
            factors = None if one else capped.view(-1, 1, 1)
            scales.append((float(capped) if one else 1.0, factors, f", scale `{words}`"))
    for scale, factors, words in scales:
        text = f"on queries and keys of length 1{words}"
        yield Feature("norm", text, partial(_normed, partial(F.normalize, dim=-1), scale, factors))
        if scale is not None and factors is None:  # normalised by its own layer, so that any may be meant
            yield Feature("norm", f"on normalised queries and keys{words}", partial(_wired, scale=scale))
    # The epsilon of RMSNorm is 1e-6 or 1e-5 in Llama's models, and 1e-8 in the paper's code.
    others = [
        (lambda x, eps=eps: F.rms_norm(x, x.shape[-1:], eps=eps), "of mean square 1")
        for eps in (1e-6, 1e-5, 1e-8)
    ]
    for norm, words in [*others, (lambda x: F.layer_norm(x, x.shape[-1:]), "after layer norm")]:
        yield Feature("norm", f"on queries and keys {words}", partial(_normed, norm, None, None))
