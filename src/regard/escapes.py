"""Text that others wrote, made safe for a terminal: control characters are shown as escapes, not sent.

Class names, messages, file names, titles, tokens and names of models may hold escape sequences, which move
the cursor, change colours, set the clipboard or hide what is there. Every command prints such text through
`escape`.
"""

from __future__ import annotations

import json
import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line end
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # of no width, or bidi
    "\U000e0000-\U000e007f\ud800-\udfff]"  # tags, and lone surrogates, which no encoding has
)


def escape(text: str) -> str:
    r"""Return a text in which control, invisible and direction characters are written as JSON writes them.

    Tabs and line ends stay. JSON stays JSON, of the same value.

    >>> escape("\x1b[31mred\x07"), escape("a\u202eb\r\n")
    ('\\u001b[31mred\\u0007', 'a\\u202eb\\r\n')
    """
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)
