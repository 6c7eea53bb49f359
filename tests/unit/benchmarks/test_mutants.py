"""Mutants: what is found in a module, and that a changed module takes the place of the imported one."""

import sys
from types import ModuleType

import pytest

from benchmarks.mutants import format_table
from benchmarks.mutation_server import put_in_place
from benchmarks.mutations import find_mutants

SOURCE = b"""
from dataclasses import dataclass

_LEAST = 0.5
_FEW, _BYTES = 3, 4 << 20
_RANGE = (_LEAST, 2)

@dataclass(frozen=True)
class Box:
    size: float

    @property
    def large(self):
        return self.size > _LEAST

def inside(value):
    return _RANGE[0] <= value < _RANGE[1] and value not in (1,)
"""


def changes(source: bytes) -> list[str]:
    return [mutant.change for mutant in find_mutants("m.py", source)]


def test_comparisons_get_their_neighbour_and_their_negation() -> None:
    assert changes(b"def f(a, b):\n    return (a) <= b\n") == ["a <= b  ->  <", "a <= b  ->  >"]
    assert changes(b"x = a == b\ny = a not in b\n") == ["a == b  ->  !=", "a not in b  ->  in"]
    assert changes(b"x = a < b > c\n") == ["a < b  ->  <=", "a < b  ->  >=", "b > c  ->  >=", "b > c  ->  <="]


def test_numbers_are_scaled_and_small_whole_ones_change_by_one() -> None:
    assert changes(b"A = 0.5\n") == ["A: 0.5  ->  0.625", "A: 0.5  ->  0.4"]
    assert changes(b"A = 3\nB: int = 1 << 10\n") == [
        "A: 3  ->  4",
        "A: 3  ->  2",
        "B: 1 << 10  ->  1280",
        "B: 1 << 10  ->  819",
    ]
    assert changes(b"A, B = 1.0, 4\n") == [
        "A: 1.0  ->  1.25",
        "A: 1.0  ->  0.8",
        "B: 4  ->  5",
        "B: 4  ->  3",
    ]
    assert changes(b"A = 0\n") == ["A: 0  ->  1"]
    assert changes(b"A = (2, 'x', True)\ndef f():\n    return 7\n") == ["A: 2  ->  3", "A: 2  ->  1"]


def test_a_constant_is_read_where_what_is_made_of_it_is_read() -> None:
    least = next(mutant for mutant in find_mutants("m.py", SOURCE) if mutant.change.startswith("_LEAST"))
    lines = SOURCE.decode().splitlines()
    assert [lines[number - 1].split()[0] for number in least.lines] == ["return", "return"]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("mutated_example")
    module.__file__ = "mutated_example.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(SOURCE, "mutated_example.py", "exec"), module.__dict__)
    return module


def test_who_holds_the_functions_and_classes_gets_the_mutant(imported: ModuleType) -> None:
    inside, box = imported.inside, imported.Box(size=0.5)
    assert inside(0.5)
    assert not box.large
    for mutant in find_mutants("mutated_example.py", SOURCE):
        if mutant.change.endswith(("> _LEAST  ->  >=", "<= value  ->  <")):
            put_in_place("mutated_example.py", mutant.applied(SOURCE))
            assert (inside(0.5), box.large) == ((False, False) if mutant.text == "<" else (True, True))


def test_a_mutant_of_a_constant_reaches_what_is_made_of_it(imported: ModuleType) -> None:
    inside, box = imported.inside, imported.Box(size=0.55)
    first = find_mutants("mutated_example.py", SOURCE)[0]
    put_in_place("mutated_example.py", first.applied(SOURCE))
    assert not inside(0.5)
    assert not box.large


def test_the_table_sums_and_names_who_is_left() -> None:
    row = {"mutants": 3, "killed": 1, "equivalent": ["x: why"], "survivors": ["a.py:1: b < c"]}
    lines = format_table([{"module": "a.py", **row}, {"module": "b.py", **row}]).splitlines()
    assert lines[3].split() == ["all", "6", "2", "2", "2"]
    assert lines[-1] == "a.py:1: b < c"
