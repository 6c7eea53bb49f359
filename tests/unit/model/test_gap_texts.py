"""Each gap of the code has a text, each text is used, and a stranger's name is never a template."""

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import zprof
from zprof.model.gap_texts import fill_text, make_gap, read_all_texts
from zprof.model.gap_texts.untested import UNTESTED_TEXTS

_PACKAGE = Path(zprof.__file__).resolve().parent
_SOURCES = [
    path for folder in (_PACKAGE, (_PACKAGE / "collectors").resolve()) for path in folder.rglob("*.py")
]


def _walk_sources() -> Iterator[ast.AST]:
    for path in _SOURCES:
        if path.parent.name != "gap_texts":
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_every_text_is_used_and_gets_its_values() -> None:
    texts = {key: "".join(text[1:]) for key, text in read_all_texts().items()}
    texts |= {key: "".join(text) for key, text in UNTESTED_TEXTS.items()}
    unused, wrong = set(texts), []
    for node in _walk_sources():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            unused -= {node.value, f"{node.value}_at_line"}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in ("make_gap", "make_untested") or not isinstance(node.args[0], ast.Constant):
            continue
        key, given = str(node.args[0].value), {keyword.arg for keyword in node.keywords}
        fields = {field for _, field, _, _ in Formatter().parse(texts.get(key, "{missing}")) if field}
        if None not in given and not fields <= given | {"rank", "step", "detail", "causes"}:
            wrong.append(key)
    assert not unused
    assert not wrong


def test_braces_of_a_value_stay() -> None:
    name = "{rank} {0.__class__} {{x}} %s"
    gap = make_gap("baseline_gap", rank=3, what=name, reason=name, remedy=name)
    assert (gap.what, gap.reason, gap.remedy) == (f"baseline: {name}", name, name)


def test_numbers_and_lists_are_written_as_a_reader_expects() -> None:
    template = "{n} {n:plural step}: {ranks:list2}; {both:and}; {size:bytes}"
    values = {"ranks": [3, 1, 2], "both": ["a", "b"], "size": 3 << 20}
    assert fill_text(template, {"n": 1, **values}) == "1 step: 3, 1 …; a and b; 3.0 MiB"
    assert fill_text("{n} {n:plural step}, {ranks:list}", {"n": 2, **values}) == "2 steps, 3, 1, 2"
