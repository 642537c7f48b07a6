"""A course on attention: lessons that are read, written as code and judged, and mistakes to hunt.

`regard learn` is its command. The lessons know attention through the checker and the stages; they know
nothing of how either works.
"""

from regard.learn.course import LESSONS
from regard.learn.judgement import judge_in_process
from regard.learn.lesson import Lesson, Outcome
from regard.learn.notebook import make_notebook

__all__ = ["LESSONS", "Lesson", "Outcome", "judge_in_process", "make_notebook"]
