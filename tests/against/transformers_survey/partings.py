"""Every model type, small and random, with "eager" against "sdpa": `parting()` must find rounding only.

    python -m tests.against.transformers_survey.partings [TYPE …] [--sample N] [--workers 2] [--dtype float32]

A line for each model type, and at the end how many types are of each kind. A cause is false if the outputs
of the model agree: where they do not, the two implementations of a type do compute other things (without a
mask, `BltGlobalTransformer` is causal with "sdpa" and not with "eager", in Transformers 5.22). Ends with
status 1 if a cause is false.
"""

import functools
import json
import sys
import time
import warnings
from collections import Counter

import torch

import regard
from regard.comparison.first_difference import GROWTH, ROUNDING
from tests.against.transformers_survey.building import class_names
from tests.against.transformers_survey.cases import Case, tensors
from tests.against.transformers_survey.command_line import chosen_types, survey_parser
from tests.against.transformers_survey.pool import each
from tests.against.transformers_survey.surveying import small_model

KINDS = ROUNDING_ONLY, AS_OUTPUTS, FALSE_CAUSE, NOT_COMPARED = (
    "rounding only",
    "parts as the outputs do",
    "false cause",
    "not compared",
)


def compare_implementations(model_type, dtype=torch.float32):
    """What `parting()` says of a model type with "eager" and with "sdpa", its kind and the outputs' error."""
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
                return {"kind": NOT_COMPARED, "words": f"no {name}"}
            with regard.capture(model, values=True) as seen:
                outputs[name] = tensors(Case("given", inputs).run(model))
            captures[name] = seen
        parting = regard.compare(captures["eager"], captures["sdpa"], batch=0).parting()
    # Types are built and run here that need other inputs, libraries, or have no such implementation.
    except Exception as error:
        return {"kind": NOT_COMPARED, "words": f"{type(error).__name__}: {error}".splitlines()[0][:120]}
    difference = _difference(*outputs.values())
    kind = ROUNDING_ONLY
    if not parting.rounding_only:
        # As a layer's input may be off by GROWTH roundings, so may the outputs, which NaN is not.
        kind = FALSE_CAUSE if difference <= GROWTH * ROUNDING[dtype] else AS_OUTPUTS
    return {"kind": kind, "words": str(parting), "outputs": difference}


def _difference(a, b):
    """The largest difference of two outputs, relative to the norm of each tensor."""
    errors = [0.0]
    for name in a.keys() & b.keys():
        if a[name].is_floating_point() and a[name].shape == b[name].shape:
            x, y = a[name].double(), b[name].double()
            errors.append(float((x - y).norm() / x.norm().clamp(min=1e-30)))
    return max(errors, key=lambda error: (error != error, error))


def main():
    parser = survey_parser(__doc__)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = chosen_types(arguments)
    work = functools.partial(compare_implementations, dtype=getattr(torch, arguments.dtype))
    results = {}
    start = time.monotonic()
    for name, result in each(names, work, arguments.workers, arguments.seconds):
        if "kind" not in result:  # its process failed
            result |= {"kind": NOT_COMPARED, "words": f"{result['error']}: {result['message']}"}
        results[name] = result
        outputs = f"; outputs are {result['outputs']:.0e} apart" if "outputs" in result else ""
        words = result["words"].removeprefix(ROUNDING_ONLY + ": ")
        print(f"{len(results):4}/{len(names)}  {name}: {result['kind']}: {words}{outputs}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    counts = Counter(result["kind"] for result in results.values())
    print(f"{time.monotonic() - start:.0f} s; " + ", ".join(f"{kind}: {counts[kind]}" for kind in KINDS))
    return int(counts[FALSE_CAUSE] > 0)


if __name__ == "__main__":
    sys.exit(main())
