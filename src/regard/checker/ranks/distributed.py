"""Attention on several processes of this machine: ring attention, Ulysses, and other sequence parallelism.

Every rank gets its part of the sequence in contiguous order: rank r of n has tokens r·T/n to (r+1)·T/n − 1.
The parts of the output are put together and compared with the attention of the whole. The processes are
started afresh (never forked) with `python -m regard.checker.ranks.distributed REQUEST`, join a gloo group
through a file, write one line of JSON for each answer, and end with the process that started them.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from regard.checker.catalogue import get_mistake
from regard.checker.diagnose import diagnose
from regard.checker.errors import CheckError, error_line
from regard.checker.interpretation.cases import Cases, declared_causality
from regard.checker.interpretation.understand import Understanding
from regard.checker.oracle.oracle import TOLERANCE, Intent, Observation, relative_difference
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.probes.numbers import judge_lse
from regard.checker.probes.output import wrong_answers
from regard.checker.probes.wrong_output import describe_failure
from regard.checker.ranks.ring import predict_mistakes, predict_orders
from regard.checker.reference import prepare_reference
from regard.checker.sandbox import TIMEOUT, WorkerResult, run, run_request
from regard.checker.session import CheckSession, Reference
from regard.checker.shared_weights import WeightMatch
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt
from regard.checker.subject.locate import locate
from regard.checker.subject.subject import Reply, Subject
from regard.support.processes import is_lost_rank

WAITING = 20.0  # seconds that a rank waits for another
_MOST = 16  # processes


def check_on_processes(
    thing: Any,
    processes: int,
    init: dict[str, Any],
    options: dict[str, Any],
    reference: Any = None,
) -> CheckSession:
    """Run a function on several processes and compare it with attention of the whole sequence.

    Arguments:
        thing: a function of this rank's `(q, k, v)`, of shape (B, H, T/n, D) or (B, T/n, H, D), that other
            processes can import. A parameter called `group` (or `rank`, `world_size`) gets these.
        processes: how many, at least 2.
        init: further arguments of the function.
        options: those of `check`.
        reference: the caller's own version for the whole sequence, to compare with instead.

    Returns the session with the findings; raises `CheckError` if a process fails or waits in vain.
    """
    if not isinstance(processes, int) or not 2 <= processes <= _MOST:
        raise CheckError(f"processes: expected a number from 2 to {_MOST}, got {processes!r}")
    if "REGARD_RANK" in os.environ:
        raise CheckError(
            'put check(…, processes=…) under if __name__ == "__main__":, since every rank imports it'
        )
    spec = importable_name(thing, processes)
    subject = adapt_for_ranks(thing, init, processes)
    trials = make_trials(subject, processes, options)
    whole = None if reference is None else reference_of_whole(reference, subject, init, options)
    answers = run_ranks([spec], processes, init, trials)[spec]
    if isinstance(answers, str):
        raise CheckError(f"{subject.name} could not be run on {processes} processes: {answers}")
    return judge(subject, processes, trials, answers, options, whole)


def reference_of_whole(
    reference: Any, subject: Subject, init: dict[str, Any], options: dict[str, Any]
) -> Reference:
    """Return the caller's reference, which is asked about the whole sequence."""
    theirs = adapt(reference, init)
    if "causal" in subject.arguments and "causal" not in theirs.arguments and options.get("causal") is None:
        raise CheckError(
            f"your reference {theirs.name} has no causal argument: say causal=True or causal=False"
        )
    session = prepare_reference(theirs, subject, {}, options)
    return Reference(session, WeightMatch([], certain=True), torch.float64)


def adapt_for_ranks(thing: Any, init: dict[str, Any], world_size: int) -> Subject:
    """Return a subject whose arguments for the group and the rank hold their meaning as a placeholder."""
    meanings = vocabulary.meanings("ranks")
    target = getattr(thing, "forward", thing)
    own = {n: meanings[n] for n in inspect.signature(target).parameters if n in meanings and n not in init}
    if isinstance(thing, type):
        raise CheckError(
            f"{thing.__name__} is a class; on several processes, expected a function of (q, k, v)"
        )
    values = {name: world_size if meaning == "world_size" else meaning for name, meaning in own.items()}
    subject = adapt(thing, init | values)
    if subject.inputs != "qkv" or subject.layout != "BHTD":
        raise CheckError(
            f"{subject.name} takes {', '.join(subject.positional)}; on several processes, expected a "
            "function of (q, k, v), each the part of this rank"
        )
    return subject


def importable_name(thing: Any, processes: int) -> str:
    """Return `file.py:name` or `package.module:name`, by which other processes can import a function."""
    # A functools.partial and other objects that can be called have no __qualname__.
    name, module = getattr(thing, "__qualname__", "<"), sys.modules.get(getattr(thing, "__module__", ""))
    # `<lambda>` and `f.<locals>.g` cannot be looked up in a module.
    if module is None or "<" in name or not hasattr(module, name.partition(".")[0]):
        shown = "the function" if "<" in name.rpartition(".")[2] else name.rpartition(".")[2]
        raise CheckError(
            f"{shown} cannot be imported by other processes: define it at the top level of a file, or use "
            f"the command, regard check file.py:name --processes {processes}"
        )
    package = module.__name__.partition(".")[0]
    # Not importlib.util.find_spec, which answers from sys.modules: other processes have another one.
    found = package != "__main__" and PathFinder.find_spec(package) is not None
    file = getattr(module, "__file__", None)
    if not found and file is None:
        raise CheckError(
            f"{name} is defined in no file, so that other processes cannot import it: save it in one"
        )
    return f"{module.__name__}:{name}" if found else f"{Path(str(file)).resolve()}:{name}"


def make_trials(subject: Subject, processes: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sizes and flags to try: H and T are multiples of n, T/n is even and not H."""
    n, even = processes, processes + 2 - processes % 2
    sizes: list[dict[str, Any]] = [
        {"B": 2, "H": 2 * n, "T": (2 * n + 2) * n, "D": 10, "seed": 0},
        {"B": 1, "H": n, "T": even * n, "D": 6, "seed": 3},
    ]
    flags: list[bool | None] = [None]
    if "causal" in subject.arguments:
        flags = [False, True] if options.get("causal") is None else [bool(options["causal"])]
    return [{"sizes": size, "flag": flag} for flag in flags for size in sizes]


Answers = dict[str, dict[int, list[Answer]]]
"""The answers of all ranks by layout and trial."""


def run_ranks(
    specs: list[str], processes: int, init: dict[str, Any], trials: list[dict[str, Any]]
) -> dict[str, Answers | str]:
    """Run functions on several processes, in float64 or else in float32.

    Returns for each of `specs`, names that other processes can import, the answers in the layouts in which it
    ran, or the reason why it did not.
    """
    lines = _start_ranks(specs, processes, init, trials, "float64")
    results = {spec: _collect(lines, spec, len(trials)) for spec in specs}
    refusing = [spec for spec, result in results.items() if isinstance(result, str) and "dtype" in result]
    if refusing:
        lines = _start_ranks(refusing, processes, init, trials, "float32")
        results |= {spec: _collect(lines, spec, len(trials)) for spec in refusing}
    return results


def _start_ranks(
    specs: list[str], processes: int, init: dict[str, Any], trials: list[dict[str, Any]], dtype: str
) -> list[WorkerResult]:
    """Start one process for each rank and return what each wrote. None of them is left running."""
    request = {
        "spec": ", ".join(specs),
        "specs": specs,
        "init": init,
        "trials": trials,
        "dtype": dtype,
        "layouts": ["BHTD", "BTHD"],
        "waiting": WAITING,
        # An entry may be relative, and "" means the current folder, which -P leaves out.
        "path": [os.path.abspath(entry) for entry in sys.path],
    }
    return run("regard.checker.ranks.distributed", request, ranks=processes)


def _collect(ranks: list[WorkerResult], spec: str, count: int) -> Answers | str:
    """Return the answers of the layouts in which every rank answered, or the reason why there are none."""
    answers: Answers = {}
    for line in (line for rank in ranks for line in rank.lines if line.get("spec") == spec):
        if "output" not in line:
            continue
        lse = None if line["lse"] is None else torch.tensor(line["lse"], dtype=torch.float64)
        answer = Answer(torch.tensor(line["output"], dtype=torch.float64), None, lse)
        answers.setdefault(line["layout"], {}).setdefault(line["trial"], []).append(answer)
    complete = {
        layout: trials
        for layout, trials in answers.items()
        if len(trials) == count and all(len(parts) == len(ranks) for parts in trials.values())
    }
    return complete or _explain_failure(ranks, spec)


def _explain_failure(ranks: list[WorkerResult], spec: str) -> str:
    """Return the error that came first: others follow when a rank waits for one that failed."""
    errors = [
        f"rank {rank} raised {line['failure']}"
        for rank, worker in enumerate(ranks)
        for line in worker.lines
        if line.get("spec") == spec and "failure" in line
    ]
    own = [error for error in errors if not is_lost_rank(error)]
    if own:
        return own[0]
    missing = [rank for rank, worker in enumerate(ranks) if not worker.has_finished]
    ends = [f"rank {rank} {ranks[rank].end}" for rank in missing if ranks[rank].end]
    if ends:
        return ends[0]
    if missing and len(missing) < len(ranks):
        return f"rank {missing[0]} hangs without an answer"
    waits = f"the ranks wait for each other ({WAITING:g} s): is all that is sent received, in the same order?"
    return waits if errors else f"it did not finish within {TIMEOUT:g} s"


def _join(parts: list[Answer]) -> Answer:
    """Put the answers of the ranks together along the tokens."""
    lse = [part.lse for part in parts if part.lse is not None]
    whole = torch.cat(lse, -1) if len(lse) == len(parts) else None
    return Answer(torch.cat([part.output for part in parts], -2), None, whole)


def judge(
    subject: Subject,
    processes: int,
    trials: list[dict[str, Any]],
    answers: Answers,
    options: dict[str, Any],
    reference: Reference | None = None,
) -> CheckSession:
    """Compare the answers with those of the whole, in a layout in which they are right or a mistake fits."""
    causal = options.get("causal")
    declared = causal if causal is not None else declared_causality(subject)
    choices = [False, True] if declared is None and "causal" not in subject.arguments else [bool(declared)]
    sessions = []
    for layout, by_trial in answers.items():
        candidate = subject.replaced(layout=layout)
        observations = [
            Observation(question_of(candidate, trial), _join(by_trial[index]))
            for index, trial in enumerate(trials)
        ]
        intents = [Intent(Wiring(scale=options.get("scale")), choice) for choice in choices]
        intents.sort(key=lambda intent: max(intent.error(o.question, o.answer) for o in observations))
        first = Reply(observations[0].answer)
        shapes = {"BHTD": "(B, H, T/n, D)", "BTHD": "(B, T/n, H, D)"}[layout]
        order = f"on {processes} processes, each with consecutive tokens, {shapes}"
        understanding = Understanding(
            candidate, candidate, Cases(candidate), intents, None, torch.float64, first, [order], declared
        )
        session = CheckSession(understanding, options, reference=reference)
        _compare(session, observations, processes)
        sessions.append((session, observations))
        if understanding.right_intent is not None:
            return session
    for session, observations in sessions if reference is None else []:
        if not any(s.undecided or s.diagnoses for s, _ in sessions):
            for match in diagnose(observations, session.understanding.intents)[:1]:
                session.add_match(match, max(map(session.error, observations)) / TOLERANCE)
    return next((s for s, _ in sessions if s.undecided or s.diagnoses), sessions[0][0])


def question_of(subject: Subject, trial: dict[str, Any]) -> Question:
    """Return the question of a trial, on the whole sequence."""
    name = "causal" if trial["flag"] else "output"
    return replace(Cases(subject).plain(name, **trial["sizes"]), flag=trial["flag"])


def _right_answer(session: CheckSession, question: Question) -> Answer:
    answer = session.presumed_oracle.answer(question)
    if answer is None:
        raise CheckError(f"your reference could not be run on {question.shapes()}")
    return answer


def _compare(session: CheckSession, observations: list[Observation], processes: int) -> None:
    """Record whether the output is right, and which mistake fits if it is not."""
    expected = [_right_answer(session, observation.question) for observation in observations]
    wrong, own = wrong_answers(session, observations), session.reference is None
    # Code that is right for tokens in another order than the consecutive one.
    for order, error in _matching(session, observations, predict_orders, processes) if wrong and own else ():
        if error < TOLERANCE:
            session.undecided = (
                f"it equals causal attention of tokens in {order} order, and the checker gives each rank "
                "consecutive tokens: check a function that reorders them before and after"
            )
            return
    session.add_results(observations, wrong)
    last = observations[-1].answer
    if not wrong:
        session.understanding.right_intent = session.understanding.intents[0]
        if last.lse is not None and expected[-1].lse is not None:
            judge_lse(session, last.lse, expected[-1].lse)
    else:
        for name, error in _matching(session, observations, predict_mistakes, processes) if own else ():
            if error < TOLERANCE and not session.diagnoses:
                evidence = f"On {processes} processes your output equals attention {get_mistake(name).what}"
                session.add_diagnosis(name, f"{evidence}, to {max(error, 1e-16):.0e}.", error)
        failing = [i for i, o in enumerate(observations) if not session.error(o) < TOLERANCE]
        smallest = min(failing, key=lambda i: observations[i].question.q.numel())
        asked = observations[smallest]
        difference = describe_failure(asked.question, asked.answer.output, expected[smallest].output)
        session.example = f"The smallest failing case:\n{difference}"
    session.add_skip("gradients and precision", "on several processes only the outputs are compared")


def _matching(
    session: CheckSession, observations: list[Observation], predict: Any, processes: int
) -> Iterator[tuple[str, float]]:
    """Yield every prediction by name, with its largest error over all observations."""
    for intent in session.understanding.intents:
        asked = [intent.apply(observation.question) for observation in observations]
        predicted = [predict(question, processes, intent.wiring.scale) for question in asked]
        for forms in zip(*predicted, strict=True):
            answers = zip(observations, forms, strict=True)
            errors = [relative_difference(o.answer.output, output) for o, (_, output) in answers]
            yield forms[0][0], max(errors)


def run_trials(request: dict[str, Any], write_line: Callable[..., None]) -> None:
    """Answer every trial of the request, in every layout."""
    torch.set_num_threads(1)
    for index, spec in enumerate(request["specs"]):
        try:
            subject = adapt_for_ranks(locate(spec), request["init"], request["ranks"])
            for layout in request["layouts"]:
                store = f"{request['store']}-{index}-{layout}"
                if not _answer(
                    subject.replaced(layout=layout), request, store, partial(write_line, spec=spec)
                ):
                    break
        # An exit() in the author's file must not end this rank without a line that says so.
        except BaseException as error:
            write_line(spec=spec, failure=error_line(error))


def _answer(subject: Subject, request: dict[str, Any], store: str, write_line: Callable[..., None]) -> bool:
    """Answer the trials in one layout, in a process group of its own; False if another rank did not come."""
    rank, world_size = request["rank"], request["ranks"]
    distributed.init_process_group(
        "gloo",
        # A file needs no port, which another process may take.
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=request["waiting"]),
    )
    try:
        places: dict[str, Any] = {"group": distributed.group.WORLD, "rank": rank}
        extra = {name: places.get(str(value), value) for name, value in subject.extra.items()}
        subject = subject.replaced(extra=extra)
        for index, trial in enumerate(request["trials"]):
            whole = question_of(subject, trial).to(getattr(torch, request["dtype"]))
            with torch.no_grad():
                # Gloo sends contiguous tensors only.
                reply = subject.run(whole.map_inputs(lambda x: x.chunk(world_size, -2)[rank].contiguous()))
            if reply.answer is None:
                write_line(layout=subject.layout, failure=reply.error_line)
                return not is_lost_rank(reply.error_line)
            lse = reply.answer.lse
            write_line(
                layout=subject.layout,
                trial=index,
                output=reply.answer.output.double().tolist(),
                lse=None if lse is None else lse.double().tolist(),
            )
        distributed.barrier()  # a rank that has finished must not close the connections of the others
    finally:
        distributed.destroy_process_group()
    return True


if __name__ == "__main__":
    run_request(run_trials)
