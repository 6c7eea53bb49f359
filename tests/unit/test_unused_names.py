"""A private function that nobody names is dead, or a hook whose base class no longer calls it."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("collectors", "reference_engine", "reports", "zprof")
#: Called by their names from elsewhere.
CALLED_BY = {
    "_should_skip_dynamo": "torch",
    "_render_traceback_": "IPython",
    "_repr_html_": "IPython",
    "_repr_svg_": "IPython",
    "_missing_": "enum",
    "_scroll_cursor_into_view": "textual",
    "_check_value": "argparse",
    "_print_message": "argparse",
}


def test_each_private_function_is_named_where_it_is_used() -> None:
    defined, named = Counter[str](), Counter[str]()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            text = path.read_text(encoding="utf-8")
            named.update(re.findall(r"\b_\w+", text))
            functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
            defined.update(node.name for node in functions if re.fullmatch(r"_[^_]\w*", node.name))
    assert len(defined) > 1000, "functions are found"
    unused = {name for name, count in defined.items() if named[name] == count}
    assert unused == set(CALLED_BY)
