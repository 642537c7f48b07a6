"""One of several processes that run the code together: `python -m regard.checker.ranks.rank_worker REQUEST`.

It joins a gloo group through a file, runs the code on its part of each sequence, and writes one line of JSON
for each answer. `distributed` starts these processes and reads the files.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from regard.checker.errors import error_line
from regard.checker.ranks.distributed import adapt_for_ranks, question_of
from regard.checker.subject.locate import locate
from regard.checker.subject.subject import Subject
from regard.checker.worker import run_request
from regard.support.processes import is_lost_rank


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
            local = (
                question_of(subject, trial)
                .to(getattr(torch, request["dtype"]))
                .map_inputs(
                    # Gloo sends contiguous tensors only.
                    lambda x: x.chunk(world_size, -2)[rank].contiguous()
                )
            )
            with torch.no_grad():
                reply = subject.run(local)
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
