"""Captures on disk: what was seen comes back; a killed save changes nothing; bad folders are refused."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import regard
from regard.gpt import GPT, Config
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.certificate import Evidence
from regard.recorder.layer import Layer
from regard.recorder.storage import layer_file
from regard.recorder.storage.capture_folder import Folder
from regard.recorder.summary import LayerSummary, summarise, summary_size
from regard.recorder.tokens_of_maps.predictions import predictions_from
from regard.support.file_lock import InUseError
from regard.support.files import CaptureFileError


def evidence(**changes):
    settings = dict(
        difference=1e-7, tolerance=1e-5, row_sums=1e-6, rows=6, total_rows=6, mask="causal", scale=0.5
    )
    return Evidence(**(settings | changes))


def layer(number, stack="", mask=regard.causal, T=6, **options):
    q, k = torch.randn(2, 4, T, 8), torch.randn(2, 2, T, 8)
    m = regard.attention_map(q, k, mask=mask)
    return Layer(number, f"model.{number}.attn", stack, m, evidence(), range(4), **options)


def a_capture(layers=3, **about):
    return Capture([layer(n) for n in range(layers)], model="Small", **about)


def small_model():
    return GPT(Config(vocab_size=8, context_length=8, num_layers=2, num_heads=2, d_model=8)).eval()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_capture_comes_back(tmp_path):
    seen = a_capture(
        ids=torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]),
        tokens=[["a", "é", "\n", "漢", '"', "\\"], ["b"] * 6],
        attention_mask=torch.tensor([[True] * 6, [True] * 3 + [False] * 3]),
        boundary=4,
        target_ids=torch.tensor([[3], [4]]),
        target_tokens=[["x"], ["y"]],
    )
    seen.save(tmp_path / "new" / "capture")
    written = json.loads((tmp_path / "new" / "capture" / "capture.json").read_text())
    assert written["versions"]["regard"] == regard.__version__
    assert written["versions"]["torch"] == torch.__version__
    assert written["certified"] is True
    back = regard.load(tmp_path / "new" / "capture")
    assert (back.model, back.tokens, back.boundary) == (seen.model, seen.tokens, 4)
    assert torch.equal(back.ids, seen.ids)
    assert torch.equal(back.target_ids, seen.target_ids)
    assert back.target_tokens == seen.target_tokens
    assert torch.equal(back.attention_mask, seen.attention_mask)
    assert repr(back) == repr(seen)
    assert str(back.certificate) == str(seen.certificate)
    assert back.nbytes == seen.nbytes
    for there, here in zip(back.layers, seen.layers, strict=True):
        assert (there.key, there.name, there.heads, there.shape) == (
            here.key,
            here.name,
            here.heads,
            here.shape,
        )
        assert torch.equal(there.map.to_dense(), here.map.to_dense())
        assert there.map.mask is regard.causal
        assert there.evidence == here.evidence
    assert torch.equal(back[1, 2].to_dense(), seen[1, 2].to_dense())


def test_predictions_come_back(tmp_path):
    seen = a_capture(
        ids=torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]),
        attention_mask=torch.tensor([[True] * 6, [True] * 3 + [False] * 3]),
    )
    seen.predictions = predictions_from(
        torch.randn(2, 6, 20),
        seen.ids,
        attention_mask=seen.attention_mask,
        decode=lambda ids: [f"word {n}" for n in ids.tolist()],
    )
    seen.save(tmp_path)
    back = regard.load(tmp_path)
    for name in ("likeliest", "probabilities", "losses", "ranks"):
        there, here = getattr(back.predictions, name), getattr(seen.predictions, name)
        assert there.dtype == here.dtype
        torch.testing.assert_close(there, here, rtol=0, atol=0, equal_nan=True)
    assert back.predictions.words == seen.predictions.words
    assert bool(back.predictions.losses.isnan().any())


def test_stacks_values_sinks_and_summaries(tmp_path):
    values = torch.randn(2, 2, 6, 8)
    cross = layer(0, "cross", mask=regard.padding([3, 6]), values=values)
    q = torch.randn(2, 4, 6, 8)
    sunk = regard.attention_map(q, q, sinks=torch.randn(4), softcap=3.0)
    statistics = summarise(sunk)
    layers = [
        layer(0, "encoder"),
        cross,
        Layer(0, "d", "decoder", sunk, evidence(sinks=True), range(4)),
        Layer(1, "e", "decoder", None, evidence(), range(4), summary=statistics),
    ]
    Capture(layers).save(tmp_path)
    back = regard.load(tmp_path)
    assert torch.equal(back.layer("cross.0").values, values)
    assert back.layer("encoder.0").values is None
    assert torch.equal(back["decoder.0"].to_dense(), sunk.to_dense())
    assert back["decoder.0"].softcap == 3.0
    assert all(map(torch.equal, back.layer("decoder.1").summary, statistics))
    with pytest.raises(ValueError, match=r"only its statistics were stored.*store=\"maps\""):
        back["decoder.1"]


def test_a_rule_that_is_a_function_is_written_out(tmp_path, monkeypatch):
    own = regard.rule(lambda b, h, q, k: (q + k + h) % 3 != 1)
    biased = own & regard.alibi(4)
    per_key = regard.rule(lambda b, h, q, k: (k != 2) & (b == b))
    seen = Capture([layer(0, mask=own), layer(1, mask=biased), layer(2, mask=per_key & regard.causal)])
    seen.save(tmp_path)
    back = regard.load(tmp_path)
    for there, here in zip(back, seen, strict=True):
        assert torch.allclose(there.to_dense(), here.to_dense(), atol=1e-7)
    monkeypatch.setattr(layer_file, "MAX_MASK_BYTES", 100)
    with pytest.raises(ValueError, match=r"is a function, which a file cannot hold.*named masks"):
        seen.save(tmp_path / "large")
    assert not (tmp_path / "large" / "capture.json").exists()


def test_opening_reads_no_tensors(tmp_path):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    q = torch.randn(1, 8, 1024, 64)  # 2 MiB
    big = [
        Layer(n, "", "", regard.attention_map(q, q, lse=torch.zeros(1, 8, 1024)), evidence(), range(8))
        for n in range(10)
    ]
    Capture(big).save(tmp_path)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk > 40 << 20
    before = resident()
    back = regard.load(tmp_path)
    assert len(back) == 10
    assert back.certificate.certified
    assert repr(back) == "Capture(10 layers of 1×8×1024×1024, 10 certified)"
    assert resident() - before < 4 << 20
    assert back[7, 3][0, 5:8, :4].shape == (3, 4)
    assert resident() - before < 16 << 20


def test_saving_again_replaces_the_old_capture(tmp_path):
    a_capture(5).save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    a_capture(2).save(tmp_path)
    assert len(regard.load(tmp_path)) == 2
    assert len(names(tmp_path)) == 4  # two layers, the index and what was there
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_capture_can_be_saved_where_it_came_from(tmp_path):
    a_capture().save(tmp_path)
    back = regard.load(tmp_path)
    before = back[2].to_dense()
    back.model = "Renamed"
    back.save(tmp_path)
    again = regard.load(tmp_path)
    assert again.model == "Renamed"
    assert torch.equal(again[2].to_dense(), before)
    assert torch.equal(back[2].to_dense(), before)
    back.save(tmp_path / "copy")
    assert torch.equal(regard.load(tmp_path / "copy")[2].to_dense(), before)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="there are no limits to the sizes of files")
def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """A limit to the size of files stands for a full disk, which safetensors reports in the same way."""
    import resource

    seen, (soft, hard) = a_capture(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(OSError, match=r"path: expected a place.*layer-.*safetensors, .*File too large"):
            seen.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_save_leaves_the_old_capture(tmp_path, monkeypatch):
    seen = a_capture()
    seen.save(tmp_path)
    before = names(tmp_path)
    write, calls = layer_file.write, []

    def failing(data, path, *about):
        calls.append(path)
        if len(calls) == 2:
            raise OSError("No space left on device")
        write(data, path, *about)

    monkeypatch.setattr(layer_file, "write", failing)
    with pytest.raises(OSError, match="No space left"):
        a_capture().save(tmp_path)
    assert set(before) < set(names(tmp_path))
    assert torch.equal(regard.load(tmp_path)[0].to_dense(), seen[0].to_dense())
    monkeypatch.setattr(layer_file, "write", write)
    a_capture().save(tmp_path)
    assert len(names(tmp_path)) == len(before)  # what the failed one left is swept up


KILLED_SAVES = """
import os, signal, sys, torch, regard
sys.path.insert(0, sys.argv[1])
from regard.recorder.storage import layer_file
from tests.recorder.storage.test_capture_folder import a_capture
write, written = layer_file.write, []
def watched(data, path, *about):
    write(data, path, *about)
    written.append(path)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
layer_file.write = watched
for folder in sys.argv[2:]:
    if (child := os.fork()) == 0:
        a_capture(6).save(folder)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.at_length("test_a_failed_save_leaves_the_old_capture")
def test_a_killed_save_leaves_no_half_capture(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    a_capture(2).save(old)
    first = regard.load(old)[1].to_dense()
    command = [sys.executable, "-c", KILLED_SAVES, str(Path(__file__).parents[3]), str(new), str(old)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for folder in (new, old):
        layers = [name for name in names(folder) if name.startswith("layer-")]
        assert len(layers) == (3 if folder == new else 5)
    back = regard.load(old)
    assert len(back) == 2
    assert torch.equal(back[1].to_dense(), first)
    with pytest.raises(ValueError, match=r"holds no capture\.json: its writing was cut short"):
        regard.load(new)
    for folder in (new, old):
        a_capture(1).save(folder)
        assert len(names(folder)) == 2


def damage(folder, change):
    """Change the index of a saved capture, which is saved first where there is none."""
    index, whole = folder / "capture.json", folder / "whole.json"
    if not whole.exists():
        a_capture(2).save(folder)
        whole.write_text(index.read_text())
    described = json.loads(whole.read_text())
    described = change(described) or described
    index.write_text(described if isinstance(described, str) else json.dumps(described))
    return folder


def at(*path):
    """A change that puts the last of the arguments at the place that the others name."""

    def change(described):
        *way, last, value = path
        for key in way:
            described = described[key]
        described[last] = value

    return change


def predicting(**changes):
    """A change that adds 2 × 6 ids and their predictions, some fields of which are changed."""
    right = {
        "likeliest": [1] * 12,
        "probabilities": [0.5] * 12,
        "losses": [None] + [0.5] * 9,
        "ranks": [0] + [1] * 9,
        "words": {"1": "a"},
    }

    def change(described):
        described |= {"ids": [[1] * 6] * 2, "predictions": right | changes}

    return change


DAMAGE = [
    lambda d: "{",
    lambda d: "[1, 2]",
    lambda d: "[" * 100_000,
    lambda d: {"format": "regard.capture 1"},
    at("format", "regard.capture 9"),
    at("layers", []),
    at("layers", 7),
    at("layers", 0, "file", "../../etc/passwd"),
    at("layers", 0, "file", "/etc/passwd"),
    at("layers", 0, "file", "layer-0/../../x.safetensors"),
    at("layers", 0, "file", ".layer-0.safetensors"),
    at("layers", 0, "file", "layer-gone.safetensors"),
    at("layers", 0, "file", None),
    at("layers", 0, "shape", [2, 4, 6]),
    at("layers", 0, "heads", [0, 1]),
    at("layers", 0, "number", True),
    at("layers", 0, "evidence", {}),
    at("layers", 0, "checksum", None),
    at("layers", 0, "checksum", -1),
    at("layers", 0, "checksum", 1 << 32),
    at("layers", 0, "evidence", "difference", "much"),
    at("layers", 0, "evidence", "surprise", 1),
    at("layers", 0, "number", 1),
    at("ids", [[1, 2], [3]]),
    at("ids", [[2**80]]),
    at("tokens", [[1]]),
    at("model", ["x"]),
    at("predictions", {}),
    predicting(likeliest=[], probabilities=[]),
    predicting(likeliest=[1] * 11),
    predicting(probabilities=[None] * 12),
    predicting(losses=[1.0] * 9),
    predicting(words={"x": "y"}),
]


def test_a_damaged_index_is_refused_by_name(tmp_path):
    for number, change in enumerate(DAMAGE):
        damage(tmp_path, change)
        with pytest.raises(ValueError, match=r"capture\.json is damaged"):
            pytest.fail(f"DAMAGE[{number}] is read: {regard.load(tmp_path)}")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = damage(tmp_path / "a", at("layers", 0, "file", "layer-link.safetensors"))
    q = torch.randn(2, 4, 6, 8)
    regard.attention_map(q, q).save(tmp_path / "outside.safetensors")
    (folder / "layer-link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(ValueError, match=r"capture\.json is damaged.*expected the name of a layer's file"):
        regard.load(folder)


def test_a_layer_unlike_the_index_is_refused(tmp_path):
    back = regard.load(damage(tmp_path, at("layers", 0, "shape", [2, 4, 6, 7])))
    with pytest.raises(ValueError, match=r"layer-0-.* is damaged: expected a layer of \(2, 4, 6, 7\)"):
        back[0]


@pytest.mark.parametrize("piece", [layer_file.PIECE_BYTES, 1000])
def test_a_flipped_bit_is_noticed_when_its_layer_is_first_used(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(layer_file, "PIECE_BYTES", piece)  # of which a file has one or several
    seen = a_capture(2)
    seen.save(tmp_path)
    back = regard.load(tmp_path)
    file = back.layers[0].file
    contents = bytearray(file.read_bytes())
    assert (len(contents) > piece) == (piece == 1000)
    contents[-3] ^= 1  # in a tensor
    file.write_bytes(contents)
    with pytest.raises(CaptureFileError, match=r"layer-0-.* is damaged: expected a file with the checksum"):
        back[0]
    assert torch.equal(back[1].q, seen[1].q)
    contents[-3] ^= 1
    file.write_bytes(contents)
    assert torch.equal(regard.load(tmp_path)[0].q, seen[0].q)


def test_damaged_layers_are_refused_by_name(tmp_path):
    file = tmp_path / "layer-0.safetensors"
    q, k, lse = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)
    mask = {"mask": {"kind": "Full"}, "scale": 1.0, "softcap": None, "axes": [True, True]}

    def refused(match, tensors, **metadata):
        save_file(tensors, file, metadata=metadata)
        with pytest.raises(ValueError, match=match):
            layer_file.read(file)

    whole = {"q": q, "k": k, "lse": lse}
    good = {"format": "regard.AttentionMap 1", "map": json.dumps(mask)}
    save_file(whole, file, metadata=good)
    assert layer_file.read(file).matrix == (1, 2, 3, 3)
    refused(
        r"expected format 'regard\.AttentionMap 1' or .*'regard\.Summary 1', got 'other'",
        whole,
        format="other",
    )
    refused("damaged.*values", {**whole, "values": torch.zeros(1, 2, 9, 4)}, **good)
    refused("damaged.*divides", {**whole, "k": torch.zeros(1, 3, 3, 4)}, **good)
    refused("damaged.*batch", {**whole, "k": torch.zeros(2, 2, 3, 4)}, **good)
    refused("damaged.*floating", {**whole, "q": q.int(), "k": k.int()}, **good)
    refused("damaged.*lse", {**whole, "lse": lse.half()}, **good)
    refused("damaged.*sinks", {**whole, "sinks": torch.zeros(5)}, **good)
    for scale in (None, "x", float("nan")):
        refused("damaged", whole, **{**good, "map": json.dumps(mask | {"scale": scale})})
    for rule in ({"kind": "Window", "size": "x"}, {"kind": "Chunks", "size": 0}, {"kind": "Rule", "says": 1}):
        refused("damaged", whole, **{**good, "map": json.dumps(mask | {"mask": rule})})
    deep = {"kind": "Full"}
    for _ in range(300):
        deep = {"kind": "Not", "inner": deep}
    nested = json.dumps(mask | {"mask": deep}).replace('{"kind": "Full"}', '{"kind": "Not", "inner": ' * 9000)
    refused("damaged", whole, **{**good, "map": nested})
    summary = summarise(regard.attention_map(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)))._asdict()
    refused(
        "damaged.*entropy", {k: v for k, v in summary.items() if k != "entropy"}, format="regard.Summary 1"
    )
    refused("damaged.*together", summary | {"max": torch.zeros(2)}, format="regard.Summary 1")


def test_what_is_no_capture_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"which holds no capture\.json$"):
        regard.load(tmp_path)
    with pytest.raises(ValueError, match=r"expected a folder that seen\.save.*nothing, which does not exist"):
        regard.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"expected a folder for the capture, got .*file, which is a file"):
        a_capture().save(tmp_path / "file")
    with pytest.raises(ValueError, match="got one that captured nothing"):
        Capture().save(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_a_file_is_a_map(tmp_path):
    m = a_capture()[0]
    m.save(tmp_path / "map.safetensors")
    assert torch.equal(regard.load(tmp_path / "map.safetensors").to_dense(), m.to_dense())
    a_capture().save(tmp_path / "capture")
    one = regard.load(tmp_path / "capture").layers[0].file  # a layer's file is a map's
    assert regard.load(one).shape == (2, 4, 6, 6)


def test_a_folder_takes_layers_as_they_come(tmp_path):
    folder = Folder(tmp_path)
    first = folder.put(layer(0))
    grown = folder.put(layer(0, T=9), instead_of=first)
    assert len([name for name in names(tmp_path) if name.startswith("layer")]) == 1
    second = folder.put(layer(1))
    with pytest.raises(ValueError, match="cut short"):
        regard.load(tmp_path)
    folder.finish(Capture([grown, second]))
    folder.release()
    assert [m.shape[-1] for m in regard.load(tmp_path)] == [9, 6]


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    """The first to finish would delete the layers of the other."""
    path, writer = tmp_path / "seen", small_model()
    ids = torch.zeros(1, 4, dtype=torch.long)
    with regard.capture(writer, folder=path) as seen:
        writer(ids)
        with pytest.raises(InUseError, match="is in use by process"):
            a_capture().save(path)
        with pytest.raises(InUseError, match="is in use by process"):
            regard.capture(writer, folder=path)
    assert regard.load(path).certificate.certified
    assert not (path / ".lock").exists()
    seen.save(path)


@pytest.mark.parametrize(("T", "S"), [(5, 5), (3, 7), (7, 3), (300, 300), (1, 1), (1, 4)])
def test_a_summary_is_what_the_map_says(T, S):
    q, k = torch.randn(2, 4, T, 8), torch.randn(2, 2, S, 8)
    m = regard.attention_map(q, k, mask=regard.causal)
    found, A = summarise(m), m.to_dense()
    assert isinstance(found, LayerSummary)
    assert found.nbytes == summary_size(2, 4, T, S)
    rows, cols = min(T, 256), min(S, 256)
    torch.testing.assert_close(found.mass, m.pool(rows, cols), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.max, m.pool(rows, cols, "max"), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.received, A.sum(-2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.itself, A.diagonal(S - T, -2, -1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.previous, A.diagonal(S - T - 1, -2, -1), atol=1e-5, rtol=1e-4)
    one = Layer(0, "", "", m, evidence(), range(4))
    torch.testing.assert_close(one.summary.entropy, found.entropy)
