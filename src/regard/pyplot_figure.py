"""Figures that pyplot makes: with text in their files, and drawn once in a notebook.

This file knows Matplotlib; it does not know what is drawn.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from regard.extras import extra

TEXT_IN_FILES: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Matplotlib's settings that write text as text: embedded TrueType fonts in PDF, and <text> in SVG."""

LIVE_BACKENDS = ("ipympl", "widget", "nbagg", "webagg")  # without a window, and shown by pyplot all the same


def new_figure(what: str, size: tuple[float, float]) -> Any:
    """Return a new figure of pyplot's, (width, height) inches, whose files hold text as text.

    `what` names what needs Matplotlib, for the sentence that says how to install it.
    """
    with extra("app", what):
        import matplotlib.pyplot as plt
    return plt.figure(FigureClass=_figure_class(), figsize=size, layout="constrained")


def release(figure: Any) -> Any:
    """Take a finished figure out of pyplot's list, unless a window can show it, and return it.

    A notebook draws what a cell returns, and then every figure that is still in the list: it would appear
    twice. Without windows nothing else needs the list, and a loop of figures would fill the memory.
    """
    import matplotlib.pyplot as plt

    has_window = getattr(figure.canvas, "required_interactive_framework", None) is not None
    if not has_window and not any(name in plt.get_backend().lower() for name in LIVE_BACKENDS):
        plt.close(figure)
    return figure


@cache
def _figure_class() -> type[Any]:
    import matplotlib
    from matplotlib.figure import Figure

    class TextFigure(Figure):
        """A figure whose files hold text as text, whatever Matplotlib's settings are."""

        def savefig(self, fname: Any, **options: Any) -> None:
            with matplotlib.rc_context(TEXT_IN_FILES):
                super().savefig(fname, **options)

    return TextFigure
