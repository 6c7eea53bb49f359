"""Hold what makes the code long: definitions, one-caller helpers, one-importer modules, once-built structs.

    python -m benchmarks.size                               a table by folder; exits with 1 if a figure rose
    python -m benchmarks.size --update                      write benchmarks/size.json, whose reasons are kept
    python -m benchmarks.size --list helpers zprof/planner  each with its only caller; also modules, structs

The figures, in each folder of the product (``zprof/*`` and the other ``SOURCES``).  The first four come from
its syntax trees alone:

*definitions*
    ``def`` and ``class`` statements, nested ones and methods included; no lambdas.
*helpers*
    Private functions and methods (``_name``, not ``__name__``) that their module names once outside their own
    body: a call, a decorator, or the name given away as a value.  ``self._name`` means the class around it,
    if that defines it; ``other._name`` any class of the module.  What another module imports does not count.
*modules*
    Modules that exactly one module imports, at any depth of its code.  A package that only passes a name on
    is not an importer, unless nobody else is: who imports the name from it imports the module that defines
    it.  A module that a string names (``"zprof.cli.plan:PlanCommand"``) is loaded by name: it does not count.
*structs*
    Structs, named tuples, dataclasses and what derives from them, built in exactly one function (or class or
    module body): a call of the name, ``cls(...)`` in its own methods, or the name as an argument
    (``map(Row, ...)``, ``type=Row``) of anything but ``isinstance``, ``issubclass`` and ``cast``.
*loaded*, *run*
    The modules that ``zprof diagnose`` of a recorded run imports, and the definitions that it runs at least
    once: functions and methods that are called, bodies of classes, in one process without cache, in all its
    threads; no lambdas and comprehensions.  Definitions of one name in one scope count once.

Lines are printed and not held.  A figure above that of ``size.json``, of a folder or of all, fails, unless
``reasons`` has an entry of exactly its value: ``{"figure": "helpers", "folder": "zprof/run", "value": 90,
"reason": "one sentence"}``; the folder of all is ``"total"``.  ``--update`` refuses only a total that rose
without a reason, because code may move between folders.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from msgspec import Struct, convert, field
from msgspec.structs import asdict

from benchmarks.processes import ROOT

COMMITTED = Path(__file__).parent / "size.json"
SOURCES = ("zprof", "collectors", "reports", "reference_engine")
STATIC = ("definitions", "helpers", "modules", "structs")
FIGURES = (*STATIC, "loaded", "run")
TOTAL = "total"
RECORDED_RUN = ROOT / "docs/pictures/runs/zprof-demo/zero3.zprof"
_MAX_NAMES = 15
_STRUCT_BASES = {"Struct", "NamedTuple"}
_NOT_BUILDING = {"isinstance", "issubclass", "cast"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TRACE = "import sys; from benchmarks.size import trace_diagnose; trace_diagnose(sys.argv[1], sys.argv[2])"


class Item(NamedTuple):
    """One of what a figure counts; ``user`` is its only caller, importer or builder."""

    path: str
    name: str
    line: int = 1
    user: str = ""

    @property
    def folder(self) -> str:
        """``zprof/run`` of ``zprof/run/lock.py``; ``zprof`` of ``zprof/version.py``; else the top folder."""
        parts = self.path.split("/")[:-1]
        return "/".join(parts[:2] if parts[0] == "zprof" else parts[:1])


Items = Mapping[str, Sequence[Item]]


class Definition(NamedTuple):
    """A function or class; ``parent`` is the qualified name of the one around it, empty in a module."""

    parent: str
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

    @property
    def scope(self) -> str:
        """The qualified name, without the ``<locals>`` of Python's own."""
        return f"{self.parent}.{self.name}" if self.parent else self.name


class Use(NamedTuple):
    """A node of the tree, and the qualified name of the innermost definition around it."""

    scope: str
    node: ast.AST


class Import(NamedTuple):
    """A local name, and the module and the name there that it stands for; no name if it is the module."""

    local: str
    module: str
    name: str | None


class Module(Struct):
    """A parsed file: its definitions, all other nodes, and where each imported name comes from."""

    name: str
    path: str
    lines: int
    definitions: list[Definition] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    #: the last import of each local name
    origins: dict[str, Import] = field(default_factory=dict)

    @property
    def is_package(self) -> bool:
        """Whether it is the ``__init__`` of a folder."""
        return self.path.endswith("/__init__.py")


class Code(Struct):
    """All modules below a root, by name."""

    modules: dict[str, Module]

    def resolve(self, module: str, name: str) -> tuple[str, str | None] | None:
        """Return the module that defines a name which ``module`` has, and the name.

        The name is None for a module; nothing is found if modules only pass it around.
        """
        seen = set()
        while (module, name) not in seen:
            seen.add((module, name))
            source = self.modules[module].origins.get(name) if module in self.modules else None
            if source is None:
                inner = f"{module}.{name}"
                return (inner, None) if inner in self.modules else (module, name)
            if source.name is None:
                return source.module, None
            module, name = source.module, source.name
        return None


def parse_code(root: Path) -> Code:
    """Parse each Python file of ``SOURCES`` below ``root``, without following links."""
    modules = {}
    for source in SOURCES:
        for folder, folders, files in os.walk(root / source):
            folders.sort()
            for file in sorted(files):
                if file.endswith(".py"):
                    module = _parse_module(root, Path(folder) / file)
                    modules[module.name] = module
    return Code(modules)


def _parse_module(root: Path, file: Path) -> Module:
    path = file.relative_to(root).as_posix()
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    text = file.read_text(encoding="utf-8")
    module = Module(name if path.startswith("zprof/") else f"zprof.{name}", path, text.count("\n"))
    package = module.name if module.is_package else module.name.rpartition(".")[0]

    def visit(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
                module.definitions.append(Definition(scope, child.name, child))
                inner = module.definitions[-1].scope
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    module.imports.append(Import(alias.asname or alias.name, alias.name, None))
            elif isinstance(child, ast.ImportFrom):
                above = package.split(".")[: package.count(".") + 2 - child.level] if child.level else []
                origin = ".".join([*above, *filter(None, [child.module])])
                for alias in child.names:
                    module.imports.append(Import(alias.asname or alias.name, origin, alias.name))
            else:
                module.uses.append(Use(scope, child))
            visit(child, inner)

    visit(ast.parse(text, path), "")
    module.origins = {each.local: each for each in module.imports}
    return module


def count_source(code: Code) -> dict[str, list[Item]]:
    """Return what each figure of ``STATIC`` counts."""
    imported = {(each.module, each.name) for module in code.modules.values() for each in module.imports}
    return {
        "definitions": [
            Item(module.path, each.scope, each.node.lineno)
            for module in code.modules.values()
            for each in module.definitions
        ],
        "helpers": [item for module in code.modules.values() for item in _find_helpers(module, imported)],
        "modules": list(_find_modules(code)),
        "structs": list(_find_structs(code)),
    }


def _find_helpers(module: Module, imported: set[tuple[str, str | None]]) -> Iterator[Item]:
    private = {
        each.scope: each
        for each in module.definitions
        if isinstance(each.node, _FUNCTIONS) and each.name.startswith("_") and not each.name.startswith("__")
    }
    classes = {each.scope for each in module.definitions if isinstance(each.node, ast.ClassDef)}
    named = defaultdict(list)
    for each in private.values():
        named[each.name].append(each)
    users = defaultdict(list)
    for use in module.uses:
        for helper in _find_meant(use, named, classes):
            if not _is_inside(use.scope, helper.scope):  # a recursion is no caller
                users[helper.scope].append(use.scope or "module")
    for scope, helper in private.items():
        if len(users[scope]) == 1 and (module.name, scope) not in imported:
            yield Item(module.path, scope, helper.node.lineno, users[scope][0])


def _find_meant(use: Use, named: Mapping[str, list[Definition]], classes: set[str]) -> Sequence[Definition]:
    """Return the private functions that a node may mean."""
    node = use.node
    if isinstance(node, ast.Attribute):
        methods = [each for each in named.get(node.attr, ()) if each.parent in classes]
        if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            own = [each for each in methods if use.scope.startswith(f"{each.parent}.")]
            return own or methods
        return methods
    if isinstance(node, ast.Name):
        visible = [
            each
            for each in named.get(node.id, ())
            if (each.parent == use.scope if each.parent in classes else _is_inside(use.scope, each.parent))
        ]
        return [max(visible, key=lambda each: len(each.parent))] if visible else ()
    return ()


def _is_inside(scope: str, outer: str) -> bool:
    return not outer or f"{scope}.".startswith(f"{outer}.")


def _find_modules(code: Code) -> Iterator[Item]:
    importers: dict[str, set[str]] = defaultdict(set)
    facades: dict[str, set[str]] = defaultdict(set)
    loaded_by_name = set()
    for module in code.modules.values():
        used = {use.node.id for use in module.uses if isinstance(use.node, ast.Name)}
        for each in module.imports:
            direct = f"{each.module}.{each.name}"
            direct = direct if direct in code.modules else each.module
            if direct not in code.modules:
                continue
            source = code.resolve(direct, each.name) if each.name and direct == each.module else None
            target = source[0] if source and code.modules[direct].is_package else direct
            is_passed_on = module.is_package and each.local not in used
            (facades if is_passed_on else importers)[target].add(module.name)
        for use in module.uses:
            if isinstance(use.node, ast.Constant) and isinstance(use.node.value, str):
                loaded_by_name.add(use.node.value.partition(":")[0])
    for name, module in code.modules.items():
        users = (importers[name] or facades[name]) - {name}
        if len(users) == 1 and name not in loaded_by_name:
            yield Item(module.path, name, user=users.pop())


def _find_structs(code: Code) -> Iterator[Item]:
    structs = _list_structs(code)
    places = defaultdict(set)
    for module in code.modules.values():
        functions = {each.scope for each in module.definitions if isinstance(each.node, _FUNCTIONS)}
        for use in module.uses:
            if not isinstance(use.node, ast.Call):
                continue
            callee = _get_name(use.node.func)
            given = [*use.node.args, *(keyword.value for keyword in use.node.keywords)]
            built = [use.node.func, *(given if callee not in _NOT_BUILDING else ())]
            for node in built:
                kind = _resolve_class(code, module, node, use.scope if use.scope in functions else "")
                if kind in structs:
                    places[kind].add(f"{module.path} {use.scope or 'module'}")
    for kind, definition in structs.items():
        if len(places[kind]) == 1:
            module = code.modules[kind[0]]
            yield Item(module.path, kind[1], definition.node.lineno, places[kind].pop())


def _list_structs(code: Code) -> dict[tuple[str, str], Definition]:
    classes = {
        (module.name, each.scope): (module, each, each.node)
        for module in code.modules.values()
        for each in module.definitions
        if isinstance(each.node, ast.ClassDef)
    }
    structs: dict[tuple[str, str], Definition] = {}
    is_growing = True
    while is_growing:
        is_growing = False
        for key, (module, definition, node) in classes.items():
            if key not in structs and (
                any(_get_name(each) == "dataclass" for each in node.decorator_list)
                or any(_get_name(base) in _STRUCT_BASES for base in node.bases)
                or any(_resolve_class(code, module, base, "") in structs for base in node.bases)
            ):
                structs[key] = definition
                is_growing = True
    return structs


def _get_name(node: ast.AST) -> str | None:
    """Return the last part of ``a.Name``, ``Name``, ``Name[...]`` and ``Name(...)``."""
    if isinstance(node, ast.Call):
        return _get_name(node.func)
    if isinstance(node, ast.Subscript):
        return _get_name(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _resolve_class(code: Code, module: Module, node: ast.AST, method: str) -> tuple[str, str] | None:
    """Return where the class that an expression names is defined; ``method`` is the function around it."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        if node.id == "cls" and method:
            return module.name, method.rpartition(".")[0]
        local = [each.scope for each in module.definitions if each.name == node.id]
        found = (module.name, local[0]) if local else code.resolve(module.name, node.id)
    elif isinstance(node, ast.Attribute):
        owner = code.resolve(module.name, ast.unparse(node.value))
        found = code.resolve(owner[0], node.attr) if owner is not None and owner[1] is None else None
    else:
        return None
    return (found[0], found[1]) if found is not None and found[1] is not None else None


def count_diagnose(code: Code, root: Path, run: Path = RECORDED_RUN) -> dict[str, list[Item]]:
    """Return the modules that ``zprof diagnose RUN`` imports, and the definitions that it runs.

    Raises:
        RuntimeError: the command failed.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ZPROF_", "PYTHON"))
    }
    environment |= {"ZPROF_NO_CACHE": "1", "NO_COLOR": "1", "COLUMNS": "110", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _TRACE, str(root), str(run)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"zprof diagnose {run}: exit code {done.returncode}\n{done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    modules = {module.path: module for module in code.modules.values()}
    definitions = {
        (module.path, each.scope): each for module in code.modules.values() for each in module.definitions
    }
    return {
        "loaded": [Item(path, modules[path].name) for path in found["modules"] if path in modules],
        "run": [
            Item(path, name, definitions[path, name].node.lineno)
            for path, name in found["definitions"]
            if (path, name) in definitions
        ],
    }


def trace_diagnose(root: str, run: str) -> None:
    """Diagnose a run with the product below ``root``, and print what ran as a line of JSON."""
    sys.path.insert(0, root)
    codes: dict[int, CodeType] = {}

    def note_call(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    threading.setprofile(note_call)
    sys.setprofile(note_call)
    from zprof.cli import main

    exit_code = main(["diagnose", run])
    sys.setprofile(None)
    threading.setprofile(None)
    base = Path(root).resolve()

    def find_paths(files: Iterable[str | None]) -> dict[str, str]:
        paths = {file: Path(file).resolve() for file in files if file and file.startswith("/")}
        return {
            file: path.relative_to(base).as_posix() for file, path in paths.items() if base in path.parents
        }

    loaded = find_paths({getattr(module, "__file__", None) for module in list(sys.modules.values())})
    sources = find_paths({code.co_filename for code in codes.values()})
    called = {
        (sources[code.co_filename], code.co_qualname.replace(".<locals>", ""))
        for code in codes.values()
        if code.co_filename in sources
    }
    print(json.dumps({"modules": sorted(set(loaded.values())), "definitions": sorted(called)}))
    sys.exit(exit_code)


class Reason(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a figure may be as high as ``value``."""

    figure: str
    folder: str
    value: int
    reason: str


class Rise(NamedTuple):
    """A figure that is higher than the committed one, and has no reason."""

    figure: str
    folder: str
    value: int
    committed: int


Figures = Mapping[str, Mapping[str, int]]


def sum_figures(items: Items) -> dict[str, dict[str, int]]:
    """Return each figure by folder, the total first."""
    folders = sorted({item.folder for counted in items.values() for item in counted})
    counts = {figure: Counter(item.folder for item in counted) for figure, counted in items.items()}
    total = {figure: len(counted) for figure, counted in items.items()}
    return {TOTAL: total} | {
        folder: {figure: counts[figure][folder] for figure in items} for folder in folders
    }


def find_rises(figures: Figures, committed: Figures, reasons: Sequence[Reason]) -> list[Rise]:
    """Return each figure above the committed one without a reason of exactly its value; new folders had 0."""
    excused = {(each.figure, each.folder, each.value) for each in reasons if each.reason.strip()}
    return [
        Rise(figure, folder, value, before)
        for folder, counted in figures.items()
        for figure, value in counted.items()
        if value > (before := committed.get(folder, {}).get(figure, 0))
        and (figure, folder, value) not in excused
    ]


def find_new_names(rise: Rise, items: Items, before: Items) -> list[Item]:
    """Return what the figure counts now and did not before; what only moved within the folder is not new."""
    inside = [each for each in items[rise.figure] if rise.folder in {TOTAL, each.folder}]
    left = Counter(each.name for each in before[rise.figure] if rise.folder in {TOTAL, each.folder})
    new = []
    for each in inside:
        left[each.name] -= 1
        if left[each.name] < 0:
            new.append(each)
    return new


def count_at_commit(of: Path) -> dict[str, list[Item]] | None:
    """Return what the figures counted in the last commit that changed a file; None if that cannot be told."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "log", "-1", "--format=%H", "--", str(of)], capture_output=True, text=True)
    if commit.returncode or not commit.stdout.strip():
        return None
    with tempfile.TemporaryDirectory(prefix="zprof-size-") as folder:
        archive = subprocess.run([*git, "archive", commit.stdout.strip(), *SOURCES], capture_output=True)
        unpacked = subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, capture_output=True)
        if archive.returncode or unpacked.returncode:
            return None
        code = parse_code(Path(folder))
        try:
            return count_source(code) | count_diagnose(code, Path(folder))
        except RuntimeError:
            return None


def format_table(figures: Figures, committed: Figures, lines: Mapping[str, int]) -> str:
    """Return a row per folder, each figure with its difference to the committed one."""
    rows = [["", "lines", *FIGURES]]
    for folder, counted in figures.items():
        row = [folder, f"{lines[folder]:,}"]
        for figure in FIGURES:
            change = counted[figure] - committed.get(folder, {}).get(figure, 0)
            row.append(f"{counted[figure]:,}" + (f" ({change:+,})" if change else ""))
        rows.append(row)
    rows.append(rows.pop(1))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{row[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )


def format_rises(rises: Sequence[Rise], items: Items, before: Items | None) -> str:
    """Return a line per figure that rose, with the first names that are new."""
    texts = []
    for rise in rises:
        texts.append(f"FAIL  {rise.figure} of {rise.folder}: {rise.value:,}, committed {rise.committed:,}")
        is_told_by_folder = rise.folder == TOTAL and any(
            other.figure == rise.figure and other.folder != TOTAL for other in rises
        )
        if before is not None and not is_told_by_folder:
            new = find_new_names(rise, items, before)
            texts += [f"        {format_item(each)}" for each in new[:_MAX_NAMES]]
            texts += [f"        and {len(new) - _MAX_NAMES} more"] if len(new) > _MAX_NAMES else []
    if before is None:
        texts.append(f"What is new is not known: git cannot tell the code of the last {COMMITTED.name} here.")
    texts.append(f"Take back what rose, or say why in the reasons of {COMMITTED.name}, then --update.")
    return "\n".join(texts)


def format_item(item: Item) -> str:
    """Return where it is, its name, and its only user."""
    return f"{item.path}:{item.line} {item.name}" + (f" <- {item.user}" if item.user else "")


def read_committed() -> tuple[dict[str, dict[str, int]], list[Reason]]:
    """Return the committed figures and reasons; nothing if there is no file."""
    if not COMMITTED.exists():
        return {}, []
    content = json.loads(COMMITTED.read_text())
    return content["figures"], convert(content["reasons"], list[Reason])


def write_committed(figures: Figures, reasons: Sequence[Reason]) -> None:
    """Write figures and reasons, a line each, so that a difference is read as text."""
    rows = ",\n".join(f"  {json.dumps(folder)}: {json.dumps(row)}" for folder, row in figures.items())
    texts = ",\n".join(f"  {json.dumps(asdict(reason), ensure_ascii=False)}" for reason in reasons)
    end = f"[\n{texts}\n ]" if reasons else "[]"
    COMMITTED.write_text(f'{{\n "figures": {{\n{rows}\n }},\n "reasons": {end}\n}}\n')


def hold(code: Code, *, is_update: bool) -> int:
    """Print all figures, compare them with the committed ones or write them, and return the exit code."""
    items = count_source(code) | count_diagnose(code, ROOT)
    figures = sum_figures(items)
    committed, reasons = read_committed()
    lines = Counter({TOTAL: sum(module.lines for module in code.modules.values())})
    for module in code.modules.values():
        lines[Item(module.path, "").folder] += module.lines
    print(format_table(figures, committed, lines))
    rises = find_rises(figures, committed, reasons)
    if is_update:
        rises = [rise for rise in rises if committed and rise.folder == TOTAL]
    if rises:
        print(format_rises(rises, items, count_at_commit(COMMITTED)))
        return 1
    if is_update:
        write_committed(figures, reasons)
    elif figures != committed:
        print("Not as committed, and not worse: python -m benchmarks.size --update writes it down.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--update", action="store_true", help=f"write {COMMITTED.name}")
    parser.add_argument(
        "--list", choices=STATIC[1:], help="print each with its only caller, importer or builder"
    )
    parser.add_argument(
        "folder", nargs="?", default="", help="of the list, as in zprof/planner (default: all)"
    )
    options = parser.parse_args()
    code = parse_code(ROOT)
    if not options.list:
        return hold(code, is_update=options.update)
    for item in count_source(code)[options.list]:
        if f"{item.path}/".startswith(options.folder.rstrip("/") + "/" if options.folder else ""):
            print(format_item(item))
    return 0


if __name__ == "__main__":
    sys.exit(main())
