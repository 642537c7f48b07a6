"""Plans, row blocks and settled lengths: a second call is the first one over again."""

import threading

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.backends import fused_attention, plan
from regard.attention.backends.fused_attention import SettledLength
from regard.attention.backends.plan import find_plan
from tests import strategies, truth


def tensors(T=8, **options):
    return [torch.randn(1, 2, T, 4, **options) for _ in range(3)]


def plan_of(q, k, v, mask=None, scale=None):
    return find_plan((q, k, v, mask, scale, None, None, 0.0, "auto"))[0]


def test_a_growing_cache_has_one_plan_and_wrong_lengths_are_still_answered():
    q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
    plans = []
    for length in (2, 3, 17, 40):
        cut = k[:, :, :length], v[:, :, :length]
        for given in (cut, [x.contiguous() for x in cut]):
            output, lse = regard.attend(q, *given, mask=regard.causal, return_lse=True)
            assert torch.equal(regard.attend(q, *given, mask=regard.causal), output)
            steps = regard.attend(q, *given, mask=regard.causal, return_lse=True, backend="steps")
            assert torch.allclose(output, steps[0], atol=1e-6)
            assert torch.allclose(lse, steps[1], atol=1e-5)
            plans.append(plan_of(q, *given, mask=regard.causal))
    assert all(each is plans[0] is not None for each in plans)
    with pytest.raises(ValueError, match="v: expected 40 keys"):
        regard.attend(q, k, v[:, :, :39], mask=regard.causal)
    with pytest.raises(ValueError, match="k: expected 4 dimensions"):
        regard.attend(q, k[0], v[0], mask=regard.causal)


def test_gradients_flow_whether_or_not_a_call_without_them_came_first():
    q, k, v = tensors()
    for mask in (regard.causal, regard.causal & regard.window(3)):
        with torch.no_grad():
            regard.attend(q, k, v, mask=mask)
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        with torch.no_grad():
            assert not regard.attend(*given, mask=mask).requires_grad
        found = torch.autograd.grad(regard.attend(*given, mask=mask).sum(), given)
        right = torch.autograd.grad(regard.attend(*given, mask=mask, backend="steps").sum(), given)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, right, strict=True))
        with torch.inference_mode():
            inside = v.clone()
        with pytest.raises(ValueError, match=r"v: expected a tensor from outside of torch.inference_mode"):
            regard.attend(given[0], k, inside, mask=mask)


def test_a_forced_backend_and_pytorchs_settings_are_noticed():
    q, k, v = tensors()
    regard.attend(q, k, v)
    with regard.attention.backend("triton"), pytest.raises(ValueError, match="'triton' cannot serve this"):
        regard.attend(q, k, v)
    with sdpa_kernel(SDPBackend.MATH):
        assert regard.which_backend(q, k, v).backend == "tiled"
        assert torch.allclose(regard.attend(q, k, v), regard.attend(q, k, v, backend="steps"), atol=1e-6)
        assert plan_of(q, k, v) is None
    with pytest.raises(ValueError, match="no fused kernel"), sdpa_kernel(SDPBackend.MATH):
        regard.attend(q, k, v, backend="torch")


def test_a_modified_mask_is_read_again():
    q, k, v = tensors()
    table = torch.ones(8, 8, dtype=torch.bool)
    lengths = torch.tensor([8])
    masks = [table, regard.tensor_mask(table), regard.padding(lengths)]
    for _ in range(2):
        for mask in masks:
            regard.attend(q, k, v, mask=mask)
    table.numpy()[:, 4:] = False  # which PyTorch does not count as a modification
    lengths.numpy()[0] = 4
    right = regard.attend(q, k[:, :, :4], v[:, :, :4], backend="steps")
    for mask in masks:
        assert torch.allclose(regard.attend(q, k, v, mask=mask), right, atol=1e-6)


def test_threads_plan_at_once():
    found = {}

    def work(seed):
        made = torch.Generator().manual_seed(seed)
        right = True
        for T in range(1, 12):
            q = torch.randn(1, 2, T, 4, generator=made)
            for mask in (regard.causal, regard.window(2)):
                output = regard.attend(q, q, q, mask=mask)
                right &= torch.allclose(output, regard.attend(q, q, q, mask=mask, backend="steps"), atol=1e-6)
        found[seed] = right

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


MASKS = [
    regard.causal & regard.window(5),
    regard.window(3, ahead=2),
    regard.chunks(7),
    regard.causal | regard.prefix(4),
    ~regard.window(2) | regard.window(2, ahead=0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_blocks_err_no_more_than_pytorch(mask, dtype):
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 150, 150, 16, 16), 3, dtype)
    allowed = mask.to_dense(150)
    right = regard.attend(*(y.double() for y in x[:3]), mask=mask, return_lse=True, backend="steps")
    output, lse = regard.attend(*x[:3], mask=mask, return_lse=True)
    theirs = scaled_dot_product_attention(*x[:3], attn_mask=allowed)
    assert truth.ratio_to_torch(output, theirs, right[0]) <= 2.0
    assert torch.allclose(lse.double(), right[1], atol=2e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_key_that_one_query_sees_spoils_its_row_alone(bad):
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 9, 4)
    mask = regard.causal & regard.window(4)
    k[:, :, 8] = bad  # seen by the last query alone
    spoiled = regard.attend(q, k, k, mask=mask).isnan()
    assert torch.equal(spoiled, regard.attend(q, k, k, mask=mask, backend="tiled").isnan())


def test_forward_mode_differentiation_goes_by_tiles():
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 6, 6, 4, 4), 1, torch.float64)
    mask, tangent = regard.causal & regard.window(3), torch.randn(1, 2, 6, 4, dtype=torch.float64)
    regard.attend(*x[:3], mask=mask)  # leaves a plan
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.q, tangent)
        found = torch.autograd.forward_ad.unpack_dual(regard.attend(dual, *x[1:3], mask=mask)).tangent
    step = 1e-6
    moved = [regard.attend(x.q + s * tangent, *x[1:3], mask=mask) for s in (step, -step)]
    assert torch.allclose(found, (moved[0] - moved[1]) / (2 * step), atol=1e-8)


@pytest.fixture
def calls(monkeypatch):
    """The kernels that were called, on a CPU in place of a GPU."""
    called = []

    def flash(q, k, v, *, scale):
        called.append("flash")
        return (scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True),)

    monkeypatch.setattr(fused_attention, "SETTLED", 4)
    monkeypatch.setattr(fused_attention, "flash_attention", flash)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return called


def settled(calls, scale=0.5):
    def chosen(q, k, v):
        calls.append("chosen")
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)

    return SettledLength(scale, chosen)


def step(attention, keys, capacity=None):
    q, cache = torch.randn(1, 4, 1, 8), torch.randn(1, 2, capacity or keys, 8)[:, :, :keys]
    expected = scaled_dot_product_attention(q, cache, cache, scale=0.5, enable_gqa=True)
    assert torch.equal(attention(q, cache, cache), expected)


def test_a_settled_length_goes_over_once(calls):
    attention = settled(calls)
    for _ in range(9):
        step(attention, 8)
    assert calls == ["flash"] * 4 + ["chosen"] * 5
    step(attention, 9)
    step(attention, 8)  # which has to settle again
    assert calls[9:] == ["flash"] * 2


@pytest.mark.parametrize(
    "caches",
    [[(length, 40) for length in range(5, 30) for _ in range(3)], [(8, 30), (8, 40)] * 10],
    ids=["lengths that grow under three layers", "other strides"],
)
def test_other_lengths_and_strides_do_not_settle(calls, caches):
    attention = settled(calls)
    for length, capacity in caches:
        step(attention, length, capacity)
    assert set(calls) == {"flash"}


def test_it_does_not_go_over_inside_a_cuda_graph(calls, monkeypatch):
    attention, capturing = settled(calls), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    for _ in range(9):
        step(attention, 8)
    assert set(calls) == {"flash"}
    capturing[0] = False
    step(attention, 8)
    step(attention, 8)
    assert calls[-1] == "chosen"


def test_lengths_share_a_plan(calls, monkeypatch):
    monkeypatch.setattr(plan, "_plans", {})
    q, long, short = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 8, 8)
    regard.attend(q, short, short)
    found, key = plan.find_plan((q, short, short, None, None, None, None, 0.0, "auto"))
    plan._plans[key] = found._replace(kernel=settled(calls, 8**-0.5))  # as on a GPU
    for _ in range(8):
        regard.attend(q, short, short)
    assert calls == ["flash"] * 4 + ["chosen"] * 4
    regard.attend(q, long, long)
    assert calls[8:] == ["flash"]
    assert plan.find_plan((q, long, long, None, None, None, None, 0.0, "auto"))[1] == key
