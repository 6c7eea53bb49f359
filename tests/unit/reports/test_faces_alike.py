"""What every face must say alike: which ranks, which bounds, which states are off, what was measured."""

from dataclasses import replace

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.markdown_reading import visible
from tests.support.reports import slower
from zprof.model.gaps import Gap
from zprof.reports.html.report import render as html
from zprof.reports.junit import render as junit
from zprof.reports.markdown.report import render as markdown
from zprof.reports.sarif import render as sarif
from zprof.reports.text.report import render as text


def said_by(name: str, document: str) -> str:
    """The text of a face, without its line breaks."""
    if name == "sarif":
        run = sarif_schema.parsed(document)
        notes = run["invocations"][0]["toolExecutionNotifications"]
        return "\n".join(note["message"]["text"] for note in notes)
    if name == "junit":
        cases = junit_schema.parsed(document).iter("testcase")
        return "\n".join(f"{case.attrib['name']} {case[0].attrib['message']}" for case in cases if len(case))
    return " ".join((visible(document) if name == "md" else document).split())


FACES = {"text": text, "md": markdown, "html": html, "junit": junit, "sarif": sarif}
each_face = pytest.mark.parametrize("name", FACES)


@each_face
def test_a_gap_of_many_ranks_names_eight_and_keeps_its_reason_and_its_remedy(name: str) -> None:
    gaps = tuple(Gap(what="a size", rank=at, reason="no counter", remedy="record it") for at in range(1024))
    said = said_by(name, FACES[name](replace(slower(), gaps=gaps)))
    for what in ("0, 1, 2, 3, 4, 5, 6, 7 and 1016 more", "no counter", "record it"):
        assert what in said
