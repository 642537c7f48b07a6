"""A kernel of one product, by which Triton's interpreter is tested. Importing it imports Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"

import triton
import triton.language as tl


@triton.jit
def multiply(a, b, product):
    """Write a · b, of one number each, to `product`."""
    tl.store(product, tl.load(a) * tl.load(b))
