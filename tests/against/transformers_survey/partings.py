"""Every model type, small and random, with "eager" against "sdpa": `parting()` must find rounding only.

`python -m tests.against.transformers_survey.partings [--share I/N] [--dtype float32]` prints a line for each
model type and the numbers at the end. A cause is false if the outputs of the model agree: where they do not,
the two implementations of a type do compute other things (without a mask, `BltGlobalTransformer` is causal
with "sdpa" and not with "eager", in Transformers 5.22).
"""

from __future__ import annotations

import argparse
import warnings

import torch

import regard
from tests.against.transformers_survey.building import class_names, model_types
from tests.against.transformers_survey.cases import Case, tensors
from tests.against.transformers_survey.surveying import small_model


def compare_implementations(model_type: str, dtype: torch.dtype = torch.float32) -> str:
    """What `parting()` says of a model type with "eager" and with "sdpa"; "not compared: …" if it cannot."""
    captures, outputs = {}, {}
    try:
        model, inputs = small_model(model_type, class_names(model_type)[0])
        model.to(dtype)
        inputs = {
            name: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
            for name, x in inputs.items()
        }
        for name in ("eager", "sdpa"):
            model.set_attn_implementation(name)
            if model.config._attn_implementation != name:
                return f"not compared: no {name}"
            with regard.capture(model, values=True) as seen:
                outputs[name] = tensors(Case("given", inputs).run(model))
            captures[name] = seen
        found = str(regard.compare(captures["eager"], captures["sdpa"], batch=0).parting())
        return f"{found}; outputs are {_difference(*outputs.values()):.0e} apart"
    # Types are built and run here that need other inputs, libraries, or have no such implementation.
    except Exception as error:
        return (
            f"not compared: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        )


def _difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of two outputs, relative to the norm of each tensor."""
    errors = [0.0]
    for name in a.keys() & b.keys():
        if a[name].is_floating_point() and a[name].shape == b[name].shape:
            x, y = a[name].double(), b[name].double()
            errors.append(float((x - y).norm() / x.norm().clamp(min=1e-30)))
    return max(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", default="0/1", help="which part of the types: 0/4 is the first of four")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.share.split("/"))
    warnings.simplefilter("ignore")
    counts = {"rounding only": 0, "not compared": 0, "layer": 0}
    for model_type in model_types()[part::parts]:
        found = compare_implementations(model_type, getattr(torch, arguments.dtype))
        counts[next(kind for kind in counts if found.startswith(kind))] += 1
        print(f"{model_type}: {found}", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
