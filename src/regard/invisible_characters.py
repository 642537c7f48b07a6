"""Names of characters that nobody sees: of no width, of control, or turning the direction of a line.

The names are Unicode's own abbreviations. They are written in the place of the character, so that a reader
knows that there is one; figures and the page share them.
"""

from __future__ import annotations

from unicodedata import category

SIGNS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u2028": "↵", "\u2029": "↵"}
"""Signs for spaces and line ends, which stand in most texts."""
ABBREVIATIONS = {
    "\u00ad": "SHY",
    "\u034f": "CGJ",
    "\u061c": "ALM",
    "\u115f": "HCF",
    "\u1160": "HJF",
    "\u180e": "MVS",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2061": "FA",
    "\u2062": "IT",
    "\u2063": "IS",
    "\u2064": "IP",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\u3164": "HF",
    "\ufeff": "BOM",
    **{chr(0xFE00 + n): f"VS{n + 1}" for n in range(16)},
}
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))  # categories of what cannot be seen


def show_invisible(text: str) -> str:
    r"""Return a text in which everything that is invisible has a sign, a name or its number.

    >>> show_invisible(" sea\n"), show_invisible("a\u200db\x1b"), show_invisible("\ud83d")
    ('·sea↵', 'a⟨ZWJ⟩b␛', '⟨U+D83D⟩')
    """
    return "".join(_show_character(character) for character in text)


def _show_character(character: str) -> str:
    if character in SIGNS:
        return SIGNS[character]
    if character in ABBREVIATIONS:
        return f"⟨{ABBREVIATIONS[character]}⟩"
    if category(character) not in HIDDEN:
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + min(code, 0x21))  # Unicode's pictures of the control characters
    return f"⟨U+{code:04X}⟩"
