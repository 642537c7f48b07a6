"""The pictures of the lessons: a module for each, named by the lesson's noun, with `draw() -> Figure`.

`python -m scripts.lesson_pictures` writes all of them, `python -m scripts.lesson_pictures mask` one.
"""
