"""The first screen, by keys: the answer at once, what opens, what is copied."""

from dataclasses import replace
from itertools import pairwise

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, app_on, play, press, screen_text, settled
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun


async def press_on(app: ZprofApp, pilot: Pilot[int], *keys: str) -> str:
    """What the terminal shows after these keys, in an app that runs."""
    for key in keys:
        await pilot.press(key)
        await settled(app, pilot)
    return screen_text(app)


def test_the_answer_is_seen_at_once(loaded: LoadedRun) -> None:
    text = press(app_on(loaded))
    assert "✗ SLOWER 323.5 ms vs 200.3 ms a step" in text
    assert "! not the same job: modelled · MODELLED, not measured: link of 50.0 MB/s" in text
    assert "exposed transfer  110.0   34.0 %    19.2   +90.8  ━━━" in text
    assert "= step            323.5  100.0 %   200.3  +123.2" in text
    assert "ZP401    36.4..125.8 ms  high  all_gathers begin only" in text
    assert "fix: ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)" in text
    assert "peak memory  9.9 MiB  was  13.7 MiB  in the baseline" in text
    assert "evidence of" not in text, "there is no room for it"
    assert "not tested" in text


def test_a_finding_opens_at_once_long_ones_scroll_and_y_copies_the_fix(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press_on(app, pilot, "enter")
        for part in ("saves 36.4 ms to 125.8 ms", "high confidence", "evidence"):
            assert part in text
        assert "how to disprove it" not in text
        assert "how to disprove it" in await press_on(app, pilot, "space")
        assert "saves 36.4 ms to 125.8 ms" in await press_on(app, pilot, "pageup")
        assert "saves 36.4 ms" not in await press_on(app, pilot, "j", "j", "j", "j")
        assert "saves 36.4 ms" in await press_on(app, pilot, "k", "k", "k", "k")
        await press_on(app, pilot, "y")
        assert app.clipboard == loaded.report.findings[0].fix
        assert "esc: back" not in await press_on(app, pilot, "escape")

    play(app_on(loaded), act)


def test_all_of_a_finding_where_there_is_room(loaded: LoadedRun) -> None:
    text = press(app_on(loaded), "enter", size=LARGE)
    for part in ("evidence", "what to change (y copies it)", "how to disprove it", "ZeroConfig(stage=3"):
        assert part in text


@pytest.mark.parametrize("size", [(160, 45), pytest.param(LARGE, marks=pytest.mark.slow), MIDDLE], ids=str)
def test_where_there_is_room_evidence_and_the_worst_units_are_seen(
    loaded: LoadedRun, size: tuple[int, int]
) -> None:
    """Not empty lines: of the focused finding what it rests on, all of it openable."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = screen_text(app)
        assert "evidence of ZP401" in text
        assert "units (wrapped modules), most exposed first" in text
        lines = text.split("\n")
        assert not any(not line.strip() and not rest.strip() for line, rest in pairwise(lines))
        text = await press_on(app, pilot, "j")
        assert "evidence of ZP413" in text
        assert loaded.report.findings[1].evidence[0].what in text
        text = await press_on(app, pilot, "tab", "enter")
        assert "findings[1].evidence[0].value" in text

    play(app_on(loaded), act, size)


def test_without_units_or_evidence_there_is_no_empty_table(loaded: LoadedRun) -> None:
    report = loaded.report
    bare = replace(report, time=replace(report.time, units=()))
    text = press(app_on(replace(loaded, report=bare)), size=LARGE)
    assert "evidence of ZP401" in text
    assert "units (wrapped" not in text
    facts = tuple(replace(found, evidence=()) for found in report.findings)
    text = press(app_on(replace(loaded, report=replace(bare, findings=facts))), size=LARGE)
    assert "evidence of" not in text


def test_numbers_and_lines_open(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press_on(app, pilot, "right", "enter")
        assert "36.4..125.8 ms" in text
        assert "findings[0].saving_ns[0]" in text
        assert "findings[0].saving_ns[1]" in text
        text = await press_on(app, pilot, "escape", "shift+tab", *["down"] * 4, "right", "enter")
        assert "wall = compute + exposed transfer" in text
        assert "time.per_rank[*].wall_ns" in text
        text = await press_on(app, pilot, "escape", "tab", "tab", "down", "down", "enter")
        assert "what could not be measured" in text

    play(app_on(loaded), act)


def test_alone_there_is_no_baseline(alone: LoadedRun) -> None:
    text = press(app_on(alone))
    assert "was ms" not in text
    assert "! RISK" in text


def test_letters_instead_of_glyphs(loaded: LoadedRun) -> None:
    text = press(app_on(loaded, ascii_only=True))
    assert text.isascii()
    assert "x SLOWER" in text
    assert "====" in text


def test_bars_use_the_room(loaded: LoadedRun) -> None:
    def longest(text: str) -> int:
        return max(line.count("━") for line in text.splitlines())

    assert longest(press(app_on(loaded))) < longest(press(app_on(loaded), size=MIDDLE))


def test_no_number_is_cut_at_80_columns_and_the_focused_finding_says_all(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "ZP413 4 units are dropped after their forward" in await press_on(app, pilot, "j")
        for table in (one for one in app.screen.query("FactTable") if one.display):
            assert table.virtual_size.width <= table.size.width, table.id
        assert len(screen_text(app).splitlines()) == 24

    play(app_on(loaded), act)


_SENTENCE = " and ".join(f"cause {at} of this rather long verdict" for at in range(12))


def with_much(loaded: LoadedRun) -> LoadedRun:
    """A verdict of many lines, and a device beside the memory."""
    report = loaded.report
    device = DeviceMemory(rank=0, device="cuda:0", moment="allocated peak", live_bytes=1, tenants={})
    used = replace(device, device_used_bytes=1 << 30, device_total_bytes=2 << 30)
    return replace(
        loaded,
        report=replace(
            report,
            verdict=replace(report.verdict, sentence=f"! RISK {_SENTENCE}"),
            memory=replace(report.memory, devices=(used,)),
            unclaimed={"idle_ns": 1_000_000},
        ),
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 24), (80, 30)], ids=str)
def test_a_long_verdict_cuts_nothing_off_but_its_own_end(loaded: LoadedRun, size: tuple[int, int]) -> None:
    text = press(app_on(with_much(loaded)), size=size)
    for name in ("peak memory", "headroom", "unclaimed", "not tested", "= step", "ZP401"):
        assert name in text, text
    if size == (80, 24):
        assert "… (?)" in text
    assert "why, and what to change" in text


def test_help_has_all_of_a_long_verdict(loaded: LoadedRun) -> None:
    assert "cause 11 of this" in press(app_on(with_much(loaded)), "?", "pagedown", size=(120, 36))


def test_without_findings_the_room_tells_what_was_not_tested(loaded: LoadedRun) -> None:
    gap = Gap(what="rule data_loader not tested", reason="no loader was seen", remedy="record more")
    bare = replace(loaded, report=replace(loaded.report, findings=(), gaps=(gap,)))
    for size in ((80, 24), LARGE):
        text = press(app_on(bare), size=size)
        assert "rule data_loader: no loader was seen" in text
        assert "nothing to change: no cause that was tested was found" in text


def test_tab_goes_through_the_parts_from_top_to_bottom(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys, parts in ORDERS.items():
            await press_on(app, pilot, keys)
            seen = []
            for _ in range(len(parts)):
                seen.append(app.focused.id if app.focused else None)
                await press_on(app, pilot, "tab")
            assert sorted(map(str, seen)) == sorted(parts)
            at = parts.index(str(seen[0]))
            assert seen == [*parts[at:], *parts[:at]], keys

    play(app_on(loaded), act, LARGE)


ORDERS = {
    "1": ["ledger", "findings", "evidence", "worst", "rest"],
    "2": ["bars", "trend", "top", "law", "phases", "modules"],
    "3": ["collectives", "sizes", "fits", "units", "checks"],
}
