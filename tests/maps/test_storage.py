"""Maps on disk: what comes back is what went in, a bad file is refused by name; overviews kept with one."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.maps import storage
from regard.maps.tile_passes import kept_overview, reductions
from regard.support import safetensor_files
from regard.support.files import CaptureFileError
from tests import strategies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("maps")


@given(pick=st.data(), n=strategies.sizes(6), seed=st.integers(0, 2**20))
def test_a_saved_map_comes_back(folder, pick, n, seed):
    drawn = pick.draw(strategies.masks(n))
    x = strategies.tensors(n, seed, pick.draw(st.sampled_from([torch.float64, torch.bfloat16])))
    sinks = x.sinks if pick.draw(st.booleans()) else None
    m = regard.attention_map(
        x.q, x.k, mask=drawn.mask, softcap=pick.draw(st.sampled_from([None, 2.0])), sinks=sinks
    )
    m = m[:, 0, n.T // 2 :] if pick.draw(st.booleans()) else m
    if "rule(" in str(m.mask):
        with pytest.raises(ValueError, match=r"is a function, which a file cannot hold.*regard\.tensor_mask"):
            m.save(folder / "map.safetensors")
        return
    m.save(folder / "map.safetensors")
    back = regard.load(folder / "map.safetensors")
    assert back.shape == m.shape
    assert back.q.dtype == m.q.dtype
    assert str(back.mask) == str(m.mask)
    assert torch.equal(back.to_dense(), m.to_dense())
    assert [p.name for p in folder.iterdir()] == ["map.safetensors"]  # nothing is left beside it


def test_a_known_rule_is_known_again(tmp_path):
    q = torch.randn(1, 1, 4, 4)
    regard.attention_map(q, q, mask=regard.causal).save(tmp_path / "a")
    assert regard.load(tmp_path / "a").mask is regard.causal


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    q = torch.randn(1, 1, 4, 4)
    path = tmp_path / "map.safetensors"
    regard.attention_map(q, q).save(path)
    before = path.read_bytes()

    def interrupted(tensors, filename, metadata):
        Path(filename).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensor_files, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        regard.attention_map(2 * q, q).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_opening_reads_no_more_than_is_looked_at(tmp_path):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    q = torch.randn(1, 32, 8192, 64)  # 64 MiB
    regard.attention_map(q, q, lse=torch.zeros(1, 32, 8192)).save(tmp_path / "big")
    del q
    before = resident()
    m = regard.load(tmp_path / "big")
    assert m[0, 3, 5:8, :4].shape == (3, 4)
    assert resident() - before < 24 << 20  # of 129 MiB


@pytest.mark.parametrize("cut", [4, 40, -8])
def test_a_truncated_file_is_refused_by_name(tmp_path, cut):
    q = torch.randn(1, 1, 4, 4)
    path = tmp_path / "cut.safetensors"
    regard.attention_map(q, q).save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"cut\.safetensors is not a complete safetensors file"):
        regard.load(path)


def test_a_foreign_file_is_refused_by_name(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: expected format"):
        regard.load(tmp_path / "model.safetensors")
    (tmp_path / "notes.txt").write_text("not tensors")
    with pytest.raises(ValueError, match=r"notes\.txt is not a complete safetensors file"):
        regard.load(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="which does not exist"):
        regard.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"make .*nowhere"):
        regard.attention_map(torch.ones(2, 2), torch.ones(2, 2)).save(tmp_path / "nowhere" / "map")


@pytest.mark.parametrize(
    "described",
    [
        "{}",
        "[1]",
        '{"mask": {"kind": "Path"}, "scale": 1, "softcap": null, "axes": [1, 1]}',
        '{"mask": {"kind": "Padding", "real": {"tensor": "gone"}}, "scale": 1, "softcap": null, "axes": [1]}',
        '{"mask": {"kind": "Window", "size": 2, "other": 3}, "scale": 1, "softcap": null, "axes": [1, 1]}',
        '{"mask": {"kind": "Full"}, "scale": "x", "softcap": null, "axes": [1, 1]}',
        '{"mask": {"kind": "Full"}, "scale": 1.0, "softcap": null, "axes": [true]}',
    ],
)
def test_a_damaged_description_is_refused_by_name(tmp_path, described):
    tensors = {"q": torch.zeros(1, 1, 2, 2), "k": torch.zeros(1, 1, 2, 2), "lse": torch.zeros(1, 1, 2)}
    save_file(tensors, tmp_path / "odd", metadata={"format": storage.FORMAT, "map": described})
    with pytest.raises(ValueError, match="odd is damaged"):
        regard.load(tmp_path / "odd")


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
