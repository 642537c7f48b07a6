"""Plans: the second call of `attend` is the first one over again, and whatever may change it is noticed."""

import threading
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard.attention.backends.plan import find_plan


def tensors(T: int = 8, **options: Any) -> list[torch.Tensor]:
    return [torch.randn(1, 2, T, 4, **options) for _ in range(3)]


def plan(q: Any, k: Any, v: Any, mask: Any = None, scale: Any = None) -> Any:
    return find_plan((q, k, v, mask, scale, None, None, 0.0, "auto"))[0]


def test_a_growing_cache_has_one_plan_and_wrong_lengths_are_still_answered() -> None:
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
            plans.append(plan(q, *given, mask=regard.causal))
    assert all(each is plans[0] is not None for each in plans)
    with pytest.raises(ValueError, match="v: expected 40 keys"):
        regard.attend(q, k, v[:, :, :39], mask=regard.causal)
    with pytest.raises(ValueError, match="k: expected 4 dimensions"):
        regard.attend(q, k[0], v[0], mask=regard.causal)


def test_gradients_flow_whether_or_not_a_call_without_them_came_first() -> None:
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


def test_a_forced_backend_and_pytorchs_settings_are_noticed() -> None:
    q, k, v = tensors()
    regard.attend(q, k, v)
    with regard.attention.backend("triton"), pytest.raises(ValueError, match="'triton' cannot serve this"):
        regard.attend(q, k, v)
    with sdpa_kernel(SDPBackend.MATH):
        assert regard.which_backend(q, k, v).backend == "tiled"
        assert torch.allclose(regard.attend(q, k, v), regard.attend(q, k, v, backend="steps"), atol=1e-6)
        assert plan(q, k, v) is None
    with pytest.raises(ValueError, match="no fused kernel"), sdpa_kernel(SDPBackend.MATH):
        regard.attend(q, k, v, backend="torch")


def test_a_modified_mask_is_read_again() -> None:
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


def test_threads_plan_at_once() -> None:
    found: dict[int, bool] = {}

    def work(seed: int) -> None:
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
