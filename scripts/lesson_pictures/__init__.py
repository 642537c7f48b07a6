"""The pictures of the lessons: a module for each, named by the lesson's noun.

Its `draw()` returns a figure, `picture.svg`, or several by their names. A figure is a panel as wide as a
phone (`shapes.PANEL`), so that its letters are legible there; panels that stand beside each other on a wide
screen are several images in one paragraph of the lesson, which a narrow screen stacks.

`python -m scripts.lesson_pictures` writes all of them, `python -m scripts.lesson_pictures mask` one.
"""
