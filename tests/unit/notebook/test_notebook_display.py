"""What a notebook shows of a run, a report, a comparison, a plan and a chart: safe, and the same values."""

import inspect
import json
import re
from argparse import ArgumentParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import zprof
from tests.support.hostile_names import NAMES, poisoned
from tests.support.hostile_run import poison
from tests.support.html_pages import Parsed
from tests.support.pytest_suites import RUNS
from zprof.cli import main
from zprof.cli.plan import add_planning_options
from zprof.diagnosis.diagnose import diagnose as diagnose_analysis
from zprof.model.json_format import to_json
from zprof.model.report import Report
from zprof.notebook.plots import Chart
from zprof.notebook.report import DiagnosedRun, make_displayed
from zprof.reports.formats import DIAGNOSES, FORMATS, by_name
from zprof.reports.html import scope_style

CHARTS = ("ledger", "units", "memory", "heatmap", "timeline")
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> zprof.AnalysedRun:
    """A recording with names that try to steer, its folder too."""
    return zprof.load(poison(RUNS / "zero3", tmp_path_factory.mktemp("names") / "a<b>&\x1b[2J"))


def assert_harmless(fragment: str) -> Parsed:
    """Markup that is closed, loads nothing, runs nothing, and styles nothing but itself."""
    seen = Parsed(fragment)
    assert seen.problems == []
    assert not {each.tag for each in seen.elements} & {"script", "link", "iframe", "object", "base", "form"}
    assert not [name for each in seen.elements for name in each.attributes if name.startswith("on")]
    for style in (each for each in seen.elements if each.tag == "style"):
        selectors = re.findall(r"([^{}]+)\{(?=[^{]*\})", "".join(style.texts))
        assert selectors
        parts = [part.strip() for each in selectors for part in each.split(", ")]
        assert all(part.startswith((".zprof", "@")) for part in parts)
    assert not CONTROLS.search(fragment.replace("\t", " "))
    return seen


def test_a_report_is_the_report_with_display_methods(cpu_run: zprof.AnalysedRun, tmp_path: Path) -> None:
    report, plain = zprof.diagnose(cpu_run), diagnose_analysis(cpu_run.analysis)
    assert isinstance(report, Report)
    assert report.to_json() == to_json(plain)
    for name, method in (("text", report.to_text), ("md", report.to_markdown), ("html", report.to_html)):
        assert method() == by_name(name, FORMATS).render(plain)
        assert method(short=True) == by_name(name, DIAGNOSES).render(plain)
    assert report.save(tmp_path / "a.html").read_text(encoding="utf-8") == report.to_html()
    assert "<svg" in report.save(tmp_path / "a.svg").read_text(encoding="utf-8")
    for path in (tmp_path / "a.docx", tmp_path / "absent" / "a.md"):
        with pytest.raises(zprof.ZprofError):
            report.save(path)


def test_repr_is_short_and_has_the_verdict(cpu_run: zprof.AnalysedRun) -> None:
    assert repr(cpu_run).count("\n") == 0
    text = repr(cpu_run.report)
    assert cpu_run.report.verdict.sentence in text
    assert text.count("\n") < 8
    assert all(name in text for name in cpu_run.report.run.modelled)
    assert cpu_run.report.findings[0].id in text


def test_a_fragment_shows_the_diagnosis(cpu_run: zprof.AnalysedRun) -> None:
    seen = assert_harmless(cpu_run.report._repr_html_())
    shown = " ".join(seen.shown)
    assert cpu_run.report.verdict.sentence in shown
    assert "MODELLED" in shown
    ids = [each.attributes["id"] for each in seen.elements if "id" in each.attributes]
    assert all(name.startswith("zprof-") for name in ids)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_a_report_reach_no_page(cpu_run: zprof.AnalysedRun, name: str) -> None:
    report: DiagnosedRun = poisoned(make_displayed(cpu_run.report), name)
    assert_harmless(report._repr_html_())
    assert not CONTROLS.search(repr(report))
    for chart in (report.plot.ledger(), report.plot.units(), report.plot.heatmap()):
        assert not {"script", "img"} & {each.tag.rpartition("}")[2] for each in elements(chart)}


def test_names_in_a_run_reach_no_page(hostile_run: zprof.AnalysedRun) -> None:
    assert "<b>" not in hostile_run._repr_html_()
    assert_harmless(hostile_run._repr_html_())
    assert not CONTROLS.search(repr(hostile_run))
    for name in CHARTS:
        assert elements(getattr(hostile_run.plot, name)())


def elements(chart: Chart) -> list[ElementTree.Element]:
    """The elements of a chart, which is well-formed XML."""
    return list(ElementTree.fromstring(chart.svg).iter())


def test_charts_say_the_reports_numbers(cpu_run: zprof.AnalysedRun, tmp_path: Path) -> None:
    for name in CHARTS:
        chart = getattr(cpu_run.plot, name)()
        assert len(elements(chart)) > 10
        assert chart.save(tmp_path / f"{name}.svg").read_text(encoding="utf-8") == chart._repr_svg_()
        image = r'<img alt="[\w, ]+" style="[\w%:;-]+" src="data:[\w:/+;,=]+">'
        assert re.fullmatch(image, chart._repr_html_())
        is_of_times = name != "memory"
        assert ("MODELLED" in chart.svg) == is_of_times
    (rank, *_), report = cpu_run.report.time.per_rank, cpu_run.report
    wall_ns = sum(entry.wall_ns for entry in report.time.per_rank) / len(report.time.per_rank)
    assert f">{wall_ns / 1e6:.1f}<" in cpu_run.plot.ledger().svg
    assert (
        f"rank {rank.rank}, step {report.time.steps[0].step},"
        in cpu_run.plot.timeline(rank=rank.rank, step=report.time.steps[0].step).svg
    )
    with pytest.raises(zprof.ZprofError):
        chart.save(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("timeline", {"rank": 7}),
        ("timeline", {"step": 999}),
        ("memory", {"rank": 7}),
        ("heatmap", {"what": "x"}),
    ],
)
def test_what_cannot_be_drawn_is_said(
    cpu_run: zprof.AnalysedRun, name: str, options: dict[str, object]
) -> None:
    with pytest.raises(zprof.ZprofError) as caught:
        getattr(cpu_run.plot, name)(**options)
    assert caught.value.hint


def test_a_trace_has_no_memory_to_draw(gpu_run: zprof.AnalysedRun) -> None:
    with pytest.raises(zprof.ZprofError):
        gpu_run.plot.memory()
    assert len(elements(gpu_run.plot.timeline())) > 30


def test_compare_takes_runs_and_paths(cpu_run: zprof.AnalysedRun) -> None:
    both = zprof.compare(RUNS / "ddp", cpu_run)
    assert (both.a.name, both.b.name) == ("ddp", "zero3")
    against = zprof.diagnose(cpu_run, RUNS / "ddp")
    assert both.verdict == against.verdict
    assert against.verdict.sentence in repr(both)
    assert json.loads(both.to_json())["schema"] == "zprof.compare/1"
    assert_harmless(both._repr_html_())


def test_a_plan_has_the_options_of_the_command() -> None:
    parser = ArgumentParser()
    add_planning_options(parser)
    defaults = vars(parser.parse_args([]))
    signature = inspect.signature(zprof.plan).parameters
    assert {
        name: entry.default for name, entry in signature.items() if name not in ("search", "sensitivity")
    } == defaults


def test_a_plan_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--layers 4 --hidden 1024 --dp 8 --hardware h100 --device-memory 32GB --micro-batch 2"
    code = main(["plan", *options.split(), "--sequence", "64", "--checkpointing", "-f", "json"])
    made = zprof.plan(
        layers=4, hidden=1024, dp=8, hardware="h100", device_memory=32e9, micro_batch=2, sequence=64,
        checkpointing=True,
    )  # fmt: skip
    assert (code, capsys.readouterr().out.strip()) == (0, made.to_json().strip())
    assert_harmless(made._repr_html_())
    assert repr(made).count("\n") == len(made.rows)
    assert main(["plan", *options.split(), "--sequence", "64", "--checkpointing"]) == 0
    text = capsys.readouterr().out
    (peaks,) = re.findall(r"^  = peak (.*)$", text, re.MULTILINE)
    (unit,) = re.findall(r"^MEMORY PER DEVICE +(\w+),", text, re.MULTILINE)
    assert re.findall(r": (\S+ \w+) per device", repr(made)) == [f"{peak} {unit}" for peak in peaks.split()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"params": 1e9, "preset": "7.5b"},
        {"params": 1e9, "micro_batch": 0},
        {"params": 1e9, "backend": "x"},
        {"params": 1e9, "stage": 2.0},
        {"params": 1e9, "keep_last": 1},
        {"preset": "7.5b", "device_memory": True},
        {"params": 1e9, "keep_last": True, "stage": 1},
    ],
)
def test_a_plan_refuses_in_the_words_of_python(options: dict[str, object]) -> None:
    with pytest.raises(zprof.ZprofError) as caught:
        zprof.plan(**options)  # type: ignore[arg-type]
    assert "--" not in f"{caught.value} {caught.value.hint}"
    assert [name for name in list(options)[1:] if name in str(caught.value)] == list(options)[1:]


def test_a_style_sheet_stays_in_its_scope() -> None:
    style = ":root { a: b } /* { */ body { c: d } h1, td:not(.x, .y) > p { e: f } @media print { * { g: h } }"
    scoped = scope_style(style, ".z")
    assert " ".join(scoped.split()) == (
        ".z { a: b } .z { c: d } .z h1, .z td:not(.x, .y) > p { e: f } @media print { .z * { g: h } }"
    )
