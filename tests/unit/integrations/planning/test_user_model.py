"""``module:function``: what a user names wrongly, and what a user's code does wrong, is one line."""

from pathlib import Path

import pytest

from zprof.integrations.planning.user_model import clean_text, find_builder
from zprof.model.errors import BadInput

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
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("spec", ["its_model:good", "its_model:optional", "its_model:Made.by"])
def test_a_function_without_arguments_builds_a_model(spec: str) -> None:
    assert sum(parameter.numel() for parameter in find_builder(spec)().parameters()) == 9


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("its_model", "it must be module:function"),
        (":good", "it must be module:function"),
        ("its_model:", "it must be module:function"),
        ("no_such_module:f", "there is no module no_such_module"),
        ("its_model.inside:f", "there is no module its_model.inside"),
        ("its_model:other", "has no function other"),
        ("its_model:number", "number is a int, not a function"),
        ("its_model:needs", "needs arguments (width, depth)"),
        ("its_model:nothing", "returned a NoneType, not a torch.nn.Module"),
        ("its_model:raises", "building the model failed: ValueError: first line"),
        ("its_model:quits", "building the model failed: SystemExit: 4"),
        ("its_model:stops", "building the model failed: KeyboardInterrupt"),
        ("its_broken:f", "importing its_broken failed: ModuleNotFoundError: No module named"),
        ("its_quitter:f", "importing its_quitter failed: SystemExit: 0"),
        ("its_typo:f", "importing its_typo failed: SyntaxError"),
    ],
)
def test_each_fault_is_one_line_that_names_the_spec(spec: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        find_builder(spec)()
    assert says in caught.value.message
    assert spec in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_a_long_message_is_cut() -> None:
    with pytest.raises(BadInput) as caught:
        find_builder("x" * 5000)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "steering",
    [
        "\x1b[31m",
        "\x1b[1;38;5;9m",
        "\x9b0K",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\",
        "\x1bc",
        "\x1b(B",
        "\x9d0;t\x9c",
    ],
)
def test_nothing_is_left_of_a_sequence_that_steers_a_terminal(steering: str) -> None:
    assert clean_text(f"red{steering} apple{steering}") == "red apple"


def test_a_name_that_steers_is_said_without_it() -> None:
    with pytest.raises(BadInput) as refused:
        find_builder("no\x1b[31msuch:thing")
    assert "nosuch" in refused.value.message
    assert "[31m" not in refused.value.message + refused.value.hint
