"""An overview that is kept with a map: it answers what follows from it, and nothing else."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.maps.tile_passes import kept_overview, reductions
from regard.support.files import CaptureFileError

T, S = 75, 90


@pytest.fixture
def kept_map(monkeypatch):
    monkeypatch.setattr(kept_overview, "MIN_QUERIES", T)
    monkeypatch.setattr(kept_overview, "MIN_SIZE", 16)
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, T, 8) / 4, torch.randn(2, 2, S, 8)
    return regard.attention_map(q, k, mask=regard.causal).with_overview()


def without(m):
    return m._with(precise=m.precise)


@pytest.fixture
def counted(monkeypatch):
    """The number of times that weights were pooled."""
    calls = []
    pool = reductions.overview.pool
    monkeypatch.setattr(reductions.overview, "pool", lambda *args: calls.append(1) or pool(*args))
    return calls


@pytest.mark.parametrize(
    ("rows", "cols", "region"),
    [
        ([*range(0, T, 16), T], [*range(0, S, 16), S], None),
        ([0, 32, T], [16, 48, S], None),
        (1, 1, None),
        (2, 1, (slice(16, 48), slice(0, S))),
        (1, 4, (slice(64, T), slice(16, 80))),
    ],
)
def test_spans_of_whole_cells_are_not_computed(kept_map, counted, rows, cols, region):
    expected = without(kept_map).pool(rows, cols, "both", region=region)
    counted.clear()
    found = kept_map.pool(rows, cols, "both", region=region)
    assert not counted
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-6
    head = kept_map[1, 2].pool(rows, cols, region=region)
    assert not counted
    assert torch.equal(head, found.mass[1, 2])


def test_weighted_maps_and_parts_of_a_map_are_computed(kept_map, counted):
    kept_map.weighted(torch.randn(S)).pool(1, 1)
    assert counted
    assert kept_map[:, :, 16:].kept is None


def test_large_scores_are_computed_in_float64(kept_map, counted):
    q = kept_map.q.clone()
    q[1, 2] *= 400
    m = regard.attention_map(q, kept_map.k, mask=regard.causal)
    assert bool(m.precise.large[1, 2])
    cells = [*range(0, T, 16), T]
    right = m.pool(cells, 1, "both")
    wrong = kept_overview.KeptOverview(16, *(torch.full((2, 4, 5, 6), 2.0) for _ in range(2)))
    found = m._with(kept=wrong).pool(cells, 1, "both")
    assert torch.equal(found.mass[1, 2], right.mass[1, 2])
    assert bool((found.max[~m.precise.large] == 2).all())


def test_is_saved_and_moved(kept_map, tmp_path, counted):
    path = tmp_path / "map.safetensors"
    kept_map.save(path)
    loaded = regard.load(path)
    for m in (loaded, kept_map.to("cpu"), kept_map.to(torch.float64)):
        assert (m.kept is None) == (m.dtype == torch.float64)
    assert torch.equal(loaded.pool(1, 1), kept_map.pool(1, 1))
    assert not counted
    assert kept_map.nbytes == without(kept_map).nbytes + kept_map.kept.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, options: tensors.pop("kept.max"), "kept.mass and kept.max"),
        (lambda tensors, options: options.update(kept=0), "above 0"),
        (lambda tensors, options: options.update(kept="all"), "kept"),
        (lambda tensors, options: options.update(kept=8), r"\(2, 4, 10, 12\)"),
        (lambda tensors, options: tensors.update({"kept.max": tensors["kept.max"].half()}), "float16"),
    ],
)
def test_damaged_files_are_refused(kept_map, tmp_path, change, message):
    path = tmp_path / "map.safetensors"
    kept_map.save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors, options = load_file(path), json.loads(metadata["map"])
    change(tensors, options)
    save_file(tensors, path, metadata | {"map": json.dumps(options)})
    with pytest.raises(CaptureFileError, match=message):
        regard.load(path)
