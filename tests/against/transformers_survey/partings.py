"""Every model type, small and random, with "eager" against "sdpa": `parting()` must find rounding only.

`python -m tests.against.transformers_survey.partings [--share I/N] [--dtype float32]` prints a line for each
model type and the number of causes, all of which are false: both implementations compute one formula.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import regard
from tests.against.transformers_survey.building import class_names, model_types
from tests.against.transformers_survey.cases import Case
from tests.against.transformers_survey.surveying import small_model


def compare_implementations(model_type: str, dtype: torch.dtype = torch.float32) -> str:
    """What `parting()` says of a model type with "eager" and with "sdpa"; "not compared: …" if it cannot."""
    captures = {}
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
                Case("given", inputs).run(model)
            captures[name] = seen
        return str(regard.compare(captures["eager"], captures["sdpa"], batch=0).parting())
    # Types are built and run here that need other inputs, libraries, or have no such implementation.
    except Exception as error:
        return (
            f"not compared: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        )


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
    print(f"rounding only: {counts['rounding only']}, causes: {counts['layer']}, not compared: "
          f"{counts['not compared']}")  # fmt: skip


if __name__ == "__main__":
    main()
