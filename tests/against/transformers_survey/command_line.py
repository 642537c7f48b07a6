"""The arguments that both programs of the survey take, and the model types that they choose."""

import argparse
from pathlib import Path

from tests.against.transformers_survey.building import model_types


def survey_parser(description):
    """A parser for which types to run, in how many processes, how long, and where the results go."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", help="model types; all of them by default")
    parser.add_argument("--sample", type=int, help="this many of the types, spread evenly over them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0, help="time limit for a model type")
    parser.add_argument("--json", type=Path, help="write every result here")
    return parser


def chosen_types(arguments):
    """The model types that the arguments name, or a sample of them."""
    names = arguments.types or model_types()
    if arguments.sample:
        names = names[:: max(1, len(names) // arguments.sample)][: arguments.sample]
    return names
