"""The text of a PDF file that the page wrote, read back with no more than the format's own rules."""

from __future__ import annotations

import re
import zlib

STREAM = re.compile(rb"(\d+) 0 obj\n<< (.*?) /Length (\d+) >>\nstream\n", re.DOTALL)
SHOWN = re.compile(rb"/(\w+) [\d.]+ Tf <([0-9a-f]+)> Tj")


def streams(pdf: bytes) -> list[tuple[bytes, bytes]]:
    """The dictionary and the contents of every stream."""
    return [
        (found[2], zlib.decompress(pdf[found.end() : found.end() + int(found[3])]))
        for found in STREAM.finditer(pdf)
    ]


def written_text(pdf: bytes) -> str:
    """What the page's first content stream writes in Latin letters, in the order of drawing."""
    assert pdf.startswith(b"%PDF-1.5")
    assert pdf.rstrip().endswith(b"%%EOF")
    place = int(pdf.rsplit(b"startxref", 1)[1].split()[0])
    assert pdf[place : place + 4] == b"xref"  # readers find the objects from there
    content = streams(pdf)[0][1]
    shown = [bytes.fromhex(digits.decode()) for _, digits in SHOWN.findall(content)]
    return "\n".join(text.decode("cp1252", "replace") for text in shown)
