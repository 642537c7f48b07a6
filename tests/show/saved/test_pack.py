"""The saved file: its modules, size, error and policy, the heads that it keeps; nothing in it breaks out."""

import base64
import hashlib
import json
import re
import zlib

import numpy as np
import pytest
import torch

import regard
from regard.gpt import GPT, Config
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.map_view.quantity import Quantity
from regard.show.saved import bundle, kept_heads, packed_layer
from regard.show.saved import pack as packing
from regard.show.saved.bundle import write
from regard.show.saved.kept_heads import keep_telling_heads
from regard.show.saved.pack import pack
from tests.captures import HOSTILE, captured, hybrid, layer_of

BLOCK = re.compile(r'<script type="application/octet-stream" id="([^"]+)">([A-Za-z0-9+/=]+)</script>\n')
TYPES = {"u8": "u1", "u32": "<u4", "i16": "<i2", "f16": "<f2", "f24": "<f4", "f32": "<f4", "f64": "<f8"}


def opened(blocks):
    """The file's description, and how to read the arrays of a block: what `packed.js` does, in Python."""
    raw = {name: zlib.decompress(base64.b64decode(text)) for name, text in blocks.items()}
    description = json.loads(raw["regard-data"])

    def arrays(name):
        found, at = {}, 0
        for field in description["blocks"][name]:
            count = int(np.prod(field["shape"]))
            dtype = np.dtype(TYPES[field["type"]])
            planes = 3 if field["type"] == "f24" else dtype.itemsize
            part = np.frombuffer(raw[name], np.uint8, planes * count, at).reshape(planes, count)
            if field["type"] == "f24":
                part = np.concatenate([np.zeros((1, count), np.uint8), part])
            whole = np.ascontiguousarray(part.T).view(dtype).reshape(field["shape"])
            found[field["name"]] = whole - np.int16(128) if field["type"] == "i16" else whole
            at += planes * count
        assert at == len(raw[name])
        return found

    return description, arrays


def weights_from(description, arrays, text, layer, head):
    """One head's matrix from a file's arrays alone, as the page computes it."""
    about = description["meta"]["texts"][text]["layers"][layer]
    whole, mask = arrays(about["block"]), arrays(about["mask_block"])
    T, S = about["rows"], about["cols"]
    q, k = (whole[name].astype(np.float64) * whole.get(f"{name}_step", 1.0) for name in ("q", "k"))
    q, k = q[head], k[head // about["group"]]
    scores = about["scale"] * q @ k.T
    if about["softcap"]:
        scores = about["softcap"] * np.tanh(scores / about["softcap"])
    own = lambda x: x[min(head, len(x) - 1)]  # noqa: E731
    if "relative" in mask:
        scores = scores + own(mask["relative"])[np.arange(S) - np.arange(T)[:, None] + T - 1]
    if "dense" in mask:
        scores = scores + own(mask["dense"])
    visible = np.zeros((T, S), bool)
    several = len(mask["offsets"]) != T + 1
    for row in range(T):
        at = head * T + row if several else row
        for first, last in mask["ranges"][mask["offsets"][at] : mask["offsets"][at + 1]]:
            visible[row, first:last] = True
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.where(visible, np.exp(scores - whole["lse"][head][:, None]), 0.0))


MASKS = [
    regard.causal,
    regard.full,
    regard.causal & regard.window(9),
    regard.causal & regard.padding([31]),
    regard.rule(lambda b, h, q, k: (q - k) % (h + 2) == 0),
    regard.causal & regard.alibi(4),
    regard.tensor_mask(torch.randn(4, 40, 40, generator=torch.Generator().manual_seed(0))),
    regard.tensor_mask(torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) > 0.5),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
def test_the_file_holds_the_weights(mask, exact, monkeypatch):
    monkeypatch.setattr(packing, "FINE", 0)
    seen = captured(mask=mask)
    packed = pack(Contents(seen), exact=exact)
    description, arrays = opened(packed.blocks)
    assert description["meta"]["precision"]["absolute"] == packed.absolute <= (1e-3 if exact else 0.03)
    for layer, head in ((0, 0), (1, 3)):
        true = seen.layers[layer].map.to_dense()[0, head].double()
        off = (weights_from(description, arrays, 0, layer, head) - true).abs()
        assert float(off.max()) <= packed.absolute * 1.01 + 1e-6
        assert (
            float((off / true).nan_to_num(0, 0, 0).where(true > 1e-6, 0).max())
            <= packed.relative * 1.01 + 1e-5
        )


def test_softcap_and_sinks():
    q, k = torch.randn(1, 4, 30, 8), torch.randn(1, 2, 30, 8) + 3
    sinks = torch.tensor([0.5, 2.0, -1.0, 4.0])
    m = regard.attention_map(q, k, mask=regard.causal, softcap=5.0, sinks=sinks)
    seen = Capture([layer_of(m)], "m")
    description, arrays = opened(pack(Contents(seen)).blocks)
    for head in range(4):
        found = weights_from(description, arrays, 0, 0, head)
        torch.testing.assert_close(found, m.to_dense()[0, head].double(), atol=1e-4, rtol=1e-3)


def test_what_rounding_would_change_keeps_24_bits(monkeypatch):
    monkeypatch.setattr(packing, "FINE", 0)
    monkeypatch.setattr(packed_layer, "SCORE_NOISES", (1.0, 0.5))
    q, k = torch.randn(1, 1, 64, 8), torch.randn(1, 1, 64, 8)
    m = regard.attention_map(q, k, mask=regard.causal)
    packed = pack(Contents(Capture([layer_of(m)], "m")))
    description, _ = opened(packed.blocks)
    assert [field["type"] for field in description["blocks"]["layer-0-0"]] == ["f24", "f24", "f32", "f32"]
    assert packed.relative <= 0.01


def test_values_come_along_if_there_is_room(monkeypatch):
    seen = captured()
    description, arrays = opened(pack(Contents(seen)).blocks)
    assert description["meta"]["can"]["values"] is True
    v = arrays(description["meta"]["texts"][0]["layers"][1]["values_block"])["v"]
    assert seen.layers[1].values is not None
    torch.testing.assert_close(torch.from_numpy(v).float(), seen.layers[1].values[0], atol=2e-3, rtol=1e-3)
    assert opened(pack(Contents(seen), values=False).blocks)[0]["meta"]["can"]["values"] is False
    monkeypatch.setattr(packing, "VALUES_LIMIT", 1000)
    assert opened(pack(Contents(seen)).blocks)[0]["meta"]["can"]["values"] is False
    assert opened(pack(Contents(seen), values=True).blocks)[0]["meta"]["can"]["values"] is True


def test_a_bias_too_large_for_a_page_is_refused_kindly(monkeypatch):
    monkeypatch.setattr(packed_layer, "DENSE_LIMIT", 100)
    with pytest.raises(ValueError, match="serve the capture instead"):
        pack(Contents(captured(mask=regard.tensor_mask(torch.randn(40, 40)))))


def test_the_page_is_one_file_under_its_own_policy(tmp_path):
    tokens = [*HOSTILE, "<!--", "]]>", "\ud800"]
    model = "</title><script>alert(1)</script> \udfff"
    path = write(captured(len(tokens), tokens=tokens, model=model), tmp_path / "page.html")
    text = path.read_text("utf-8")
    assert "alert(1)" not in text.replace("&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert "onerror" not in text
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for kind, body in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        found = re.findall(body, text, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="([^"#]+)"', markup) == ["data:,"]
    description, _ = opened(dict(BLOCK.findall(text)))
    assert description["meta"]["texts"][0]["tokens"] == tokens
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_rounded_rows_sum_to_1_and_take_a_byte_a_number(monkeypatch):
    monkeypatch.setattr(packing, "FINE", 0)
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, 256, 64, generator=draw) for _ in range(2))
    m = regard.attention_map(q, k + 2 * torch.randn(1, 4, 1, 64, generator=draw), mask=regard.causal)
    packed = pack(Contents(Capture([layer_of(m)], "m")))
    description, arrays = opened(packed.blocks)
    for head in range(4):
        sums = weights_from(description, arrays, 0, 0, head).sum(-1)
        torch.testing.assert_close(sums, torch.ones(256, dtype=torch.float64), atol=1e-3, rtol=0)
    assert len(packed.blocks["layer-0-0"]) <= 1.4 * (q.numel() + k.numel())


@pytest.mark.parametrize("size", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_are_as_exact_in_the_file(size, dtype):
    """What the page computes from the file, in float64, beside eager attention's error."""
    draw = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, 2, 40, 8, generator=draw) * size**0.5 for _ in range(2))
    q[:, 0] /= size**0.5  # one head has small scores
    q, k = q.to(dtype), (k + 3 * size**0.5).to(dtype)  # and all of a row's have something in common
    m = regard.attention_map(q, k, mask=regard.causal)
    seen = Capture([layer_of(m)], "large")
    packed = pack(Contents(seen), values=False)
    description, arrays = opened(packed.blocks)
    scores = (q.double() @ k.double().mT * 8**-0.5).masked_fill(~torch.ones(40, 40).tril().bool(), -torch.inf)
    true = scores.softmax(-1)[0]
    for head in range(2):
        found = weights_from(description, arrays, 0, 0, head)
        assert float((found.sum(-1) - 1).abs().max()) <= 0.01
        assert float((found - true[head]).abs().max()) <= packed.absolute * 1.01 + 1e-6
    assert packed.relative <= (0.01 if size < 1e6 else 2e-6)


def test_contributions_come_along_for_one_position_and_the_likeliest_tokens():
    seen = regard.capture(
        GPT.from_pretrained("default"),
        text="The sea was deep, the sea was",
        contributions=True,
        predictions=True,
    )
    contents = Contents(seen)
    description, arrays = opened(pack(contents).blocks)
    position = contents.meta["texts"][0]["predicted"]["start"]
    stored = description["attributions"][0]
    tokens = [one["token"]["id"] for one in stored]
    predicted = {"start": position, "positions": [position], "tokens": tokens}
    assert description["meta"]["texts"][0]["predicted"] == predicted
    assert [one["token"] for one in stored] == stored[0]["candidates"]
    assert len(stored) == 5
    assert stored[0]["logit"] > stored[4]["logit"]
    for token in tokens:
        factors = contents[0].factors(4, Quantity("logit", position=position, token=token))[0]
        found = torch.tensor(arrays(f"logit-0-4-{position}-{token}")["factors"])
        torch.testing.assert_close(found, factors, rtol=1e-4, atol=1e-6)
    norms = torch.tensor(arrays("norms-0-2")["factors"])
    torch.testing.assert_close(norms, seen.value_weighted(2).u[0], rtol=1e-4, atol=1e-6)
    assert opened(pack(Contents(captured())).blocks)[0]["attributions"] == [[]]


def test_linear_layers_are_packed_within_rounding():
    seen = hybrid()
    packed = pack(Contents(seen))
    assert 0 < packed.relative < 1e-3
    description, arrays = opened(packed.blocks)
    layers = description["meta"]["texts"][0]["layers"]
    assert [layer.get("delta_rule") for layer in layers] == [True, True, False, None]
    assert arrays(layers[1]["block"])["decay"].shape == (4, 24, 8)  # channels decay apart
    assert "values_block" in layers[3]
    assert "values_block" not in layers[0]  # its weights have no steps to show them in


MODULES = sorted(path.relative_to(bundle.FOLDER).as_posix() for path in bundle.FOLDER.rglob("*.js"))


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Bundles modules, passed by name, from `main`."""
    monkeypatch.setattr(bundle, "FOLDER", tmp_path)

    def bundle_texts(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.js"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        bundle.bundle_modules.cache_clear()
        try:
            return bundle.bundle_modules("main")
        finally:
            bundle.bundle_modules.cache_clear()

    return bundle_texts


def bundled(entry, after=None):
    """The modules in the script of an entry."""
    script = bundle.bundle_modules(entry, after)
    return {name for name in MODULES if f"const {bundle._variable(name.removesuffix('.js'))} = " in script}


SERVED = {"served_page.js", *(f"source/{name}.js" for name in ("early_meta", "http", "over_http"))}


def test_every_module_of_the_page_is_in_a_script():
    of_model = {name for name in MODULES if name.startswith("model/")}
    alone = {"source/arithmetic/worker.js", "notebook/host.js", "inflated_script.js"}  # scripts of their own
    assert bundled("whole_page") == set(MODULES) - alone - of_model - SERVED
    assert of_model <= bundled("model/worker")


def test_a_served_page_asks_first_and_has_no_code_twice():
    early, rest = bundled("source/early_meta"), bundled("served_page", after="source/early_meta")
    assert early & rest == set()
    assert early | rest >= SERVED
    assert {"map/map.js", "text/text.js", "main.js", "steps/steps.js"} <= rest
    # It computes nothing itself.
    assert not {"source/saved.js", "source/arithmetic/worker.js"} & (early | rest)


def test_every_style_sheet_of_the_page_is_linked_and_saved():
    sheets = sorted(path.relative_to(bundle.FOLDER).as_posix() for path in bundle.FOLDER.rglob("*.css"))
    links = re.findall(r'href="web/([^"]+)"', (bundle.FOLDER / "index.html").read_text("utf-8"))
    assert sorted(links) == sheets
    saved, _, _ = bundle._shell("a model", "source/arithmetic/worker")
    for name in sheets:
        assert (bundle.FOLDER / name).read_text("utf-8") in saved, name


def test_the_worker_has_the_arithmetic_and_knows_no_page():
    worker = bundled("source/arithmetic/worker")
    assert {f"source/arithmetic/{name}.js" for name in ("weights", "row_steps")} <= worker
    for name in worker | bundled("model/worker"):
        text = (bundle.FOLDER / name).read_text("utf-8")
        assert not re.search(r"\b(document|window|location|navigator)\.", text), name


def test_what_views_share_knows_no_view():
    """`data` imports nothing else, and `parts` only `data`."""
    allowed = {"data": r"\./\w+", "parts": r"(\.|\.\./data)/\w+"}
    for path in MODULES:
        if (folder := path.partition("/")[0]) in allowed:
            for _, other in bundle.IMPORT.findall((bundle.FOLDER / path).read_text("utf-8")):
                assert re.fullmatch(allowed[folder], other), f"{path} imports {other}"


def capture_random(window, tokens=90):
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "context_length": 128, "num_layers": 3, "num_heads": 4, "d_model": 64}
    gpt = GPT(Config(**sizes, positions="rotary", window=window)).eval()
    return regard.capture(gpt, inputs={"input_ids": torch.arange(tokens)[None] % 30})


@pytest.mark.parametrize("window", [None, 20])
def test_heads_are_chosen_on_the_first_tokens(window, monkeypatch):
    whole, first = Contents(capture_random(window)), Contents(capture_random(window, 40))
    monkeypatch.setattr(kept_heads, "RANKED", 40)
    found = [
        (row["layer"], row["head"], row["label"], row["scores"]["normalised_entropy"]["value"])
        for row in kept_heads._score_first_tokens(whole, 0)
    ]
    wanted = first[0].heads()
    assert [place[:3] for place in found] == [(row["layer"], row["head"], row["label"]) for row in wanted]
    entropies = [row["scores"]["normalised_entropy"]["value"] for row in wanted]
    assert [place[3] for place in found] == pytest.approx(entropies, abs=1e-4)
    assert whole[0]._heads is None  # no head was scored on the whole text


@pytest.mark.parametrize("sharpness", [1, 30])
def test_a_size_is_told_from_the_numbers_themselves(sharpness, monkeypatch):
    """Rounded numbers of heads that attend sharply take several times as many bits."""
    monkeypatch.setattr(packing, "FINE", 0)  # as in a large page
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "context_length": 1400, "num_layers": 2, "num_heads": 2, "d_model": 128}
    gpt = GPT(Config(**sizes, positions="rotary")).eval()
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv.weight.mul_(sharpness)
    contents = Contents(regard.capture(gpt, inputs={"input_ids": torch.randint(30, (1, 1400))}))
    packed = packing.pack(contents, values=False)
    written = sum(len(text) for name, text in packed.blocks.items() if name.startswith("layer-"))
    whole = packing.estimate_size(contents)
    assert whole == pytest.approx(written, rel=0.1)
    assert packing.estimate_size(keep_telling_heads(contents, most=whole // 2)) <= whole // 2
