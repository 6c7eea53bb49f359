"""Broken copies of the gates: each comparison, condition and constant changed, one at a time.

Beside what :mod:`benchmarks.mutations` changes, a comparison is turned around (its operands swapped),
``is`` becomes ``is not``, ``and`` becomes ``or``, a condition is negated, and confidence and sense of a limit
are taken for another.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.mutations import find_mutants

ROOT = Path(__file__).parents[2]
_GATES = "zprof.checks.gates"
#: In the order in which they import each other.
MODULES = (
    *(f"{_GATES}.{name}" for name in ("reading", "sentences", "judge")),
    *(f"{_GATES}.{name}" for name in ("time", "memory", "communication")),
    "zprof.checks.check",
)
_AROUND = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_NOT = {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
_ATTRIBUTES = {"confidence": "(0.51 if {} else None)", "warns": "(not {})"}


def source_of(module: str) -> bytes:
    """What stands in its file."""
    return (ROOT / module.replace(".", "/")).with_suffix(".py").read_bytes()


def mutants(module: str) -> Iterator[tuple[str, bytes]]:
    """What is changed, in words, and the source with it."""
    source = source_of(module)
    for mutant in find_mutants(module, source):
        yield f"line {mutant.line}: {mutant.change}", mutant.applied(source)
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    compared = {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.Compare)}
    for node in ast.walk(tree):
        for new in _changes(node) if id(node) not in compared else ():
            begin, end = (
                sum(map(len, lines[: line - 1])) + column
                for line, column in (
                    (node.lineno, node.col_offset),  # type: ignore[attr-defined]
                    (node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
                )
            )
            said = f"line {node.lineno}: {ast.unparse(node)[:90]}  ->  {new[:90]}"  # type: ignore[attr-defined]
            yield said, source[:begin] + f"({new})".encode() + source[end:]


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for flips in (_AROUND, _NOT):
            if type(node.ops[0]) in flips:
                yield ast.unparse(ast.Compare(node.left, [flips[type(node.ops[0])]()], node.comparators))
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.unparse(ast.BoolOp(other, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    if isinstance(node, ast.IfExp) and not isinstance(node.test, ast.Compare):
        yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _ATTRIBUTES:
        yield _ATTRIBUTES[node.attr].format(ast.unparse(node))


def loaded(changed: Mapping[str, bytes]) -> Callable[..., Any]:
    """The function ``check`` of a copy of the gates, in which these modules have other sources.

    Only what imports a changed module is loaded anew.
    """
    before = {name: sys.modules.get(name) for name in MODULES}
    again = set(changed) | {MODULES[-1]}
    try:
        for name in MODULES:
            if name not in again and not any(other in _source(name) for other in again if other != name):
                importlib.import_module(name)
                continue
            again.add(name)
            module = ModuleType(name)
            sys.modules[name] = module
            code = compile(changed[name], name, "exec") if name in changed else _code(name)
            exec(code, module.__dict__)
        return sys.modules[MODULES[-1]].check  # type: ignore[no-any-return]
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


@cache
def _code(name: str) -> Any:
    return compile(source_of(name), name, "exec")


@cache
def _source(name: str) -> str:
    return source_of(name).decode()
