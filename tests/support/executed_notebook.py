"""Run the code of a notebook or of a page of docs as a notebook would, without jupyter."""

import ast
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

Cell = dict[str, Any]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: What IPython asks a value for, beside its text.
_FACES = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}


def blocks_of(page: str) -> list[str]:
    """The Python blocks of a Markdown page."""
    return _BLOCK.findall(page)


def executed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their output, run one after the other in one namespace."""
    names: dict[str, Any] = {}
    count = 0
    done = []
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            outputs = list(_outputs("".join(cell["source"]), names, count))
            cell = cell | {"execution_count": count, "outputs": outputs}
        done.append(cell)
    return done


def run_code(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line if that is an expression, else None."""
    *body, last = ast.parse(source).body
    is_value = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if is_value else [*body, last], []), "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if is_value else None


def _outputs(source: str, names: dict[str, Any], count: int) -> Iterator[Mapping[str, Any]]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        value = run_code(source, names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        for kind, face in _FACES.items():
            if hasattr(value, face):
                data[kind] = _lines(getattr(value, face)())
        data = {kind: data[kind] for kind in sorted(data)}
        yield {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
