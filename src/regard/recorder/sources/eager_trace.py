"""Follows attention that a module computes in its own code: a product, a softmax over keys, a product.

While such a module runs, an `EagerTrace` sees every torch function that it calls. The result of a product of
two activations may be scores; what is done to scores up to a softmax is noted; and if the result of the
softmax is multiplied with something else, that is attention. A softmax that is not preceded and followed by
such products (of a router, a sampler or a loss) is none. Nothing that the module computes is changed.
This file knows functions and tensors; `eager_call` makes an attention call of what was followed.
"""

from __future__ import annotations

from regard.recorder.sources.eager.eager_scores import RESHAPING, SAME

RESHAPING |= {"unsafe_view"}
SAME |= {"to_copy", "alias", "lift_fresh_copy"}  # operators of exported graphs
SAME |= {"nan_to_num", "clamp", "clamp_min", "clamp_max", "maximum", "max", "dropout", "cuda", "cpu"}
