"""The words of zprof's own texts, read from its source: what a text about a run may be made of.

A sentence of a finding or a gap is built from texts that stand in the source and from what was found in a
file: a kernel's name, a path, a reason that a library gave.  What does not stand in the source is not ours
to give away.  Docstrings are not printed and do not count; nor do pieces of words around a placeholder.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
#: Where the texts of reports and manifests are written.
_FOLDERS = ("analysis", "collectors", "integrations", "model", "rules", "run")
_EDGES = re.compile(r"^[(\[{\"'<«]+|[)\]}\"'>»,;:.!?…]+$")
#: Shorter ones are words only where they stand in a sentence: others are keys, patterns and formats.
_LEAST_LETTERS = 4
_ARTICLE = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWords:
    """``lines``: whole lines of texts with nothing filled in; ``words``: without the marks around them.

    ``fields``: names of what values have.
    """

    lines: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()


def own_words() -> OwnWords:
    """All of them.  A file that cannot be read has none: then more is hidden, not less."""
    lines: set[str] = set()
    words: set[str] = set()
    fields: set[str] = set()
    for tree in filter(None, map(_parsed, _sources())):
        for text, is_whole in _texts(tree):
            if is_whole:
                lines |= {line for line in text.splitlines() if " " in line.strip()}
            words |= _words(text, in_sentence=not is_whole or " " in text.strip())
        fields |= _fields(tree)
        words |= _members(tree)
    return OwnWords(lines=frozenset(lines), words=frozenset(words), fields=frozenset(fields))


def bare(chunk: str) -> str:
    """A word without brackets, quotes and full stops around it."""
    return _EDGES.sub("", chunk)


def _sources() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from sorted((_PACKAGE / folder).resolve().rglob("*.py"))


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _fields(tree: ast.Module) -> set[str]:
    """What classes declare."""
    parts = [part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body]
    declared = [part.target for part in parts if isinstance(part, ast.AnnAssign)]
    return {target.id for target in declared if isinstance(target, ast.Name)}


def _members(tree: ast.Module) -> set[str]:
    """Values of closed sets, however short."""
    parts = [part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body]
    values = [part.value for part in parts if isinstance(part, ast.Assign)]
    return {
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def _texts(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each text of a file, and whether nothing is filled in."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.JoinedStr):
            yield _with_gaps(node.values), False
            waiting += [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, True
        waiting += ast.iter_child_nodes(node)


def _with_gaps(parts: Sequence[ast.expr]) -> str:
    """What stands between the placeholders; a word that one touches is no word."""
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts)
    return " ".join(chunk for chunk in text.split() if "\0" not in chunk)


def _words(text: str, *, in_sentence: bool) -> set[str]:
    chunks = {bare(chunk) for chunk in text.split()}
    least = 2 if in_sentence else _LEAST_LETTERS
    return {chunk for chunk in chunks if len(chunk) >= least or chunk == _ARTICLE}
