"""Each table has one title and one maker, and each word over a column one meaning, in all outputs."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("reports", "zprof/tui", "zprof/notebook")
COLUMNS = ("Column", "name_field", "metric_field", "make_text_column")


def is_table(name: str) -> bool:
    return name == "Table" or name.endswith("_table")


def calls(wanted: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, ast.expr], str]]:
    """First argument or title, keywords and place of each call of these functions."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and wanted(node.func.id):
                keywords = {each.arg: each.value for each in node.keywords if each.arg}
                title = keywords.get("title") or (node.args[0] if node.args else None)
                if isinstance(title, ast.Constant) and title.value:
                    yield title.value, keywords, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_table_is_made_in_two_places() -> None:
    places = defaultdict(list)
    for title, _, place in calls(is_table):
        places[title.casefold()].append(place)
    assert len(places) > 20, "titles are found"
    assert not {title: found for title, found in places.items() if len(found) > 1}


def test_no_word_over_a_column_has_two_meanings() -> None:
    helps: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for word, keywords, place in calls(COLUMNS.__contains__):
        if "help" in keywords:
            helps[word][ast.unparse(keywords["help"])].append(place)
    assert len(helps) > 40, "words are found"
    assert not {word: dict(found) for word, found in helps.items() if len(found) > 1}
