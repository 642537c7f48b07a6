"""Builds the site as `python -m scripts.docs` does, but for what takes the longest.

One saved page, that with the model, stands for all that are embedded, and what cache policies keep is not
measured for it. The pages of most mistakes have only their headings, and those of a folder share one tree of
navigation. `make test` reads this site; `make test-all` and `make docs` build the whole one. The page of a
picture that it leaves out imports Transformers; what it shows is tested with the model of
`scripts.digits_vit`.

    python -m tests.quick_site FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from regard.show.data.contents import Contents
from scripts import docs, pitfalls
from tests.sampling import choose_share, share

sys.path.insert(0, str(docs.ROOT / "docs" / "_sphinx"))  # as Sphinx's configuration does

import shared_navigation

choose_share()
WHOLE = {pitfalls.PROPERTIES, *share(sorted(pitfalls.MISTAKES.glob("*.toml")), 6)}


def main() -> None:
    write, generate = docs.write_embedded_page, pitfalls.generated_page

    def write_one(path: Path, *options: str) -> None:
        if options:
            write(path, *options)
            for other in (docs.EMBEDDED_PAGE, docs.PICTURE_PAGE):
                shutil.copyfile(path, path.parents[2] / other)

    def generate_headings(path: Path) -> str:
        text = generate(path)
        if path in WHOLE:
            return text
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        return "\n\n".join(re.findall(r"^#.*", prose, flags=re.MULTILINE)) + "\n"

    docs.write_embedded_page = write_one
    docs.digits_vit.write_page = lambda path: None
    pitfalls.generated_page = generate_headings
    shared_navigation.is_shared = lambda app, page: True
    Contents.record_retention = lambda self: None  # type: ignore[method-assign]
    docs.build(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
