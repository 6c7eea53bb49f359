"""``module:function``: what a user names wrongly, and what a user's code does wrong, is one line."""

import sys
from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.integrations.planning.user_model import clean_text, find_builder

CODE = """
from torch import nn
number = 3
def good(): return nn.Linear(2, 3)
def optional(width=2, *rest, **named): return nn.Linear(width, 3)
def needs(width, depth): return nn.Linear(width, depth)
def raises(): raise ValueError("first \\x1b[31mline\\nsecond line")
def quits(): raise SystemExit(4)
def nothing(): return None
def stops(): raise KeyboardInterrupt
class Made:
    @staticmethod
    def by(): return nn.Linear(2, 3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in {
        "its_model": CODE,
        "its_broken": "import its_missing_friend",
        "its_quitter": "import sys; sys.exit(0)",
        "its_typo": "def f(:",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("spec", ["its_model:good", "its_model:optional", "its_model:Made.by"])
def test_a_function_without_arguments_builds_a_model(spec: str) -> None:
    assert sum(parameter.numel() for parameter in find_builder(spec)().parameters()) == 9


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("its_model", "module:function"),
        (":good", "module:function"),
        ("its_model:", "module:function"),
        ("no_such_module:f", "no_such_module"),
        ("its_model.inside:f", "its_model.inside"),
        ("its_model:other", "other"),
        ("its_model:number", "int"),
        ("its_model:needs", "(width, depth)"),
        ("its_model:nothing", "NoneType"),
        ("its_model:raises", "ValueError: first line"),
        ("its_model:quits", "SystemExit: 4"),
        ("its_model:stops", "KeyboardInterrupt"),
        ("its_broken:f", "ModuleNotFoundError"),
        ("its_quitter:f", "SystemExit: 0"),
        ("its_typo:f", "SyntaxError"),
    ],
)
def test_each_fault_is_one_line_that_names_the_spec(spec: str, word: str) -> None:
    with pytest.raises(BadInput) as caught:
        find_builder(spec)()
    assert word in caught.value.message
    assert spec in caught.value.message
    assert caught.value.message.isprintable()


def test_what_a_message_quotes_is_cut_and_steers_no_terminal() -> None:
    with pytest.raises(BadInput) as caught:
        find_builder("x" * 5000)
    assert len(caught.value.message) < 300
    with pytest.raises(BadInput) as caught:
        find_builder("no\x1b[31msuch:thing")
    assert "nosuch" in caught.value.message
    assert "[31m" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("steering", ["\x1b[1;38;5;9m", "\x9b0K", "\x1b]0;title\x07", "\x1bc", "\x1b(B"])
def test_nothing_is_left_of_a_sequence_that_steers_a_terminal(steering: str) -> None:
    assert clean_text(f"red{steering} apple{steering}") == "red apple"
