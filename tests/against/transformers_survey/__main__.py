"""Capture against every model type of the installed Transformers.

    python -m tests.against.transformers_survey                          all of them
    python -m tests.against.transformers_survey llama t5 qwen3_next      some
    python -m tests.against.transformers_survey --json out.json --docs docs/transformers.md

Ends with status 1 if a model type fails: silently wrong, crash, missing without a word, changed by capture.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.against.transformers_survey import verdict as v
from tests.against.transformers_survey.command_line import chosen_types, survey_parser
from tests.against.transformers_survey.pool import each
from tests.against.transformers_survey.surveying import survey
from tests.against.transformers_survey.table import document


def main():
    parser = survey_parser(__doc__)
    parser.add_argument("--docs", type=Path, help="write the table for the docs here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = chosen_types(arguments)
    results = {}
    start = time.monotonic()
    for name, result in each(names, survey, arguments.workers, arguments.seconds):
        results[name] = _told(name, result)
        reason = next(iter(results[name]["reasons"]), "")[:110]
        print(
            f"{len(results):4}/{len(names)}  {name:<32} {results[name]['outcome']:<24} {reason}", flush=True
        )
    ordered = [results[name] for name in names]
    if arguments.json:
        arguments.json.write_text(json.dumps(ordered, indent=1))
    if arguments.docs:
        arguments.docs.write_text(document(ordered))
    counts = Counter(result["outcome"] for result in ordered)
    print(f"{time.monotonic() - start:.0f} s; " + ", ".join(f"{counts[x]} {x}" for x in v.ORDER if counts[x]))
    return int(any(result["outcome"] in v.FAILURES for result in ordered))


def _told(name, result):
    """The result of a type; of one whose process failed, what is known of that."""
    if "error" not in result:
        return result
    outcome = v.TIMEOUT if result["error"] == "time limit" else v.CRASH
    reason = f"{outcome}: in the survey: {result['error']}: {result['message']}"
    return {"type": name, "outcome": outcome, "reasons": [reason], "classes": []}


if __name__ == "__main__":
    sys.exit(main())
