"""Writes the tables of CLIP's tokeniser, which crates/data/src/tokenise embeds: OpenCLIP's merges, the names of HTML's
characters, and ftfy's patterns and encodings of mojibake. Needs open_clip_torch, ftfy and zstandard.

    python bench/clip_text_data.py crates/data/src/tokenise
"""

import gzip
import html
import html.entities
import pathlib
import re
import subprocess
import sys

import open_clip.tokenizer
from ftfy import badness, chardata

try:
    from re import _constants as constants, _parser as parser
except ImportError:
    import sre_constants as constants, sre_parse as parser

WORD, SPACE = r"\p{L}\p{N}_", r"\s\x{1c}-\x{1f}"


def char(code):
    return f"\\x{{{code:x}}}"


def members(items):
    """The inside of a character class, written with code points alone."""
    text = ""
    for kind, value in items:
        if kind is constants.LITERAL:
            text += char(value)
        elif kind is constants.RANGE:
            text += f"{char(value[0])}-{char(value[1])}"
        elif kind is constants.CATEGORY:
            text += {constants.CATEGORY_WORD: WORD, constants.CATEGORY_SPACE: SPACE}[value]
        elif kind is constants.NEGATE:
            text += "^"
        else:
            raise ValueError(kind)
    return text


def pattern(tree):
    """A parsed pattern in the syntax of Rust's regular expressions."""
    text = ""
    for kind, value in tree:
        if kind is constants.LITERAL:
            text += char(value)
        elif kind is constants.NOT_LITERAL:
            text += f"[^{char(value)}]"
        elif kind is constants.ANY:
            text += "."
        elif kind is constants.IN:
            text += f"[{members(value)}]"
        elif kind is constants.BRANCH:
            text += "(?:" + "|".join(pattern(branch) for branch in value[1]) + ")"
        elif kind is constants.MAX_REPEAT:
            low, high, inner = value
            high = "" if high is constants.MAXREPEAT else high
            text += f"(?:{pattern(inner)}){{{low},{high}}}"
        elif kind is constants.SUBPATTERN:
            text += f"(?:{pattern(value[3])})"
        elif kind is constants.ASSERT_NOT and value[0] < 0:
            text += f"(?<!{pattern(value[1])})"
        elif kind is constants.AT and value is constants.AT_BEGINNING:
            text += "^"
        else:
            raise ValueError((kind, value))
    return text


def compressed(path, text):
    subprocess.run(["zstd", "-q", "-f", "--ultra", "-22", "-o", path], input=text.encode(), check=True)
    print(f"{path}: {path.stat().st_size} bytes of {len(text.encode())}")


folder = pathlib.Path(sys.argv[1])
merges = gzip.open(open_clip.tokenizer.default_bpe()).read().decode().split("\n")[1 : 49152 - 256 - 2 + 1]
compressed(folder / "merges.txt.zst", "\n".join(merges))

names = [f"{name}\t{text}" for name, text in sorted(html.entities.html5.items())]
extra = [f"{name}\t{text}" for name, text in sorted(chardata.HTML_ENTITIES.items()) if name[1:] not in html.entities.html5]
compressed(folder / "entities.txt.zst", "\n".join(names + extra))

lines = [pattern(parser.parse(regex.pattern, regex.flags)) for regex in (badness.BADNESS_RE, chardata.UTF8_DETECTOR_RE)]
for encoding in chardata.CHARMAP_ENCODINGS:
    high = bytes(range(0x80, 0x100)).decode(encoding)
    lines.append(f"{encoding} " + " ".join(f"{ord(c):x}" for c in high))
compressed(folder / "mojibake.txt.zst", "\n".join(lines))
