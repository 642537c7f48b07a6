"""`regard`, and `python -m regard`: the command, or how to install what it needs."""

from __future__ import annotations

import signal
import sys

from regard.support.imports import MissingExtraError, extra


def main() -> None:
    """Run the command. Ctrl-C ends it, also if a shell has started it in the background, ignoring SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback, while there is nothing to undo
    try:
        with extra("app", "the command `regard`"):
            from regard import cli
    except MissingExtraError as error:
        sys.exit(f"regard: {error}")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
