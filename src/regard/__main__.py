"""`regard`, and `python -m regard`: the command, or how to install what it needs."""

from __future__ import annotations

import sys

from regard.extras import MissingExtraError, extra


def main() -> None:
    """Run the command."""
    try:
        with extra("app", "the command `regard`"):
            from regard import cli
    except MissingExtraError as error:
        sys.exit(f"regard: {error}")
    cli.main()


if __name__ == "__main__":
    main()
