"""Builds the site as `python -m scripts.docs` does, but for what takes the longest in the pages it embeds.

One saved page, that with the model, stands for all, and what cache policies keep is not measured for it.
`make test` reads this site; `make test-all` and `make docs` build the whole one. The page of a picture that
it leaves out imports Transformers, and what it shows is tested with the model of `scripts.digits_vit`.

    python -m tests.quick_site FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from regard.show.data.contents import Contents
from scripts import docs


def main() -> None:
    write = docs.write_embedded_page

    def write_one(path: Path, *options: str) -> None:
        if options:
            write(path, *options)
            for other in (docs.EMBEDDED_PAGE, docs.PICTURE_PAGE):
                shutil.copyfile(path, path.parents[2] / other)

    docs.write_embedded_page = write_one
    docs.digits_vit.write_page = lambda path: None
    Contents.record_retention = lambda self: None  # type: ignore[method-assign]
    docs.build(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
