"""What the README and the pages show is what zprof prints and draws today from the recorded runs.

After a change of an output: ``python -m docs.tools.pictures``, then read the difference.
"""

import re
import shlex
from pathlib import Path

import pytest

from docs.tools.examples import PAGES, ROOT, read_examples, run_example
from docs.tools.pictures import PICTURES, draw_pictures, open_workplace, read_recorded_outputs
from tests.support.pinned import is_pinned
from zprof.causes import load_causes
from zprof.causes.cause import Need
from zprof.cli.parser import parse

README = ROOT / "README.md"
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if read_examples(page)], ids=name_page)
def test_examples_show_what_is_printed(page: Path) -> None:
    with open_workplace() as folder:
        for example in read_examples(page):
            assert run_example(example, folder, read_recorded_outputs()) == example.text


@pytest.mark.skipif(
    not (is_pinned("textual") and is_pinned("rich")),
    reason="pictures are those of the versions of textual and rich in constraints.txt",
)
def test_pictures_show_what_is_drawn() -> None:
    for name, content in draw_pictures():
        assert (PICTURES / name).read_text(encoding="utf-8") == content, f"{name} is out of date"


def test_the_readme_is_read_in_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1_500


def test_the_readme_counts_the_causes_of_the_registry() -> None:
    row = next(line for line in README.read_text(encoding="utf-8").splitlines() if "names causes" in line)
    hangs = len(load_causes(frozenset({Need.HANG})))
    assert [int(number) for number in re.findall(r"\d+", row)] == [len(load_causes()) - hangs, hangs]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert [target for target in missing if "reference/" not in target] == []  # made when the site is built


def list_commands(page: Path) -> list[str]:
    """The zprof commands of the page's shell blocks, without what recording them runs."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?zprof ", line)]


@pytest.mark.parametrize("page", [page for page in PAGES if list_commands(page)], ids=name_page)
def test_commands_of_a_page_are_understood(page: Path) -> None:
    for command in list_commands(page):
        arguments = shlex.split(command.partition(" | ")[0].partition(" >")[0], comments=True)[1:]
        if "-h" not in arguments and "--help" not in arguments and arguments[0] != "help":
            assert parse(arguments)[0] is not None, command
