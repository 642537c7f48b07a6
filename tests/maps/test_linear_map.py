"""Maps of linear layers against their recurrence, token by token in float64."""

import pytest
import torch

import regard
from regard.maps import LinearAttentionMap

KINDS = ("linear", "decay", "delta", "gated delta", "per channel", "KDA")


def drawn(kind, B=1, G=1, H=2, T=75, D=4):
    draw = torch.Generator().manual_seed(len(kind))
    q, k = torch.randn(2, B, G, T, D, generator=draw)
    shape = (B, H, T, D) if kind in ("per channel", "KDA") else (B, H, T)
    decay = -torch.rand(shape, generator=draw) if kind not in ("linear", "delta") else None
    return regard.maps.linear_attention_map(
        q,
        k,
        decay=decay,
        beta=torch.rand(B, H, T, generator=draw),
        delta_rule="delta" in kind or kind == "KDA",
        skip=torch.randn(H, generator=draw) if kind == "decay" else None,
        scale=0.5,
        qk_norm=1e-6 if "delta" in kind else None,
    )


def recurrence(m):
    """The whole matrix, by the recurrence of the state with the unit vectors as values."""
    H, G, S = m.matrix[1], m.k.shape[1], m.matrix[3]
    q, k = (x.double() for x in (m.q, m.k))
    if m.qk_norm is not None:
        q, k = (x / (x.square().sum(-1, keepdim=True) + m.qk_norm).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(H // G, 1) for x in (q, k))
    decay = m.decay.double() if m.decay.ndim == 4 else m.decay.double()[..., None]
    v, state, rows = torch.eye(S, dtype=torch.float64), q.new_zeros(*q.shape[:1], H, q.shape[-1], S), []
    for t in range(S):
        state = state * decay[:, :, t].exp()[..., None]
        new = v[t].expand(*state.shape[:2], -1)
        if m.delta_rule:
            new = new - (k[:, :, t, None] @ state)[:, :, 0]
        state = state + k[:, :, t, :, None] * (m.beta.double()[:, :, t, None] * new)[:, :, None]
        rows.append(m.scale * (q[:, :, t, None] @ state)[:, :, 0])
    W = torch.stack(rows, 2)
    return W if m.skip is None else W + m.skip.double()[:, None, None] * torch.eye(S)


def close(ours, exact):
    return bool((ours.double() - exact).abs().max() <= 3e-5 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_those_of_the_recurrence(kind):
    m = drawn(kind)
    W = recurrence(m)
    assert close(m.to_dense(), W)
    assert close(m[0, 1, 70], W[0, 1, 70])
    assert close(m[:, :, [3, 74, 3], 1:40], W[:, :, [3, 74, 3], 1:40])
    assert close(m[:, :, 20:50].to_dense(), W[:, :, 20:50])
    assert close(m.diagonal(-1), W.diagonal(-1, -2, -1))
    assert close(m.diagonal(-70), W.diagonal(-70, -2, -1))
    assert not m[0, 0, 10, 11:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_sums_need_no_matrix(kind):
    m = drawn(kind)
    W, draw = recurrence(m), torch.Generator().manual_seed(0)
    v, x = torch.randn(1, 2, 75, 3, generator=draw), torch.randn(1, 2, 75, generator=draw)
    assert close(m @ v, W @ v.double())
    assert close(m[:, :, 20:50] @ v, (W @ v.double())[:, :, 20:50])
    assert close(m.received(x), (x.double().unsqueeze(-1) * W).sum(2))
    assert close(m.row_sums(), W.sum(-1))


@pytest.mark.parametrize("kind", ["gated delta", "per channel"])
def test_pools_are_exact_for_counts_edges_and_regions(kind):
    m = drawn(kind)
    W = recurrence(m)
    mass, most = m.pool([3, 10, 40], [0, 2, 60], "both")
    cell = W[:, :, 10:40, 2:60]
    assert close(mass[..., 1, 1], cell.sum(-1).mean(-1))
    assert close(
        most[..., 1, 1], cell.flatten(2).gather(-1, cell.flatten(2).abs().argmax(-1)[..., None])[..., 0]
    )
    part = m.pool(2, 3, region=(slice(30, 60), slice(0, 30)))
    assert close(part[..., 1, 2], W[:, :, 45:60, 20:30].sum(-1).mean(-1))


def test_statistics_are_of_the_magnitudes():
    m = drawn("gated delta")
    W = recurrence(m).abs()
    shares, position = W / W.sum(-1, keepdim=True), torch.arange(75.0, dtype=torch.float64)
    assert close(m.entropy(), torch.special.entr(shares).sum(-1))
    assert close(m.distance(), (shares * (position[:, None] - position)).sum(-1))


def test_grouped_heads_share_their_keys():
    m = drawn("gated delta", G=2, H=6)
    W = recurrence(m)
    assert close(m[:, 1:5].to_dense(), W[:, 1:5])
    assert close(m[0, 4, 33], W[0, 4, 33])


def test_decays_that_a_number_cannot_hold_are_exact():
    m = drawn("KDA")
    steep = m._with(decay=m.decay * 60)
    assert close(steep.to_dense(), recurrence(steep))


def test_a_saved_map_is_the_same_map(tmp_path):
    m = drawn("decay")[:, :, 5:50]
    m.save(tmp_path / "map.safetensors")
    again = regard.load(tmp_path / "map.safetensors")
    assert isinstance(again, LinearAttentionMap)
    assert repr(again) == repr(m)
    assert torch.equal(again.to_dense(), m.to_dense())


def test_gradients_flow_to_the_values():
    m, v = drawn("gated delta"), torch.randn(1, 2, 75, 3, requires_grad=True)
    (m @ v)[0, 0, 74].sum().backward()
    assert close(v.grad[0, 0, :, 0], recurrence(m)[0, 0, 74])


def test_wrong_shapes_are_named():
    q = torch.zeros(1, 1, 5, 2)
    with pytest.raises(ValueError, match="decay: expected"):
        regard.maps.linear_attention_map(q, q, decay=torch.zeros(1, 1, 4))
    with pytest.raises(ValueError, match="k: expected"):
        regard.maps.linear_attention_map(q, q[:, :, :3])
    with pytest.raises(ValueError, match="v: expected"):
        drawn("decay") @ torch.zeros(3, 2)
