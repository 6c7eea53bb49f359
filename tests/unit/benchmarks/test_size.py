"""What the size guard counts of a small package with known truth, and when it fails."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.size import (
    TOTAL,
    Item,
    Reason,
    count_source,
    find_new_names,
    find_rises,
    parse_code,
    sum_figures,
)


def count(folder: Path, files: Mapping[str, str]) -> dict[str, list[Item]]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    return count_source(parse_code(folder))


def users(items: list[Item]) -> dict[str, str]:
    return {item.name: item.user for item in items}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("def _a(): ...\ndef b(): _a()", {"_a": "b"}, id="one caller"),
        pytest.param("def _a(): ...\ndef b(): _a()\ndef c(): _a()", {}, id="two callers"),
        pytest.param("def _a(): ...", {}, id="no caller"),
        pytest.param("def a(): ...\ndef b(): a()", {}, id="public"),
        pytest.param("def __getattr__(name): ...\n__getattr__('x')", {}, id="a name of Python's own"),
        pytest.param("def _a(): _a()\ndef b(): _a()", {"_a": "b"}, id="recursion"),
        pytest.param("def _a(): _a()", {}, id="recursion alone"),
        pytest.param("def _a(f): ...\n@_a\ndef b(): ...", {"_a": "b"}, id="decorator"),
        pytest.param("def _a(): ...\ndef b(): return map(_a, [])", {"_a": "b"}, id="value"),
        pytest.param("def _a(): ...\nTABLE = {1: _a}\ndef b(): _a()", {}, id="value and call"),
        pytest.param("def b():\n def _a(): ...\n return _a()", {"b._a": "b"}, id="nested"),
        pytest.param("class A:\n def _a(self): ...\n def b(self): self._a()", {"A._a": "A.b"}, id="method"),
        pytest.param(
            "class A:\n def _a(self): ...\n def b(self): self._a()\n"
            "class B:\n def _a(self): ...\n def b(self): self._a()\n def c(self): self._a()",
            {"A._a": "A.b"},
            id="method of that name in two classes",
        ),
        pytest.param(
            "class A:\n @property\n def _a(self): ...\n @_a.setter\n def _a(self, value): ...\n"
            "def b(one): one._a",
            {"A._a": "b"},
            id="property of another object",
        ),
    ],
)
def test_helpers_are_private_and_named_once(tmp_path: Path, text: str, found: Mapping[str, str]) -> None:
    assert users(count(tmp_path, {"zprof/one.py": text})["helpers"]) == found


MODULES = {
    "zprof/__init__.py": "",
    "zprof/once.py": "def run(): ...",
    "zprof/twice.py": "def run(): ...",
    "zprof/user.py": """
        from zprof import once
        from zprof.twice import run
        COMMANDS = ["zprof.named:Command"]
    """,
    "zprof/other.py": """
        def run():
            from .twice import run as again
            import zprof.named
            from zprof.facade import shared, single
    """,
    "zprof/named.py": "",
    "zprof/facade/__init__.py": """
        from .inner import shared
        from .alone import single
        from .idle import idle
    """,
    "zprof/facade/inner.py": "def shared(): ...",
    "zprof/facade/alone.py": "def single(): ...",
    "zprof/facade/idle.py": "def idle(): ...",
    "reports/page.py": "from zprof.facade import shared\nfrom zprof.reports import text",
    "reports/text.py": "",
}


def test_modules_with_one_importer(tmp_path: Path) -> None:
    assert users(count(tmp_path, MODULES)["modules"]) == {
        "zprof.once": "zprof.user",
        "zprof.facade.alone": "zprof.other",  # through the package, which only passes it on
        "zprof.facade.idle": "zprof.facade",  # nobody else has it
        "zprof.reports.text": "zprof.reports.page",
    }


STRUCTS = {
    "zprof/types.py": """
        import dataclasses
        from msgspec import Struct
        class Once(Struct): ...
        class Branches(Struct): ...
        class Twice(Struct): ...
        class Never(Struct): ...
        class Mapped(Struct): ...
        class Derived(Once): ...
        @dataclasses.dataclass(frozen=True)
        class Data:
            @classmethod
            def make(cls): return cls()
        class Plain: ...
    """,
    "zprof/passed.py": "from zprof.types import Twice",
    "zprof/user.py": """
        from zprof import types
        from zprof.types import Branches, Derived, Mapped, Once, Plain
        from zprof.passed import Twice as Two
        def build(flag):
            Plain()
            if isinstance(flag, Once):
                return Branches()
            return Branches(), types.Once(), list(map(Mapped, ()))
        def again(): return Two(), Derived()
        def further(): return types.Twice()
    """,
}


def test_structs_built_in_one_function(tmp_path: Path) -> None:
    assert users(count(tmp_path, STRUCTS)["structs"]) == {
        "Once": "zprof/user.py build",
        "Branches": "zprof/user.py build",
        "Mapped": "zprof/user.py build",
        "Derived": "zprof/user.py again",
        "Data": "zprof/types.py Data.make",
    }


def test_figures_are_by_folder(tmp_path: Path) -> None:
    text = "class A:\n def a(self):\n  def b(): ...\n  return lambda: b"
    found = count(
        tmp_path, {"zprof/top.py": text, "zprof/run/one/two.py": text, "reports/pages/one.py": text}
    )
    by_folder = {folder: row["definitions"] for folder, row in sum_figures(found).items()}
    assert by_folder == {TOTAL: 9, "reports": 3, "zprof": 3, "zprof/run": 3}


def test_a_rise_fails_unless_its_value_has_a_reason() -> None:
    committed = {TOTAL: {"helpers": 5}, "zprof/run": {"helpers": 5}}
    now = {TOTAL: {"helpers": 6}, "zprof/run": {"helpers": 4}, "zprof/step": {"helpers": 2}}
    rises = find_rises(now, committed, [])
    assert [(rise.folder, rise.value, rise.committed) for rise in rises] == [
        (TOTAL, 6, 5),
        ("zprof/step", 2, 0),
    ]
    reasons = [
        Reason(figure="helpers", folder=TOTAL, value=6, reason="a reason"),
        Reason(figure="helpers", folder="zprof/step", value=3, reason="of another value"),
    ]
    assert [rise.folder for rise in find_rises(now, committed, reasons)] == ["zprof/step"]
    assert not find_rises(committed, committed, [])


def test_what_rose_is_named_and_what_moved_is_not(tmp_path: Path) -> None:
    before = count(tmp_path / "before", {"zprof/run/one.py": "def a(): ...\ndef b(): ..."})
    after = count(
        tmp_path / "after", {"zprof/run/two.py": "def a(): ...\ndef b(): ...\ndef b(): ...\ndef c(): ..."}
    )
    (rise, *_) = find_rises(sum_figures(after), sum_figures(before), [])
    assert [item.name for item in find_new_names(rise, after, before)] == ["b", "c"]
