"""Doing what a hint says, line by line, and judging again."""

import ast
import re
import textwrap

from tests.learn.in_process import judge_one

LINE = re.compile(r"(after )?line (\d+): (.+)$", re.DOTALL)
ROUNDS = 3  # a program with two mistakes needs two hints


def lines_to_write(hint):
    """What a hint says: each line's number, whether to write after it or in its place, and the code."""
    lines = []
    for part in re.split(r"; and (?=(?:after )?line \d+: )", hint):
        found = LINE.search(part)
        try:
            ast.parse(found[3] if found else "")
        except SyntaxError:  # "line 3: `weights` is (2, 5) and should be (2, 2)"
            continue
        lines += [(int(found[2]), bool(found[1]), found[3])] if found else []
    return lines


def follow(program, number, after, code):
    """Do what a hint says: write its code in the place of a line, or after it."""
    statements = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.stmt)]
    statement = next(node for node in statements if node.lineno == number)
    lines = program.splitlines()
    end = statement.end_lineno or number
    lines[end if after else number - 1 : end] = [textwrap.indent(code, " " * statement.col_offset)]
    return "\n".join(lines) + "\n"


def check_that_hints_lead_to_the_solution(lesson, task, program, said="", hinted=None, right=None):
    """Follow the hints of a program: never to a new error, never to the same verdict, and out in the end.

    A hint that names no line has to hold what is `hinted`, to write in the place of a mistake. A form that
    the lesson does not take even without a mistake leads to what is said about it then: `right`.
    """
    outcome = judge_one(lesson, task, program)
    assert outcome.status == "wrong", outcome
    assert said in f"{outcome.mistake} {outcome.message} {outcome.hint}", outcome
    for _ in range(ROUNDS):
        lines = lines_to_write(outcome.hint)
        if hinted:
            assert hinted[1] in outcome.hint, outcome
            program = program.replace(*hinted)
        elif lines:
            for line in sorted(lines, reverse=True):  # from the end, so that no other line moves
                program = follow(program, *line)
        else:
            assert said, outcome
            assert outcome.hint, outcome
            return
        followed = judge_one(lesson, task, program)
        if followed.status == "done" or (right and followed.message == right.message):
            return
        assert "Error" not in followed.message, (outcome.hint, followed)
        # Keys and values may be wrong in one way: then the same is said twice, of another line each time.
        assert followed != outcome
        outcome = followed
    raise AssertionError(f"{ROUNDS} hints did not lead to a right program: {outcome}")
