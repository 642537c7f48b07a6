"""Maps on disk: what comes back is what went in; an old file survives; a bad one is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import regard
from regard.maps import storage
from regard.support import safetensor_files
from tests import strategies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("maps")


@given(pick=st.data(), n=strategies.sizes(6), seed=st.integers(0, 2**20))
def test_a_saved_map_comes_back(folder: Path, pick: Any, n: Any, seed: int) -> None:
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


def test_a_known_rule_is_known_again(tmp_path: Path) -> None:
    q = torch.randn(1, 1, 4, 4)
    regard.attention_map(q, q, mask=regard.causal).save(tmp_path / "a")
    assert regard.load(tmp_path / "a").mask is regard.causal


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 1, 4, 4)
    path = tmp_path / "map.safetensors"
    regard.attention_map(q, q).save(path)
    before = path.read_bytes()

    def interrupted(tensors: Any, filename: str, metadata: Any) -> None:
        Path(filename).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensor_files, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        regard.attention_map(2 * q, q).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_opening_reads_no_more_than_is_looked_at(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    q = torch.randn(1, 32, 8192, 64)  # 64 MiB
    regard.attention_map(q, q, lse=torch.zeros(1, 32, 8192)).save(tmp_path / "big")
    del q
    before = resident()
    m = regard.load(tmp_path / "big")
    assert m[0, 3, 5:8, :4].shape == (3, 4)
    assert resident() - before < 24 << 20  # of 129 MiB


@pytest.mark.parametrize("cut", [4, 40, -8])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    q = torch.randn(1, 1, 4, 4)
    path = tmp_path / "cut.safetensors"
    regard.attention_map(q, q).save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"cut\.safetensors is not a complete safetensors file"):
        regard.load(path)


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
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
def test_a_damaged_description_is_refused_by_name(tmp_path: Path, described: str) -> None:
    tensors = {"q": torch.zeros(1, 1, 2, 2), "k": torch.zeros(1, 1, 2, 2), "lse": torch.zeros(1, 1, 2)}
    save_file(tensors, tmp_path / "odd", metadata={"format": storage.FORMAT, "map": described})
    with pytest.raises(ValueError, match="odd is damaged"):
        regard.load(tmp_path / "odd")
