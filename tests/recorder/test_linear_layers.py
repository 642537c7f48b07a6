"""Capture of linear layers in a model of plain PyTorch: certificates, generation, planted faults, files."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder.certificates import linear_certificate
from regard.recorder.certificates.linear_certificate import examine_linear
from tests.recorder.small_models import Projected


def chunk_gated_delta_rule(q, k, v, g, beta, initial_state=None, use_qk_l2norm_in_kernel=True):
    """The gated delta rule, token by token, under the name by which libraries call it."""
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    B, T, H, D = q.shape
    state = q.new_zeros(B, H, D, v.shape[-1]) if initial_state is None else initial_state
    output = []
    for t in range(T):
        state = state * g[:, t].exp()[..., None, None]
        new = (v[:, t] - (k[:, t, :, None] @ state)[:, :, 0]) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * new[:, :, None]
        output.append((q[:, t, :, None] @ state)[:, :, 0] * D**-0.5)
    return torch.stack(output, 1), state


class DeltaNet(nn.Module):
    """A gated delta rule with two key heads for four heads, and a state that it keeps."""

    def __init__(self):
        super().__init__()
        self.qk, self.v, self.gates = nn.Linear(16, 2 * 2 * 8), nn.Linear(16, 4 * 8), nn.Linear(16, 8)
        self.out = nn.Linear(32, 16)
        self.state = None

    def forward(self, x):
        q, k = (y.unflatten(-1, (2, 8)).repeat_interleave(2, 2) for y in self.qk(x).chunk(2, -1))
        a, b = self.gates(x).chunk(2, -1)
        v = self.v(x).unflatten(-1, (4, 8))
        output, self.state = chunk_gated_delta_rule(q, k, v, -F.softplus(a), b.sigmoid(), self.state)
        return self.out(output.flatten(2))


def softmax_attention():
    sdpa = functools.partial(F.scaled_dot_product_attention, is_causal=True)
    return Projected(sdpa, heads=2, width=8)


class Hybrid(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(nn.ModuleDict({"mixer": kind()}) for kind in kinds)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer["mixer"](x)
        return x


def model(*kinds):
    torch.manual_seed(0)
    return Hybrid(kinds or (DeltaNet, softmax_attention, DeltaNet)).eval()


IDS = torch.arange(40)[None] % 20


def forget(hybrid):
    for module in hybrid.modules():
        if isinstance(module, DeltaNet):
            module.state = None
    return hybrid


def test_every_layer_of_a_hybrid_is_certified_under_its_number():
    hybrid = model()
    plain = forget(hybrid)(IDS)
    with torch.no_grad(), regard.capture(forget(hybrid)) as seen:
        output = hybrid(IDS)
    assert torch.equal(plain, output)
    assert [layer.key for layer in seen.layers] == [0, 1, 2]
    assert seen.certificate.certified, seen.certificate
    assert not seen.missing
    assert isinstance(seen[0], LinearAttentionMap)
    assert isinstance(seen[1], AttentionMap)
    assert seen[0].k.shape[1] == 2  # heads that repeat their keys share them
    assert "gated delta rule" in str(seen.certificate[0])


def test_the_map_times_the_values_is_the_output():
    hybrid, outputs = model(DeltaNet), []
    hook = hybrid.layers[0]["mixer"].out.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    seen = regard.capture(hybrid, inputs=(IDS,), values=True)
    hook.remove()
    values = seen.layer(0).values
    assert torch.allclose((seen[0] @ values).transpose(1, 2).flatten(2), outputs[0], atol=1e-6)


def test_tokens_that_follow_a_state_are_joined_to_one_map():
    hybrid = model(DeltaNet)
    whole = regard.capture(hybrid, inputs=(IDS,), values=True)
    with torch.no_grad(), regard.capture(forget(hybrid), values=True) as seen:
        for part in (IDS[:, :30], IDS[:, 30:31], IDS[:, 31:]):
            hybrid(part)
    assert seen[0].shape == (1, 4, 40, 40)
    assert seen.certificate.certified, seen.certificate
    assert torch.allclose(seen[0].to_dense(), whole[0].to_dense(), atol=1e-6)


def test_a_state_from_before_the_capture_is_a_problem():
    hybrid = model(DeltaNet)
    hybrid(IDS[:, :30])
    with torch.no_grad(), regard.capture(hybrid) as seen:
        hybrid(IDS[:, 30:])
    assert "earlier tokens" in str(seen.certificate[0].problem)


FAULTS = {
    "a decay off by a thousandth": lambda x: x.update(decay=x["decay"] * 1.001),
    "decays one token late": lambda x: x.update(decay=x["decay"].roll(1, 2)),
    "a β off by a thousandth": lambda x: x.update(beta=x["beta"] * 1.001),
    "no norm of the keys": lambda x: x.update(qk_norm=None),
    "another scale": lambda x: x.update(scale=x["scale"] * 1.001),
    "no delta rule": lambda x: x.update(delta_rule=False),
    "heads swapped": lambda x: x.update(k=x["k"].flip(1)),
    "one key changed": lambda x: x.update(k=x["k"].index_fill(2, torch.tensor([17]), 0.1)),
}


class DeltaCase:
    """A call of the gated delta rule in float32: what makes its map, and its values, output and state.

    `inputs` are rounded from tensors of `dtype`, and `decay` says how fast the layer forgets.
    """

    def __init__(self, T=50, decay=1.0, dtype=torch.float32, normed=True):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, T, 2, 8, dtype=dtype) for _ in range(3))
        g, beta = -decay * torch.rand(1, T, 2), torch.rand(1, T, 2)
        output, self.state = chunk_gated_delta_rule(
            q.float(), k.float(), v.float(), g, beta, use_qk_l2norm_in_kernel=normed
        )
        tensors = {"q": q, "k": k, "decay": g, "beta": beta}
        self.inputs = {name: x.transpose(1, 2) for name, x in tensors.items()}
        self.inputs |= {"delta_rule": True, "scale": 8**-0.5, "qk_norm": 1e-6 if normed else None}
        self.values, self.output = v.transpose(1, 2), output.to(dtype).transpose(1, 2)

    def examine(self, **states):
        m = regard.maps.linear_attention_map(**self.inputs)
        return examine_linear(m, self.values, self.output, **states)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_not_certified(fault):
    case = DeltaCase()
    right = case.examine(final_state=case.state)
    assert right.certified, right
    FAULTS[fault](case.inputs)
    wrong = case.examine()
    assert not wrong.certified, wrong


@pytest.mark.parametrize(
    "options",
    [{"T": 100, "decay": 200.0, "normed": False}, {"dtype": torch.float64}],
    ids=["fast", "float64"],
)
@pytest.mark.parametrize("fault", ["beta", "scale"])
def test_a_fault_shows_however_fast_a_layer_forgets_and_in_inputs_of_float64(fault, options):
    case = DeltaCase(**options)
    assert case.examine().certified
    case.inputs[fault] = case.inputs[fault] * (1 + 2e-4)
    assert not case.examine().certified


def test_a_wrong_state_or_output_is_not_certified():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 50, 8) for _ in range(3))
    m = regard.maps.linear_attention_map(q, k, decay=-torch.rand(1, 2, 50))
    output = m @ v
    assert examine_linear(m, v, output).certified
    changed = output.clone()
    changed[0, 1, 49, 3] += 1e-2
    assert not examine_linear(m, v, changed).certified
    assert not examine_linear(m, v, output, final_state=torch.randn(1, 2, 8, 8)).certified
    assert not examine_linear(m, v, output, initial_state=torch.randn(1, 2, 8, 8)).certified
    assert not examine_linear(m, v, output * torch.nan).certified


def test_every_head_counts_and_none_behind_a_closed_gate(monkeypatch):
    monkeypatch.setattr(linear_certificate, "HEAD_NUMBERS", {"cpu": 1, "cuda": 1})  # one head at a time
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 3, 20, 8)
    m = regard.maps.linear_attention_map(q, k, decay=-torch.rand(1, 3, 20))
    output = m @ v
    for head in range(3):
        broken = output.clone()
        broken[0, head, 7] = torch.nan
        assert not examine_linear(m, v, broken).certified
    gate = torch.randn(1, 3, 20, 8)
    assert examine_linear(m, v, output * gate, gate=gate).certified
    gate[:, 1] = 0.0
    evidence = examine_linear(m, v, output * gate, gate=gate)
    assert not evidence.certified
    assert "its gate is 0" in str(evidence)


def test_a_mixed_capture_has_scores_files_and_a_page(tmp_path):
    seen = regard.capture(model(), inputs=(IDS,))
    table = seen.heads()
    assert len(table) == 4 + 2 + 4
    linear = {"previous_token", "itself", "local", "distance", "effective_length"}
    assert set(table[0, 0].scores) == linear
    assert "induction" in table[1, 0].scores
    assert "effective_length" not in table[1, 0].scores
    assert 1 <= table[0, 0].scores["effective_length"].value <= 40
    seen.save(tmp_path / "folder")
    again = regard.load(tmp_path / "folder")
    assert again.certificate.certified
    assert torch.equal(again[0].to_dense(), seen[0].to_dense())
    with pytest.raises(ValueError, match="softmax attention only"):
        seen.rollout()
    page = seen.to_html(tmp_path / "page.html")
    assert page.exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_in_half_precision_is_certified_and_a_wrong_state_is_not(dtype):
    """Transformers' step of Mamba-2 multiplies key, time step and value in half precision."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 1, 16).to(dtype) for _ in range(3))
    decay, beta = -torch.rand(2, 4, 1), torch.rand(2, 4, 1).to(dtype)
    state = torch.randn(2, 4, 16, 16)
    new = (k * beta[..., None]).mT * v  # (B, H, D, E), rounded twice
    after = state * decay[..., None].exp() + new
    output = (q @ after.to(dtype)).to(dtype)
    m = regard.maps.linear_attention_map(q, k, decay=decay, beta=beta.float())
    right = examine_linear(m, v, output, initial_state=state, final_state=after)
    assert right.certified, right
    for wrong in (1.1 * after, after.flip(2), after.flip(1)):
        assert not examine_linear(m, v, output, initial_state=state, final_state=wrong).certified
    assert not examine_linear(m, v, output, initial_state=0.9 * state, final_state=after).certified
