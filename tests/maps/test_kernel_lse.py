"""Maps from the log-sum-exp of other kernels: FlexAttention's, PyTorch's, and the shapes of the others."""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import regard

aten = torch.ops.aten


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(1, 4, 32, 16), torch.randn(1, 2, 32, 16), torch.randn(1, 2, 32, 16)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def test_flex_attention_with_grouped_heads_and_a_window() -> None:
    q, k, v = tensors()
    block_mask = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j < 8), None, None, 32, 32, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # uncompiled, it warns that it builds the matrix
        output, aux = flex_attention(
            q, k, v, block_mask=block_mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
    m = regard.attention_map(q, k, mask=regard.causal & regard.window(8), lse=aux.lse)
    assert regard.certify(m, v, output, verify=True).certified
    wrong = regard.attention_map(q, k, mask=regard.causal & regard.window(9), lse=aux.lse)
    assert not regard.certify(wrong, v, output, verify=True).certified


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pytorchs_flash_kernel_on_a_cpu(dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype)
    output, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    m = regard.attention_map(q, k, mask=regard.causal, lse=lse)
    assert regard.certify(m, v, output, verify=True).certified
    base_2 = regard.attention_map(q, k, mask=regard.causal, lse=lse / torch.tensor(2.0).log())
    assert not regard.certify(base_2, v, output, verify=True).certified


def test_the_last_dimension_of_one_that_cudnn_has() -> None:
    q, k, v = tensors()
    output, lse = regard.attend(q, k, v, return_lse=True)
    assert regard.certify(regard.attention_map(q, k, lse=lse[..., None]), v, output).certified


@pytest.mark.parametrize("mark", [torch.inf, 0.0, -torch.inf])
def test_rows_that_see_no_key_however_a_kernel_marks_them(mark: float) -> None:
    q, k, v = tensors()
    mask = regard.rule(lambda b, h, q, k: (q >= 3) & (k <= q))
    output, lse = regard.attend(q, k, v, mask=mask, return_lse=True)
    lse[:, :, :3] = mark
    m = regard.attention_map(q, k, mask=mask, lse=lse)
    evidence = regard.certify(m, v, output, verify=True)
    assert evidence.certified
    assert evidence.empty_rows == 3
    lse[:, :, 5] = mark  # a row that sees keys
    if mark != -torch.inf:
        assert not regard.certify(regard.attention_map(q, k, mask=mask, lse=lse), v, output).certified


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 4, 128), r"lse: expected \(1, 4, 32\), .* got \(1, 4, 128\): pass lse\[\.\.\., :32\]"),
        ((1, 32, 4), r"got \(1, 32, 4\): pass lse\.mT$"),
        ((4, 32), r"got \(4, 32\)$"),
    ],
)
def test_another_shape_is_refused_with_how_to_mend_it(shape: tuple[int, ...], message: str) -> None:
    q, k, _ = tensors()
    with pytest.raises(ValueError, match=message):
        regard.attention_map(q, k, lse=torch.zeros(shape))
