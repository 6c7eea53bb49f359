"""Find possible mutations of a module: its comparisons and the numbers of its constants.

A comparison is flipped to its boundary neighbour (``<`` to ``<=``) and to its negation (``<`` to ``>=``).
The number of a module constant is scaled by 1.25 and by 0.8; an integer below 100 is changed by one in each
direction (0 only upwards).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FLIPS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_OPERATOR = re.compile(rb"<=|>=|==|!=|<|>|\bnot\s+in\b|\bin\b")
#: Integers from here on are amounts (bytes, nanoseconds), which are scaled.
_AMOUNT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the bytes from ``begin`` to ``end`` of the file become ``text``.

    ``lines``: code that reads one of them can see the change; empty if any code may.
    """

    path: str
    line: int
    kind: str
    change: str
    begin: int
    end: int
    text: str
    lines: tuple[int, ...]

    @property
    def key(self) -> str:
        """Identifies the mutant independent of its position in the file."""
        return f"{self.path}: {self.change}"

    def applied(self, source: bytes) -> bytes:
        """Return the source with the mutation."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def find_constants(tree: ast.Module) -> list[str]:
    """Return the names that a module assigns at top level."""
    return [name for statement in tree.body for name in _assigned(statement)]


def find_mutants(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file, in order of position."""
    module = _Module(path, source)
    return sorted([*module.comparisons(), *module.constants()], key=lambda mutant: mutant.begin)


class _Module:
    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._tree = ast.parse(source)
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts

    def comparisons(self) -> Iterator[Mutant]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
                for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                    yield from self._flipped(node, left, operator, right)

    def _flipped(
        self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr
    ) -> Iterator[Mutant]:
        begin, end = self._end(left), self._begin(right)
        sign = _OPERATOR.search(self._source, begin, end)
        for flip in _FLIPS.get(type(operator), ()) if sign else ():
            assert sign is not None
            comparison = f"{self._unparse(left)} {sign.group().decode()} {self._unparse(right)}"
            yield Mutant(
                path=self._path,
                line=left.lineno,
                kind="comparison",
                change=f"{comparison}  ->  {flip}",
                begin=sign.start(),
                end=sign.end(),
                text=flip,
                lines=(node.lineno,),
            )

    def constants(self) -> Iterator[Mutant]:
        for statement in self._tree.body:
            for name, value in _pairs(statement):
                for node in _numbers(value):
                    yield from self._scaled(name, node)

    def _scaled(self, name: str, node: ast.expr) -> Iterator[Mutant]:
        for text in _scale_value(_value(node)):
            yield Mutant(
                path=self._path,
                line=node.lineno,
                kind="constant",
                change=f"{name}: {self._unparse(node)}  ->  {text}",
                begin=self._begin(node),
                end=self._end(node),
                text=text,
                # other modules may import public constants and read them there
                lines=tuple(sorted(self._readers(name, frozenset()))) if name.startswith("_") else (),
            )

    def _readers(self, name: str, seen: frozenset[str]) -> set[int]:
        """Return the lines of functions that read the constant, or a constant derived from it."""
        lines: set[int] = set()
        for statement in self._tree.body:
            reads = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
            loads = [read for read in reads if isinstance(read.ctx, ast.Load)]
            made = _assigned(statement)
            if loads and not made:
                lines |= {read.lineno for read in loads}
            for other in made if loads else ():
                if other not in seen:
                    lines |= self._readers(other, seen | {name})
        return lines

    def _begin(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        return self._starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)

    def _unparse(self, node: ast.expr) -> str:
        return " ".join(self._source[self._begin(node) : self._end(node)].decode().split())


def _assigned(statement: ast.stmt) -> list[str]:
    return [name for name, _ in _pairs(statement)]


def _pairs(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement assigns, with values; for ``a, b = 1, 2`` each separately."""
    value = getattr(statement, "value", None)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    for target in targets if isinstance(value, ast.expr) else ():
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            both = zip(target.elts, value.elts, strict=True)
            yield from ((name.id, each) for name, each in both if isinstance(name, ast.Name))


def _numbers(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the largest subexpressions that consist only of numbers."""
    if _value(node) is not None:
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _numbers(child)


def _value(node: ast.expr) -> int | float | None:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant):
            if isinstance(part.value, bool) or not isinstance(part.value, int | float):
                return None
        elif not isinstance(part, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop):
            return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})
    return value if isinstance(value, int | float) else None


def _scale_value(value: int | float | None) -> list[str]:
    if value is None:
        return []
    if isinstance(value, int) and abs(value) < _AMOUNT:
        return [str(value + 1)] + ([str(value - 1)] if value else [])
    scaled = (value * 1.25, value * 0.8)
    return [repr(int(other)) if isinstance(value, int) else repr(other) for other in scaled]
