"""Attack the project at length: `make attack`, or for some of the attacks and a number of draws

    python -m tests.attack [name …] [--draws N] [--seed N]

Each attack is a module here with a number of draws, `DRAWS`, and a function `attack(draws, seed)`, which
raises an AssertionError at the first failure and returns figures. The suite runs each with few draws.
"""

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

NAMES = sorted(
    path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if "def attack(" in path.read_text("utf-8")
)


def main():
    """Run the attacks that are named, or all of them, and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="the attacks to run; all by default")
    parser.add_argument("--draws", type=int, help="how many draws an attack makes; its own number by default")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="makes the draws reproducible")
    options = parser.parse_args()
    failed = [name for name in options.names or NAMES if not _run(name, options.draws, options.seed)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _run(name, draws, seed):
    """Run one attack, print its figures and return whether the project withstood it."""
    module = importlib.import_module(f"tests.attack.{name}")
    print(f"{name}: {draws or module.DRAWS} draws, seed {seed}", flush=True)
    start = time.monotonic()
    try:
        figures = module.attack(draws or module.DRAWS, seed)
    except Exception:
        traceback.print_exc()
        return False
    for figure, value in figures.items():
        print(f"  {figure}: {value:.4g}" if isinstance(value, float) else f"  {figure}: {value}")
    print(f"  {time.monotonic() - start:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
