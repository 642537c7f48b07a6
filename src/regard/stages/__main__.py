"""`python -m regard.stages [--save figure.png]`: a walk through the stages."""

from __future__ import annotations

import argparse

from regard.stages.figures.walkthrough import walk


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m regard.stages",
        description="Walk through the stages of attention on one small example: shapes, numbers, heatmaps.",
    )
    parser.add_argument("--save", metavar="FILE", help="also write the figure: figure.png, .svg or .pdf")
    arguments = parser.parse_args()
    try:
        walk(arguments.save)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
