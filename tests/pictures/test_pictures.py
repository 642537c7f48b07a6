"""Pictures of vision models: found with their patches, shown as they were, saved and read safely."""

import io
import json
import struct
import zlib

import matplotlib.image
import pytest
import torch
import transformers
from torch import nn

import regard
from regard.pictures.patch_layout import PatchAxes, PatchLayout, PatchSpan
from regard.pictures.picture import MAX_SIDE, Normalisation, display_pixels
from regard.support.png import SIGNATURE, decode_png, encode_png
from scripts import digits_vit

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 24,
    "patch_size": 8,
}
WIDE = SIZES | {"intermediate_size": 16}


def a_photo(height=24, width=24, seed=0):
    """Pixels from 0 to 1, (3, height, width)."""
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def normalised(x, mean=0.5, std=0.5):
    return (x - mean) / std


def build(name, **settings):
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()


def seen_by(model, **inputs):
    return regard.capture(model, inputs=inputs)


def layout_of(seen, key, entry=0):
    """The layout of a layer's keys."""
    return seen.pictures.layout(key, "keys", entry)


TOWERS = {
    "ViT": ("ViT", WIDE, ["CLS"]),
    "DINOv2 with registers": (
        "Dinov2WithRegisters",
        SIZES | {"num_register_tokens": 2},
        ["CLS", "register 1", "register 2"],
    ),
    "CLIP": ("CLIPVision", WIDE, ["CLS"]),
    "SigLIP": ("SiglipVision", WIDE, []),
    "DeiT": ("DeiT", WIDE, ["CLS", "distillation"]),
}


@pytest.mark.parametrize("family", TOWERS)
def test_a_tower_shows_its_patches_and_names_what_stands_before_them(family):
    name, settings, prefix = TOWERS[family]
    photo = a_photo()
    seen = seen_by(build(name, **settings), pixel_values=normalised(photo)[None])
    layout, pictures = layout_of(seen, 0), seen.pictures
    names = [layout.name(token) for token in range(seen[0].shape[-1])]
    assert names == [*prefix, *(f"row {row}, column {col}" for row in (1, 2, 3) for col in (1, 2, 3))]
    assert seen.ids_of(seen.layers[0]) is None
    assert (pictures[0].height, pictures[0].width) == (24, 24)


def test_swins_windows_are_parts_of_the_picture():
    """The weights of a window are found again where its places say, also of one that is shifted."""
    settings = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2], "num_heads": [2]}
    model = build("Swin", **settings, window_size=4)
    seen = seen_by(model, pixel_values=torch.randn(1, 3, 32, 32))
    plain, shifted = ([layout_of(seen, key, window).spans[0].places for window in range(4)] for key in (0, 1))
    assert plain[0] == (0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
    assert plain[3][0] == 36
    assert shifted[0][0] == 2 * 8 + 2
    assert shifted[3][-1] == 1 * 8 + 1  # around both edges
    for windows in (plain, shifted):
        assert sorted(place for window in windows for place in window) == list(range(64))


def test_a_grid_is_found_for_other_sizes_of_picture_and_each_of_a_batch():
    photos = torch.stack([a_photo(40, 24, seed) for seed in range(2)])
    model = build("ViT", **WIDE)
    seen = regard.capture(
        model, inputs={"pixel_values": normalised(photos), "interpolate_pos_encoding": True}
    )
    pictures = seen.pictures
    for entry, photo in enumerate(photos):
        assert layout_of(seen, 0, entry).spans[0][:4] == (entry, 1, 5, 3)
        shown = pictures[entry].pixels.permute(2, 0, 1) / 255
        torch.testing.assert_close(shown, photo, atol=0.5 / 255, rtol=0)
    assert "0.5" in pictures.about
    assert "ViT" in pictures.about


LANGUAGE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 60,
}
IMAGE = 50  # the id of an image token
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def llava():
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**WIDE),
        text_config=transformers.LlamaConfig(**LANGUAGE),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


def paligemma():
    torch.manual_seed(0)
    vision = transformers.SiglipVisionConfig(**WIDE, projection_dim=16).to_dict()
    text = transformers.GemmaConfig(**LANGUAGE, head_dim=8).to_dict()
    sizes = {"projection_dim": 16, "hidden_size": 16}
    config = transformers.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, **sizes
    )
    return transformers.PaliGemmaForConditionalGeneration(config).eval()


@pytest.mark.parametrize(("model", "before"), [(llava, 3), (paligemma, 0)])
def test_image_tokens_of_a_text_are_patches(model, before):
    ids = torch.tensor([[1, 2, 3][:before] + [IMAGE] * 9 + [4, 5, 6]])
    inputs = {"pixel_values": normalised(a_photo())[None], "input_ids": ids}
    if model is paligemma:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    seen = regard.capture(model(), inputs=inputs)
    layout, pictures = layout_of(seen, "language_model.0"), seen.pictures
    assert [layout.name(token) for token in range(ids.shape[1])] == [
        *[None] * before,
        *(f"row {row}, column {col}" for row in (1, 2, 3) for col in (1, 2, 3)),
        *[None] * 3,
    ]
    assert not pictures.is_tower("language_model.0")
    assert pictures.is_tower("vision_tower.0")
    scores = seen.heads()["language_model.0", 0].scores
    assert "previous_token" in scores
    assert "neighbours" not in scores


def test_two_pictures_of_one_text_are_told_apart():
    ids = torch.tensor([[1, *[IMAGE] * 9, 2, *[IMAGE] * 9, 3]])
    pixels = normalised(torch.stack([a_photo(), a_photo(seed=1)]))
    seen = regard.capture(llava(), inputs={"pixel_values": pixels, "input_ids": ids})
    layout = layout_of(seen, "language_model.0")
    assert [(span.picture, span.first) for span in layout.spans] == [(0, 1), (1, 11)]
    assert layout.name(11) == "picture 2, row 1, column 1"


def test_qwen2_vl_puts_its_patches_together_to_the_picture_that_was_cut():
    torch.manual_seed(0)
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "mlp_ratio": 1}
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    config = transformers.Qwen2VLConfig(
        text_config=LANGUAGE | {"rope_scaling": rope},
        vision_config=vision | {"spatial_merge_size": 2},
        image_token_id=IMAGE,
        vision_start_token_id=51,
        vision_end_token_id=52,
        video_token_id=53,
    )
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    photo = a_photo(16, 24)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (CLIP_MEAN, CLIP_STD))
    # As the processor cuts it: squares of 2 × 2 patches follow each other, each patch in two frames.
    cut = ((photo - mean) / std).view(3, 2, 2, 4, 3, 2, 4).permute(1, 4, 2, 5, 0, 3, 6)
    pixels = cut[..., None, :, :].expand(*cut.shape[:5], 2, 4, 4).reshape(24, -1)
    ids = torch.tensor([[1, 51, *[IMAGE] * 6, 52, 4]])
    inputs = {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 6]])}
    seen = regard.capture(model, inputs=inputs | {"mm_token_type_ids": (ids == IMAGE).long()})
    shown = seen.pictures[0].pixels.permute(2, 0, 1) / 255
    torch.testing.assert_close(shown, photo, atol=0.6 / 255, rtol=0)
    tower, text = (layout_of(seen, key) for key in ("visual.0", "language_model.0"))
    assert [tower.name(token) for token in (0, 1, 2, 4)] == [
        "row 1, column 1",
        "row 1, column 2",
        "row 2, column 1",
        "row 1, column 3",
    ]
    assert text.spans[0][:4] == (0, 2, 2, 3)


class OwnVision(nn.Module):
    """Attention over patches that it is handed, with one token before them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)

    def forward(self, patches):
        x = torch.cat([patches.mean(1, keepdim=True), patches], 1)
        return self.attention(x, x, x, need_weights=False)[0]


def test_an_own_module_is_told_its_patches_and_its_picture():
    photo = a_photo(8, 12)
    patches = regard.pictures.Patches(rows=2, cols=3, prefix=["CLS"], picture=photo)
    seen = regard.capture(OwnVision().eval(), inputs=(torch.randn(1, 6, 12),), patches=patches)
    layout = layout_of(seen, 0)
    assert [layout.name(token) for token in (0, 1, 6)] == ["CLS", "row 1, column 1", "row 2, column 3"]
    assert "as the model read them" in seen.pictures.about
    other = regard.pictures.Patches(rows=3, cols=3, prefix=["CLS"], picture=photo)
    assert regard.capture(OwnVision(), inputs=(torch.randn(1, 6, 12),), patches=other).pictures is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 2}, "both rows and cols"),
        ({"rows": 0, "cols": 3}, "rows: expected a number from 1"),
        ({"prefix": "CLS"}, "prefix: expected a list"),
        ({"mean": [0.5]}, "both mean and std"),
        ({"mean": [0.5], "std": [0.0]}, "a positive std"),
        ({"picture": torch.zeros(2, 4, 4)}, "picture: expected pixels"),
    ],
)
def test_what_cannot_be_patches_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        regard.pictures.Patches(**arguments)


def test_colours_are_never_claimed_where_they_cannot_be_right():
    half = Normalisation((0.5,) * 3, (0.5,) * 3, "a processor does")
    photo = a_photo()
    assert "as a processor does" in display_pixels(normalised(photo), half).about
    stretched = display_pixels(10 * torch.randn(3, 8, 8), half)
    assert "not known" in stretched.about
    assert (int(stretched.pixels.min()), int(stretched.pixels.max())) == (0, 255)
    assert "from 0 to 255" in display_pixels(255 * photo).about
    large = display_pixels(torch.rand(1, 4 * MAX_SIDE, MAX_SIDE)).pixels
    assert tuple(large.shape) == (MAX_SIDE, MAX_SIDE // 4, 3)
    display_pixels(torch.full((3, 4, 4), torch.nan))  # whatever a model is given


def test_a_png_is_what_others_read_and_only_our_own_is_read_back():
    pixels = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    data = encode_png(pixels.numpy())
    read = torch.from_numpy(matplotlib.image.imread(io.BytesIO(data), format="png"))
    assert torch.equal((read * 255).round().to(torch.uint8), pixels)
    assert torch.equal(decode_png(data, 8), pixels)
    header = struct.pack(">II5B", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    bomb = zlib.compress(bytes(1 << 20))
    for damaged, message in (
        (b"GIF89a", "another kind"),
        (data[:-6], "cut short"),
        (data.replace(b"IDAT", b"IDAx"), "checksums"),
        (SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", bomb), "at most 8 × 8"),
        (SIGNATURE + _chunk(b"IHDR", data[16:29]) + _chunk(b"IDAT", bomb), "bytes of lines"),
        (SIGNATURE, "one header"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_png(damaged, 8)


def _chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_pictures_are_saved_and_a_folder_that_says_something_wrong_of_them_is_refused(tmp_path):
    seen = seen_by(build("ViT", **WIDE), pixel_values=normalised(a_photo())[None])
    seen.save(tmp_path)
    seen.save(tmp_path)  # which replaces the first
    assert len(list(tmp_path.glob("picture-*.png"))) == 1
    back = regard.load(tmp_path)
    there, here = back.pictures, seen.pictures
    assert torch.equal(there[0].pixels, here[0].pixels)
    assert (there.layouts, there.axes, there.about) == (here.layouts, here.axes, here.about)
    index = tmp_path / "capture.json"
    good = index.read_text("utf-8")
    changes = [
        ("files", ["../picture-a.png"]),
        ("files", ["picture-other.png"]),
        ("files", ["picture-a.png"] * 65),
        ("axes", [[7, 0, 0]]),
        ("axes", [[0, 5, 0]]),
        ("text", 3),
        ("layouts", [[{"spans": [[9, 0, 3, 3, [0]]], "special": []}]]),
        ("layouts", [[{"spans": [[0, 0, 3, 3, [99]]], "special": []}]]),
        ("layouts", [[{"spans": [[0, 0, 1 << 40, 3, [0]]], "special": []}]]),
        ("layouts", [[{"spans": [], "special": [[0]]}]]),
    ]
    for name, value in changes:
        described = json.loads(good)
        described["pictures"][name] = value
        index.write_text(json.dumps(described), encoding="utf-8")
        with pytest.raises(ValueError, match="expected"):
            regard.load(tmp_path)
    described = json.loads(good)
    (tmp_path / described["pictures"]["files"][0]).write_bytes(b"no picture")
    index.write_text(good, encoding="utf-8")
    with pytest.raises(ValueError, match=r"picture-.*another kind"):
        regard.load(tmp_path)


def test_heads_among_patches_are_scored_in_two_dimensions():
    """A head made by hand: every patch attends to the one at its right, CLS to everything alike."""
    layout = PatchLayout((PatchSpan(0, 1, 3, 3, tuple(range(9))),), {0: "CLS"})
    q = torch.zeros(1, 1, 10, 10)
    for patch in range(9):
        q[0, 0, 1 + patch, 1 + (patch + 1 if patch % 3 < 2 else patch)] = 60.0
    m = regard.attention_map(q, torch.eye(10)[None, None], scale=1.0)
    axes = PatchAxes(layout, layout)
    row = regard.heads.describe([m], None, patches=[axes])[0, 0]
    assert {"previous_token", "local", "distance", "eviction", "duplicate"}.isdisjoint(row.scores)
    assert row.scores["neighbours"].value == pytest.approx(6 / 9, abs=1e-5)
    assert row.scores["patch_distance"].value == pytest.approx(6 / 9, abs=1e-5)
    assert row.scores["itself"].value == pytest.approx((3 + 0.1) / 10, abs=1e-5)
    assert row.scores["cls"].value == pytest.approx(0.1 / 10, abs=1e-5)
    # Uniform attention to ten tokens: a corner has three neighbours, an edge five, the middle eight.
    assert row.scores["neighbours"].null == pytest.approx((4 * 3 + 4 * 5 + 8) / 9 / 10, abs=1e-5)
    assert row.scores["cls"].null == pytest.approx(0.1, abs=1e-5)


def test_the_digits_model_names_digits_and_its_cls_attends_to_them():
    """Something real: trained by `python -m scripts.digits_vit`, with digits that it has not seen."""
    model, digits, labels = digits_vit.load()
    assert digits_vit.accuracy(model, digits, labels) > 0.85
    pixels = digits_vit.compose(digits)
    patches = regard.pictures.Patches(mean=digits_vit.MEAN, std=digits_vit.STD)
    seen = regard.capture(model, inputs={"pixel_values": pixels}, patches=patches, verify=True)
    assert seen.certificate.certified
    assert len(seen.pictures) == 64
    # CLS attends to the patches that the digit covers more than to as many of the others.
    ink = torch.nn.functional.avg_pool2d(pixels, 4).flatten(1)  # (64, 64)
    first = layout_of(seen, 1).spans[0].first
    on_patches = torch.stack(
        [seen[1][:, head].to_dense()[:, 0, first:] for head in range(4)], 1
    )  # (64, 4, 64)
    on_digit = (on_patches * (ink > ink.median(-1, keepdim=True).values)[:, None]).sum(-1) / on_patches.sum(
        -1
    )
    assert float(on_digit.mean(0).max()) > 0.6
