"""Markdown as a forge shows it: its visible text, and whatever in it is more than text.

Read by markdown-it with GitHub's tables, its autolinks and HTML; what GitHub and GitLab read in the text
after that (mentions, references, emoji codes, formulas) is looked for here.
"""

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("gfm-like", {"html": True, "linkify": True, "typographer": False})
#: zprof's own HTML.
_OWN_HTML = re.compile(r"</?details>|<details><summary>[\w ,()]*</summary>")
_READ_LATER = re.compile(
    r"(?<![\w`])(?:[@#$&~!%]\w|[~%]\")|\[\w+:[^\]]+\]|://|www\.|:[\w+-]+:|\bGH-\d|\$\S[^$]*\$"
)
#: GitLab does what such a line says.
_QUICK_ACTION = re.compile(r"^/\w", re.MULTILINE)
_ACTIVE = frozenset({"link_open", "image", "em_open", "strong_open", "s_open", "hr", "blockquote_open"})


def tokens(document: str) -> Iterator[Token]:
    """All tokens, those within lines too."""
    for token in _PARSER.parse(document):
        yield token
        yield from token.children or ()


def visible(document: str) -> str:
    """What a reader sees: a line a block."""
    return "\n".join(
        "".join(child.content for child in token.children or ()) if token.type == "inline" else token.content
        for token in _PARSER.parse(document)
        if token.type in ("inline", "fence", "code_block")
    )


def is_active(document: str, *, own: frozenset[str] = frozenset()) -> list[str]:
    """What in it is markup, HTML, a link, a picture, or read by a forge; ``own``: what zprof writes."""
    found = []
    for token in tokens(document):
        if token.type in _ACTIVE - own or token.type == "code_block":
            found.append(f"{token.type} {token.content} {token.attrs}")
        if token.type in ("html_block", "html_inline"):
            found += [line for line in token.content.strip().split("\n") if not _OWN_HTML.fullmatch(line)]
        if token.type == "inline" and _QUICK_ACTION.search(token.content):
            found.append(f"quick action {token.content}")
        if token.type == "text" and _READ_LATER.search(token.content):
            found.append(f"text {token.content}")
    return found
