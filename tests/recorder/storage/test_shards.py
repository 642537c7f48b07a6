"""Captures of several ranks: shards come back as one capture; what does not fit together is refused."""

import dataclasses
import json

import pytest
import torch

import regard
from regard.attention.masks.tensor_masks import Relative
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.output_comparison import examine
from regard.recorder.layer import Layer
from regard.recorder.placement import Placement, ShardId, kv_slots, new_run
from regard.recorder.storage.capture_folder import ShardFolder, save_shard
from regard.recorder.summary import summarise
from regard.support.file_lock import InUseError
from regard.support.files import CaptureFileError

H, T, D = 4, 12, 8
IDS = torch.arange(T)[None]


def whole_layer(number, G, mask=regard.causal, **options):
    generator = torch.Generator().manual_seed(number)
    q, k, v = (torch.randn(1, n, T, D, generator=generator) for n in (H, G, G))
    m = regard.attention_map(q, k, mask=mask, **options)
    return Layer(number, f"layers.{number}.attn", "", m, examine(m, v, m @ v), range(H), v)


def part_of(layer, heads, rows=None, keys=None):
    """The part of a layer that a rank with some heads, or some rows and keys, would have captured."""
    m, values = layer.map, layer.values
    group = H // m.k.shape[1]
    kv_heads = kv_slots([head // group for head in heads])
    own_rows, own_keys = positions(rows), positions(keys)
    part = m._with(
        q=m.q[:, heads][:, :, own_rows],
        k=m.k[:, kv_heads][:, :, own_keys],
        lse=m.lse[:, heads][:, :, own_rows],
        mask=m.mask.select(slice(None), heads),
        sinks=None if m.sinks is None else m.sinks[heads],
    )
    evidence = dataclasses.replace(layer.evidence, rows=len(own_rows), total_rows=len(own_rows))
    place = Placement(H, tuple(kv_heads), rows, keys)
    values = values[:, kv_heads][:, :, own_keys]
    return Layer(*layer_id(layer), part, evidence, heads, values, placement=place)


def layer_id(layer):
    return layer.number, layer.name, layer.stack


def positions(runs):
    return torch.arange(T) if runs is None else torch.cat([torch.arange(*run) for run in runs])


def save_ranks(root, ranks, run="", **about):
    """Write a capture of several ranks; return the name of the run."""
    run = run or new_run()
    for rank, layers in enumerate(ranks):
        seen = Capture(layers, model="Small", **({"ids": IDS} | about))
        save_shard(seen, root, ShardId(run, rank, len(ranks)))
    return run


def by_heads(layers):
    return [[part_of(layer, heads) for layer in layers] for heads in ([0, 1], [2, 3])]


def assert_equal(a, b):
    """Two layers hold the same numbers, to the bit."""
    assert a.heads == b.heads
    assert a.shape == b.shape
    assert str(a.map.mask) == str(b.map.mask)
    for x, y in ((a.map.q, b.map.q), (a.map.k, b.map.k), (a.map.lse, b.map.lse), (a.values, b.values)):
        assert torch.equal(x, y)
    assert torch.equal(a.map.to_dense(), b.map.to_dense())


@pytest.mark.parametrize("G", [4, 2, 1])
def test_the_heads_of_two_ranks_are_one_layer(tmp_path, G):
    layers = [whole_layer(n, G) for n in range(2)]
    save_ranks(tmp_path / "run", by_heads(layers), tokens=[list("abcdefghijkl")])
    seen = regard.load(tmp_path / "run")
    assert [layer.key for layer in seen.layers] == [0, 1]
    for layer, joined in zip(layers, seen.layers, strict=True):
        assert_equal(joined, layer)  # key/value heads that both ranks have are kept once
        assert joined.nbytes == layer.nbytes
    assert seen.certificate.certified
    assert seen.tokens == [list("abcdefghijkl")]
    assert torch.equal(seen[1, 3].to_dense(), layers[1].map[:, 3].to_dense())
    assert [row.head for row in seen.heads()] == [0, 1, 2, 3] * 2
    seen.save(tmp_path / "copy")
    assert_equal(regard.load(tmp_path / "copy").layers[0], layers[0])


def test_the_rows_of_two_ranks_are_one_layer(tmp_path):
    """As ring attention has them in head-tail order: the first and the last quarter, and the middle."""
    layers = [whole_layer(0, 2), whole_layer(1, 2, regard.causal & regard.padding([9]))]
    runs = [((0, 3), (9, 12)), ((3, 9),)]
    ranks = [[part_of(layer, [0, 1, 2, 3], rows, rows) for layer in layers] for rows in runs]
    run = save_ranks(tmp_path, ranks)
    seen = regard.load(tmp_path)
    for layer, joined in zip(layers, seen.layers, strict=True):
        assert_equal(joined, layer)
    assert (seen.certificate[0].rows, seen.certificate[0].total_rows) == (12, 12)
    with pytest.raises(ValueError, match=r"a part of its rows or keys only: .* regard\.load\(folder\)"):
        regard.load(tmp_path / ShardId(run, 0, 2).folder)[0]


def test_layers_of_a_pipeline_are_joined(tmp_path):
    layers = [whole_layer(n, 2) for n in range(3)]
    save_ranks(tmp_path, [layers[:2], layers[2:], []])
    seen = regard.load(tmp_path)
    assert [layer.key for layer in seen.layers] == [0, 1, 2]
    assert_equal(seen.layers[2], layers[2])


@pytest.mark.parametrize(
    "options",
    [
        {"mask": regard.causal & regard.alibi(H)},
        {"mask": regard.causal & Relative(torch.randn(H, 5), 4)},
        {"mask": regard.tensor_mask(torch.randn(1, H, T, T))},
        {"mask": regard.tensor_mask(torch.ones(T, T).tril().bool())},
        {"mask": regard.causal, "sinks": torch.randn(H), "softcap": 20.0, "scale": 0.2},
    ],
    ids=["alibi", "relative", "tensor by head", "tensor", "sinks"],
)
def test_what_differs_between_heads_is_joined(tmp_path, options):
    layer = whole_layer(0, 2, **options)
    save_ranks(tmp_path, by_heads([layer]))
    assert_equal(regard.load(tmp_path).layers[0], layer)


def test_statistics_are_joined(tmp_path):
    layer = whole_layer(0, 2)
    ranks = [
        [Layer(*layer_id(x), None, x.evidence, x.heads, x.values, x.summary, x.placement) for x in rank]
        for rank in by_heads([layer])
    ]
    save_ranks(tmp_path, ranks)
    for joined, whole in zip(regard.load(tmp_path).layers[0].summary, summarise(layer.map), strict=True):
        torch.testing.assert_close(joined, whole)


def test_one_uncertified_rank_leaves_the_layer_uncertified(tmp_path):
    ranks = by_heads([whole_layer(0, 2)])
    wrong = ranks[1][0]
    wrong.evidence = dataclasses.replace(wrong.evidence, difference=1.0)
    save_ranks(tmp_path, ranks)
    certificate = regard.load(tmp_path).certificate
    assert not certificate.certified
    assert certificate[0].difference == 1.0


def test_until_all_ranks_have_finished_the_folder_holds_what_it_held_before(tmp_path):
    old, new = [whole_layer(0, 2)], [whole_layer(1, 2)]
    run = new_run()
    rank0, rank1 = by_heads(old)
    save_shard(Capture(rank0, ids=IDS), tmp_path, ShardId(run, 0, 2))
    with pytest.raises(CaptureFileError, match="its writing was cut short"):
        regard.load(tmp_path)
    save_shard(Capture(rank1, ids=IDS), tmp_path, ShardId(run, 1, 2))
    assert regard.load(tmp_path).layers[0].key == 0
    next_run = new_run()
    save_shard(Capture(by_heads(new)[0], ids=IDS), tmp_path, ShardId(next_run, 0, 2))
    assert regard.load(tmp_path).layers[0].key == 0
    save_shard(Capture(by_heads(new)[1], ids=IDS), tmp_path, ShardId(next_run, 1, 2))
    assert regard.load(tmp_path).layers[0].key == 1
    assert not list(tmp_path.glob(f"*{run}"))  # the older shards are gone


def test_rank_0_keeps_other_captures_away(tmp_path):
    layer = by_heads([whole_layer(0, 2)])[0][0]
    folder = ShardFolder(tmp_path, ShardId(new_run(), 0, 2))
    folder.put(layer)
    try:
        with pytest.raises(InUseError, match="is in use by process"):
            ShardFolder(tmp_path, ShardId(new_run(), 0, 2))
    finally:
        folder.release()


def test_a_capture_of_one_process_and_one_of_several_do_not_share_a_folder(tmp_path):
    layer = whole_layer(0, 2)
    save_ranks(tmp_path / "several", by_heads([layer]))
    Capture([layer]).save(tmp_path / "one")
    with pytest.raises(ValueError, match="which holds one of several: choose another folder"):
        Capture([layer]).save(tmp_path / "several")
    with pytest.raises(ValueError, match="which holds a capture of one process: choose another folder"):
        save_ranks(tmp_path / "one", by_heads([layer]))


def test_swapped_files_of_two_ranks_are_noticed(tmp_path):
    run = save_ranks(tmp_path, by_heads([whole_layer(0, 2)]))
    a, b = (next((tmp_path / ShardId(run, rank, 2).folder).glob("layer-*")) for rank in (0, 1))
    swap(a, b)
    with pytest.raises(CaptureFileError, match="expected the shard"):
        regard.load(tmp_path)[0]


def swap(a, b):
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            lambda x: [[part_of(x, [0, 1])], [part_of(x, [1, 2], ((0, 6),))]],
            "expected rows 0 to 12 of head 1",
        ),
        (lambda x: [[part_of(x, [0], ((0, 6),))], [part_of(x, [0], ((7, 12),))]], "expected rows 0 to 12"),
        (lambda x: [[part_of(x, [0], ((0, 6),))], [part_of(x, [0], ((4, 12),))]], "expected rows 0 to 12"),
        (lambda x: [[part_of(x, [0, 1])], [x]], "expected parts of it or the whole layer, got both"),
        (
            lambda x: [[renamed(part_of(x, [0, 1]))], [part_of(x, [2, 3])]],
            "expected the same name on all ranks",
        ),
        (lambda x: [[], []], "expected at least one on some rank"),
    ],
    ids=["other rows", "hole", "overlap", "whole", "name", "nothing"],
)
def test_shards_that_do_not_fit_are_refused(tmp_path, ranks, message):
    save_ranks(tmp_path, ranks(whole_layer(0, 2)))
    with pytest.raises(CaptureFileError, match=message):
        regard.load(tmp_path)


def renamed(layer):
    layer.name = "other"
    return layer


def test_ranks_that_read_other_texts_are_refused(tmp_path):
    rank0, rank1 = by_heads([whole_layer(0, 2)])
    run = new_run()
    save_shard(Capture(rank0, ids=IDS), tmp_path, ShardId(run, 0, 2))
    save_shard(Capture(rank1, ids=IDS + 1), tmp_path, ShardId(run, 1, 2))
    with pytest.raises(CaptureFileError, match="ids: expected the same on all ranks, but ranks 0 and 1"):
        regard.load(tmp_path)


WRONG_INDEX = [
    ({"of": 10**12}, "expected a number below that of the ranks"),
    ({"of": 3}, "expected a folder rank-0-of-3"),
    ({"of": 0}, "expected a number below"),
    ({"run": "../../x"}, "expected 8 to 32 hexadecimal digits"),
    ({"format": "regard.shards 9"}, "expected format 'regard.shards 1'"),
    ({"run": None}, "run: expected text"),
]


def test_a_damaged_index_is_refused(tmp_path):
    save_ranks(tmp_path, by_heads([whole_layer(0, 2)]))
    index = tmp_path / "shards.json"
    whole = json.loads(index.read_text())
    for changes, message in WRONG_INDEX:
        index.write_text(json.dumps(whole | changes))
        with pytest.raises(CaptureFileError, match=message):
            regard.load(tmp_path)


WRONG_PLACEMENT = [
    ({"total_heads": 2}, "heads: expected numbers below 2"),
    ({"kv_heads": [0, 7]}, "kv_heads: expected as many as divide"),
    ({"kv_heads": [0, 1, 2]}, "kv_heads: expected as many as divide"),
    ({"kv_heads": ["0"]}, "kv_heads: expected a whole number"),
    ({"rows": [[0, 5]]}, "expected increasing runs of 12 rows"),
    ({"rows": [[6, 12], [0, 6]]}, "expected increasing runs of 12 rows"),
    ({"rows": [[0, 8], [4, 8]]}, "expected increasing runs of 12 rows"),
    ({"rows": [[-6, 6]]}, "expected increasing runs of 12 rows"),
    ({"rows": [[0, 14], [14, 12]]}, "expected increasing runs of 12 rows"),
    ({"keys": [[0, 12, 13]]}, "keys: expected 2 values"),
    ({"more": 1}, "Placement: expected the fields total_heads"),
]


def test_a_damaged_placement_is_refused(tmp_path):
    run = save_ranks(tmp_path, by_heads([whole_layer(0, 2)]))
    index = tmp_path / ShardId(run, 1, 2).folder / "capture.json"
    whole = index.read_text()
    for changes, message in WRONG_PLACEMENT:
        described = json.loads(whole)
        described["layers"][0]["placement"] |= changes
        index.write_text(json.dumps(described))
        with pytest.raises(CaptureFileError, match=message):
            regard.load(tmp_path)


def test_a_changed_number_of_a_head_is_noticed(tmp_path):
    """Nobody can renumber heads: the layers' files say which heads they hold, and the seal covers them."""
    run = save_ranks(tmp_path, by_heads([whole_layer(0, 2)]))
    index = tmp_path / ShardId(run, 1, 2).folder / "capture.json"
    described = json.loads(index.read_text())
    described["layers"][0]["heads"] = [3, 2]
    index.write_text(json.dumps(described))
    seen = regard.load(tmp_path)
    assert not seen.certificate.certified
    with pytest.raises(CaptureFileError, match="expected the shard"):
        seen[0, 2]
