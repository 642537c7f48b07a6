"""`Retained`: what is left of the attention of every layer, head and query under a policy, and curves of it.

The shares are of the attention of the run that was captured, in which nothing was evicted. This file knows
maps, numbers and names; it does not know models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number, is_number
from regard.attention.masks.base import Mask
from regard.policies.joined_layers import CachedLayer, join_layers
from regard.policies.measurement import MapRetention, attend_whole, measure, measure_own, stack_layers
from regard.policies.named_policies import best, find_policy, random
from regard.policies.policy import Eviction, Policy
from regard.support.cell_output import PrintedOutput
from regard.support.table import Column, Table

ENOUGH = 0.95  # the share that a head should keep
LOWEST = 5  # heads that a printed result names
NOTE = "Shares are of the attention of the full run, in which nothing was evicted."


def cached_layers(layers: Iterable[Any]) -> Iterator[CachedLayer]:
    """The layers of a capture that have a cache of keys, read one at a time; linear layers have none."""
    for layer in layers:
        if not layer.is_linear:
            yield CachedLayer(layer.key, layer.heads, layer.softmax_map("a cache policy"), layer.values)


class HeadRetention(NamedTuple):
    """The means of one head over the queries that see more keys than the budget; NaN if there are none."""

    layer: int | str
    head: int
    share: float
    error: float
    random: float
    best: float


@dataclass(frozen=True)
class Retained(PrintedOutput):
    """What a policy leaves of the attention of every layer, head and query. Prints as a few sentences."""

    policy: str
    """The name of the policy."""
    budget: int | None
    """The number of keys that are kept, or None where a mask or the model itself chooses."""
    places: tuple[tuple[int | str, tuple[int, ...]], ...]
    """The key of every layer, with the numbers of its heads."""
    layers: tuple[MapRetention, ...]
    """What is left in each layer: `.share`, `.error` and `.concerned`, (B, H, T) each."""
    random: Retained | None = None
    """The same for as many random keys."""
    best: Retained | None = None
    """The same for the keys with the largest weights: no choice of as many keys holds a greater share."""

    @property
    def share(self) -> Tensor:
        """The share of every row's attention that the kept keys hold, (layers, B, H, T)."""
        return stack_layers(self.layers, "share")

    @property
    def error(self) -> Tensor:
        """The relative error of every head's output, (layers, B, H, T)."""
        return stack_layers(self.layers, "error")

    @property
    def heads(self) -> list[HeadRetention]:
        """A row for each head: its mean share and error, and the shares of the two baselines."""
        means = [self._means(one) for one in (self, self.random, self.best)]
        return [
            HeadRetention(key, head, share, error, means[1][n][0], means[2][n][0])
            for n, ((key, head), (share, error)) in enumerate(zip(_pairs(self.places), means[0], strict=True))
        ]

    def _means(self, retained: Retained | None) -> list[tuple[float, float]]:
        if retained is None:
            return [(math.nan, math.nan)] * len(_pairs(self.places))
        return [pair for layer in retained.layers for pair in head_means(layer)]

    def by_position(self, bins: int = 16) -> list[tuple[int, float]]:
        """The mean share over all heads in `bins` equal runs of queries, each with its first query."""
        T = max(layer.share.shape[-1] for layer in self.layers)
        edges = [T * n // bins for n in range(check_whole_number("bins", bins, 1, T) + 1)]
        means = []
        for first, stop in pairwise(edges):
            parts = [x.share[..., first:stop][x.concerned[..., first:stop]] for x in self.layers]
            means.append((first, float(torch.cat([x.cpu() for x in parts]).mean())))
        return means

    def __repr__(self) -> str:
        return f"Retained({self.policy}, budget {self.budget}, {len(_pairs(self.places))} heads)"

    def __str__(self) -> str:
        rows = [row for row in self.heads if not math.isnan(row.share)]
        what = (
            f"{self.policy}" if self.budget is None else f"{self.policy} with {number_of_keys(self.budget)}"
        )
        if not rows:
            limit = "the policy keeps" if self.budget is None else f"{self.budget:,}"
            return f"{what}: nothing is lost, since no query sees more keys than {limit}."
        columns = list(zip(*rows, strict=True))
        share, error, random_share, best_share = (_mean(column) for column in columns[2:])
        against = [
            f"{name} {number:.1%}"
            for name, number in (("random keys", random_share), ("the best possible", best_share))
            if not math.isnan(number)
        ]
        beside = f" ({', '.join(against)})" if against else ""
        output = "" if math.isnan(error) else f"; the outputs change by {error:.1%}"
        lowest = sorted(rows, key=lambda row: row.share)[:LOWEST]
        names = ", ".join(f"{row.layer}.{row.head} {row.share:.1%}" for row in lowest)
        return f"{what}: {share:.1%} of the attention is kept{beside}{output}.\nLowest: {names}.\n{NOTE}"


@dataclass(frozen=True)
class RetentionCurve(PrintedOutput):
    """The shares and errors of several policies at several budgets, for every head. Prints as a table."""

    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    places: tuple[tuple[int | str, int], ...]
    """The key of the layer and the number of the head, for each head."""
    shares: Tensor
    """(policies, budgets, heads): the mean over queries that see more keys than the budget; NaN if none."""
    errors: Tensor
    """The same for the relative error of the output; NaN without values."""

    def __repr__(self) -> str:
        policies, budgets = ", ".join(self.policies), ", ".join(map(str, self.budgets))
        return f"RetentionCurve({policies}; budgets {budgets}; {len(self.places)} heads)"

    def needed(self, policy: str, share: float = ENOUGH) -> list[int | None]:
        """For each head, the smallest budget with this mean `share` under `policy`; None if none has it."""
        if not is_number(share) or not 0 <= share <= 1:
            raise ValueError(f"share: expected a share from 0 to 1, got {share!r}")
        if policy not in self.policies:
            raise ValueError(f"policy: expected one of {', '.join(self.policies)}, got {policy!r}")
        # A budget beyond what a head sees loses nothing.
        enough = self.shares[self.policies.index(policy)].nan_to_num(1.0) >= share  # (budgets, heads)
        return [
            min((budget for budget, good in zip(self.budgets, column, strict=True) if good), default=None)
            for column in enough.T.tolist()
        ]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each policy, budget and head: its share and its error."""
        records = [
            (policy, budget, *place, float(self.shares[i, j, n]), float(self.errors[i, j, n]))
            for i, policy in enumerate(self.policies)
            for j, budget in enumerate(self.budgets)
            for n, place in enumerate(self.places)
        ]
        return Table(("policy", "budget", "layer", "head", "share", "error"), records).to_pandas()

    def figure(self, losses: dict[str, list[float]] | None = None) -> Any:
        """Draw the shares over the budgets, a line for each policy, and return the Matplotlib figure.

        `losses`, for each policy a list with one for each budget, are drawn beside them: the rise of the
        model's loss, from `regard.effect` with `regard.evict`.
        """
        from regard.policies.picture import draw_curve

        shares = self.shares.nan_to_num(1.0)  # a head that loses nothing
        enough = (shares >= ENOUGH).double().mean(-1)
        return draw_curve(self.policies, self.budgets, shares.mean(-1).tolist(), enough.tolist(), losses)

    def __str__(self) -> str:
        def part(rows: Iterable[Sequence[Any]], form: Any, indent: str = "  ") -> list[str]:
            columns = [Column("attention kept", width=name_width - len(indent))]
            columns += [Column(f"{n:,}", form, True, 9) for n in self.budgets]
            return Table([*columns, ""], rows).lines(gap="", indent=indent, header=not indent)

        name_width = max(map(len, self.policies), default=0) + 10
        rows = [(name, *shares, "") for name, shares in zip(self.policies, self.shares, strict=True)]
        lines = part(rows, _percent, indent="")
        if not bool(self.errors.isnan().all()):
            lines.append("change of the output")
            rows = [(name, *errors, "") for name, errors in zip(self.policies, self.errors, strict=True)]
            lines += part(rows, lambda x: _percent(x, 0.0))
        lines.append("heads that keep 95% with a budget")
        rows = []
        for name in self.policies:
            needed = self.needed(name)
            more = sum(x is None for x in needed)
            counts = [sum(x is not None and x <= n for x in needed) for n in self.budgets]
            rows.append((name, *counts, f"   {more:,} need more" if more else ""))
        lines += part(rows, ",")
        return "\n".join([*lines, NOTE])


def measure_layers(
    layers: Iterable[CachedLayer],
    policies: Sequence[Policy | Mask | str],
    budgets: Sequence[int | None],
    every: int | None = None,
    report: Callable[[], None] = lambda: None,
) -> Iterator[tuple[CachedLayer, list[list[MapRetention]]]]:
    """Measure every policy at every budget, layer by layer; yield each layer with [policy][budget].

    `report` is called after each measurement.
    """
    for run in join_layers(layers):
        wholes = [attend_whole(layer.map, layer.values) for layer in run.layers]
        tables = [[list[MapRetention]() for _ in policies] for _ in run.layers]
        for number, policy in enumerate(policies):
            for budget in budgets:
                if isinstance(policy, Eviction):
                    found = run.measure(policy, budget, every, wholes)
                else:
                    found = [
                        measure_own(layer.map, layer.values)
                        if isinstance(policy, str)
                        else measure(layer.map, layer.values, policy, budget, whole=whole)
                        for layer, whole in zip(run.layers, wholes, strict=True)
                    ]
                for table, one in zip(tables, found, strict=True):
                    table[number].append(one)
                    report()
        yield from zip(run.layers, tables, strict=True)


def retain(
    layers: Iterable[CachedLayer],
    policy: Any,
    budget: Any = None,
    *,
    every: int | None = None,
    baselines: bool = True,
) -> Retained | RetentionCurve:
    """Measure a policy at a budget, or several of either, beside random keys and the best possible."""
    several = isinstance(policy, list | tuple)
    policies = [find_policy(one) for one in (policy if several else [policy])]
    if every is not None and policies and not any(isinstance(one, Eviction) for one in policies):
        raise ValueError(f"every: expected none, since {policies[0]} evicts no keys, got {every}")
    # "32" is a sequence, too, and no number.
    budgets = list(budget) if isinstance(budget, Sequence) and not isinstance(budget, str) else None
    if several or budgets is not None:
        found = find_budgeted(policies)
        if baselines:
            names = [str(one) for one in found]
            found += [one for one in (random(), best()) if str(one) not in names]
        return draw_budgets(layers, found, [budget] if budgets is None else budgets, every=every)
    return _retain_one(layers, policy, budget, every, baselines)


def _retain_one(
    layers: Iterable[CachedLayer], policy: Any, budget: int | None, every: int | None, baselines: bool
) -> Retained:
    found = find_policy(policy)
    chosen = isinstance(found, str | Mask)  # without a budget
    if chosen and budget is not None:
        raise ValueError(f"budget: expected none, since {found} chooses the keys itself, got {budget}")
    budget = None if chosen else check_whole_number("budget", budget)
    several = [found, random(), best()] if baselines and not chosen else [found]
    places, columns = [], list[list[MapRetention]]()
    for layer, table in measure_layers(layers, several, [budget], every):
        places.append((layer.key, layer.heads))
        columns.append([row[0] for row in table])
    if not columns:
        raise ValueError("policy: expected a layer of softmax attention, got none")
    results = [
        Retained(str(one), budget, tuple(places), tuple(x))
        for one, x in zip(several, zip(*columns, strict=True), strict=True)
    ]
    if len(results) == 1:
        return results[0]
    own, *others = results
    return Retained(own.policy, budget, own.places, own.layers, *others)


def find_budgeted(policies: Sequence[Any]) -> list[Policy]:
    """Find several policies that have a budget; their names are different."""
    found = [find_policy(policy) for policy in policies]
    if not found:
        raise ValueError("policy: expected one policy at least, got an empty list")
    names = [str(one) for one in found]
    # Results are named by their policies.
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"policy: expected different names, got {twice[0]} twice")
    if wrong := [str(one) for one in found if isinstance(one, str | Mask)]:
        raise ValueError(
            f"policy: expected policies with a budget, got {wrong[0]}, which chooses the keys itself"
        )
    return [one for one in found if not isinstance(one, str | Mask)]


def check_budgets(budgets: Sequence[object]) -> list[int]:
    """Return several numbers of keys in order, each once, or raise a ValueError if one is none."""
    sizes = sorted({check_whole_number("budget", budget) for budget in budgets})
    if not sizes:
        raise ValueError("budget: expected one number of keys at least, got an empty list")
    return sizes


def number_of_keys(count: int) -> str:
    """A number of keys in words.

    >>> number_of_keys(1), number_of_keys(1024)
    ('1 key', '1,024 keys')
    """
    return f"{count:,} key{'' if count == 1 else 's'}"


def usual_budgets(tokens: int) -> list[int]:
    """The budgets that are measured on a text unless others are named: from a sixteenth to a half of it.

    >>> usual_budgets(1024)
    [64, 128, 256, 512]
    """
    return sorted({max(tokens // n, 1) for n in (16, 8, 4, 2)})


def draw_budgets(
    layers: Iterable[CachedLayer],
    policies: Sequence[Any],
    budgets: Sequence[object],
    *,
    every: int | None = None,
    report: Callable[[], None] = lambda: None,
) -> RetentionCurve:
    """Measure several policies at several budgets, and keep the means of every head."""
    found, sizes = find_budgeted(policies), check_budgets(budgets)
    places, means = list[tuple[int | str, int]](), list[Tensor]()
    for layer, table in measure_layers(layers, found, sizes, every, report):
        places += [(layer.key, head) for head in layer.heads]
        # (policies, budgets, heads, 2)
        means.append(torch.tensor([[head_means(x) for x in row] for row in table], device="cpu"))
    if not means:
        raise ValueError("policy: expected a layer of softmax attention, got none")
    joined = torch.cat(means, 2)
    names = tuple(map(str, found))
    return RetentionCurve(names, tuple(sizes), tuple(places), joined[..., 0], joined[..., 1])


def head_means(layer: MapRetention) -> list[tuple[float, float]]:
    """The mean share and error of every head, over the queries that see more keys than are kept."""
    concerned = layer.concerned.double()
    count = concerned.sum((0, 2))  # 0 / 0 is NaN: nothing to lose
    share = (layer.share * concerned).sum((0, 2)) / count
    if layer.error is None:
        error = torch.full_like(share, math.nan)
    else:
        # A row whose output was 0 has no relative error.
        error = torch.where(layer.error.isfinite(), layer.error, 0.0).mul(concerned).sum((0, 2)) / count
    return list(zip(share.tolist(), error.tolist(), strict=True))


def _pairs(places: Sequence[tuple[int | str, tuple[int, ...]]]) -> list[tuple[int | str, int]]:
    return [(key, head) for key, heads in places for head in heads]


def _mean(numbers: Iterable[float]) -> float:
    finite = [x for x in numbers if not math.isnan(x)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _percent(values: Tensor, of_none: float = 1.0) -> str:
    """The mean over heads in percent; a head that loses nothing counts as such."""
    return f"{float(values.nan_to_num(of_none).mean()):.1%}"
