"""The GPU suite without pytest, for machines that have only PyTorch and Triton:

PYTHONPATH=src python -m tests.gpu.run [words of a name]

PART=1/4 runs the second quarter of the cases, for several processes side by side.
"""

import os
import sys
import time
import traceback

import torch

from tests.gpu.cases import cases


def main():
    if not torch.cuda.is_available():
        print("needs a CUDA device")
        return 1
    passed, failed, start = 0, [], time.monotonic()
    part, parts = map(int, os.environ.get("PART", "0/1").split("/"))
    wanted = [case for case in cases() if all(word in case[0] for word in sys.argv[1:])]
    for name, check in wanted[part::parts]:
        torch.manual_seed(0)
        try:
            check()
            passed += 1
        except Exception as problem:
            failed.append(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")
            traceback.print_exc(limit=-2)
            print(f"FAILED {failed[-1]}", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s on {torch.cuda.get_device_name()}")
    print(*(f"FAILED {line}" for line in failed), sep="\n")
    print(f"{passed} passed, {len(failed)} failed")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
