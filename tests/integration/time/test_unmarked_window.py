"""A trace without step marks is one window of several steps: no output calls its figures those of a step."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.support.html_pages import without_explanations
from tests.support.tui_app import LARGE, app_on, play, screen_text, settle
from zprof.cli import main
from zprof.run.reader import load as open_run
from zprof.simulator.ground_truth import write_job
from zprof.simulator.regular import make_job
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.session import RunRequest, load

STEPS = 4
JOB = make_job(seed=11, ranks=2, steps=STEPS, units=4, unit_params=1 << 20, prefetch="off")
#: What is said of a figure that is one of a step. "prof.step()" and the table of steps are not such.
OF_A_STEP = re.compile(
    r"per step|= step\b|ms/step|add up to the step|, step \d|\ba step of|of (?:the|each|a) step\b"
    r"|the step is",
    re.IGNORECASE,
)
#: Sentences about steps in general: what would mark them, what the model assumes, and code.
GENERAL = re.compile(
    r"at the end of each step|% of the step for another stage|terms of the ledger add up to the step"
    r"|# one (?:gather, one )?copy per step"
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Traces of the same job with step marks, and without them and the optimizer that tells steps apart."""
    marked, unmarked = tmp_path_factory.mktemp("marked"), tmp_path_factory.mktemp("unmarked")
    write_job(JOB, marked)
    for path in marked.glob("rank*.json*"):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            tree = json.load(file)
        tree["traceEvents"] = [
            event
            for event in tree["traceEvents"]
            if not re.match(r"ProfilerStep|Optimizer\.", str(event.get("name")))
            and "_fused_" not in str(event)
        ]
        (unmarked / f"{path.name.partition('.')[0]}.json").write_text(json.dumps(tree))
    return marked, unmarked


def find_steps(text: str) -> list[str]:
    words = " ".join(text.split())
    return [match[0] for match in OF_A_STEP.finditer(GENERAL.sub("", words))]


def write_report(path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(path), "-f", form]) == 0
    return without_explanations(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_no_document_calls_a_window_a_step(
    traces: tuple[Path, Path], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    marked, unmarked = (write_report(path, form, capsys) for path in traces)
    assert find_steps(marked), "the words are found where they belong"
    assert find_steps(unmarked) == []


def test_the_documents_have_the_length_of_the_window(
    traces: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    marked, unmarked = (json.loads(write_report(path, "json", capsys))["time"] for path in traces)
    assert (marked["window"]["is_whole"], unmarked["window"]["is_whole"]) == (False, True)
    step_ns, window_ns = (time["per_rank"][0]["wall_ns"] for time in (marked, unmarked))
    assert window_ns == pytest.approx(STEPS * step_ns, rel=0.1)


def test_no_screen_calls_a_window_a_step(
    traces: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, list[str]] = {}
    assert main(["import", str(traces[1]), "-o", str(tmp_path / "run.zprof")]) == 0
    loaded = load(RunRequest(path=tmp_path / "run.zprof", opener=open_run), lambda stage: None)

    async def act(app: ZprofApp, pilot: object) -> None:
        for name in SCREENS:
            app.action_show(name)
            await settle(app, pilot)  # type: ignore[arg-type]
            seen[name] = find_steps(screen_text(app))

    play(app_on(loaded), act, LARGE)
    assert {name: words for name, words in seen.items() if words} == {}
    capsys.readouterr()
