"""Each gap of the code has a text, each text is used, and a stranger's name is never a template."""

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import zprof
from zprof.model.gap_texts import GAP_TEXTS, make_gap

_PACKAGE = Path(zprof.__file__).resolve().parent
_SOURCES = [
    path for folder in (_PACKAGE, (_PACKAGE / "collectors").resolve()) for path in folder.rglob("*.py")
]


def _walk_sources() -> Iterator[ast.AST]:
    for path in _SOURCES:
        if not path.name.endswith("gap_texts.py"):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_every_text_is_used_and_every_gap_passes_the_values_of_its_text() -> None:
    unused, wrong = set(GAP_TEXTS), []
    for node in _walk_sources():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            unused.discard(node.value)
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "make_gap"
        ):
            continue
        key, given = node.args[0], {keyword.arg for keyword in node.keywords}
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            continue
        text = "".join(GAP_TEXTS[key.value][1:]) if key.value in GAP_TEXTS else "{is missing}"
        fields = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
        if not fields <= given | {"rank", "step", "detail", "causes"} and None not in given:
            wrong.append(key.value)
    assert not unused
    assert not wrong


def test_braces_of_a_value_stay() -> None:
    name = "{rank} {0.__class__} {{x}} %s"
    gap = make_gap("baseline_gap", rank=3, what=name, reason=name, remedy=name)
    assert (gap.what, gap.reason, gap.remedy) == (f"baseline: {name}", name, name)
