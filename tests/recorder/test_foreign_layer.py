"""Captures of attention that another engine has computed: `Capture.from_tensors`."""

import pytest
import torch

import regard


def layer(T=5, S=5, **options):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, m, 8, generator=draw) for n, m in ((4, T), (2, S), (2, S)))
    return {"q": q, "k": k, "v": v, "output": regard.attend(q, k, v, **options), **options}


def test_certified_layers_are_a_capture_like_any_other(tmp_path):
    layers = [layer(mask=regard.causal), layer(scale=0.5, softcap=2.0), layer(sinks=torch.randn(4))]
    seen = regard.Capture.from_tensors(layers, model="engine", tokens=[list("abcde"), list("fghij")])
    assert seen.certificate.certified
    assert seen.model == "engine"
    expected = regard.attention_map(layers[0]["q"], layers[0]["k"], mask=regard.causal)
    torch.testing.assert_close(seen[0].to_dense(), expected.to_dense())
    seen.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved")
    torch.testing.assert_close(again[1].to_dense(), seen[1].to_dense())
    assert again.certificate.certified


def test_tensors_that_do_not_belong_together_are_not_certified():
    right = layer(mask=regard.causal)
    del right["mask"]
    seen = regard.Capture.from_tensors([right])
    assert not seen.certificate.certified
    assert "off the output by" in str(seen.layers[0].evidence)


def test_what_is_missing_or_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"layers\[0\]: expected q, k, v, output, got no output"):
        regard.Capture.from_tensors([{name: x for name, x in layer().items() if name != "output"}])
    with pytest.raises(ValueError, match=r"layers\[1\]: expected .*, got attn_mask"):
        regard.Capture.from_tensors([layer(), layer() | {"attn_mask": None}])
    with pytest.raises(ValueError, match=r"layers\[0\].q: expected \(B, H, T, D\), got \(5, 8\)"):
        regard.Capture.from_tensors([layer() | {"q": torch.randn(5, 8)}])
    with pytest.raises(ValueError, match=r"layers\[0\]: output: expected"):
        regard.Capture.from_tensors([layer() | {"output": torch.randn(2, 4, 5, 3)}])
