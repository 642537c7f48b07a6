"""A model that selects its keys itself, as DeepSeek-V3.2 does: the mass that its selection drops."""

import pytest
import torch

import regard
from tests.against.small_sizes import EXPERTS, LATENT, LLAMA
from tests.against.test_capture_families import build

transformers = pytest.importorskip("transformers")

SIZES = {"first_k_dense_replace": 3, "mlp_layer_types": ["dense"] * 3}
SIZES |= {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 12}


@torch.no_grad()
def test_the_mass_that_a_models_own_selection_drops():
    if not hasattr(transformers, "DeepseekV32Config"):
        pytest.skip("this version of Transformers has no DeepSeek-V3.2")
    model = build("DeepseekV32ForCausalLM", LLAMA | LATENT | EXPERTS | SIZES)
    ids = torch.randint(0, 97, (1, 48))
    seen = regard.capture(model, inputs={"input_ids": ids}, values=True)
    assert seen.certificate.certified, str(seen.certificate)
    found = seen.retained("own")
    assert found.share.shape == (3, 1, 4, 48)
    assert bool((found.share[..., :12] == 1).all())  # as many keys as it selects
    for number, m in enumerate(seen):
        # The softmax over all keys, of which the selected ones hold a share.
        q, k = m.q.double(), m.k.double().repeat_interleave(m.q.shape[1] // m.k.shape[1], 1)
        scores = (q @ k.mT * m.scale).masked_fill(~regard.causal.to_dense(48), -torch.inf)
        selected = m.to_dense() > 0
        assert int(selected[:, :, 12:].sum(-1).max()) == 12
        torch.testing.assert_close(
            found.share[number], (scores.softmax(-1) * selected).sum(-1), atol=1e-6, rtol=0
        )
    dropped = 1 - found.share[..., 12:].mean((1, 2, 3))
    assert bool((dropped > 0.1).all())  # random weights select almost at random
    # As many keys by other choices: the model's own indexer was never trained, and cannot beat the best.
    best = [
        regard.policies.measure(m._with(mask=regard.causal), None, regard.policies.best(), 12) for m in seen
    ]
    assert all(bool((own <= most.share + 1e-9).all()) for own, most in zip(found.share, best, strict=True))
