"""Options that change nothing, and instruments that slow what they measure."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario
from tests.support.rule_runs import found, judged, run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.option_without_effect import CAUSE as option_without_effect
from zprof.causes.slowed_by_instruments import CAUSE as slowed_by_instruments
from zprof.model.training import EngineSetting, SettingEffect

#: Reductions and gathers that take a large part of the step.
EXPOSED = Scenario(ranks=3, steps=4, units=6, unit_bytes=3_960_000, bytes_per_s=120e6, engine="FSDP2")
OVERLAP = EngineSetting(name="overlap_comm", value="true", effect=SettingEffect.NO_STREAMS)


def with_settings(*settings: EngineSetting, plan: Scenario = EXPOSED) -> RunAnalysis:
    analysis = run_of(plan)
    return replace(analysis, run=replace(analysis.run, settings=settings))


def test_an_option_that_the_engine_ignores_is_named_with_what_stays_exposed() -> None:
    analysis = with_settings(OVERLAP)
    finding = found(option_without_effect, analysis)
    rows = analysis.collectives
    reduced = rows.at(rows.texts("kind").equals("reduce_scatter", "all_reduce"))
    exposed_ns = (reduced.ints("exposed_wait_ns") + reduced.ints("exposed_transfer_ns")).sum()
    assert finding.evidence[0].value == pytest.approx(exposed_ns / len(analysis.steps))
    assert finding.saving_ns == (0, 0)


@pytest.mark.parametrize(
    "setting",
    [
        replace(OVERLAP, is_set=False),
        replace(OVERLAP, effect=SettingEffect.NORMAL),
        EngineSetting(name="reduce_scatter", value="true", effect=SettingEffect.REDUCED_BY_ALL_REDUCE),
    ],
    ids=["a default", "works", "hides nothing"],
)
def test_other_options_are_no_finding(setting: EngineSetting) -> None:
    assert judged(option_without_effect, with_settings(setting)) is None


@pytest.mark.parametrize("name", ["forward_prefetch", "set_modules_to_forward_prefetch"])
def test_a_prefetch_without_streams_names_the_gathers_and_a_fix_of_its_own(name: str) -> None:
    option = EngineSetting(name=name, value="True", effect=SettingEffect.NO_STREAMS)
    analysis = with_settings(option)
    finding = found(option_without_effect, analysis)
    rows = analysis.collectives
    gathers = rows.at(rows.texts("kind").equals("all_gather"))
    exposed_ns = (gathers.ints("exposed_wait_ns") + gathers.ints("exposed_transfer_ns")).sum()
    assert finding.evidence[0].value == pytest.approx(exposed_ns / len(analysis.steps))
    ignored = with_settings(replace(option, effect=SettingEffect.IGNORED_BY_FSDP2))
    assert (found(option_without_effect, ignored).fix != finding.fix) is (name == "forward_prefetch")


def test_nothing_exposed_is_no_finding() -> None:
    fast = replace(EXPOSED, bytes_per_s=2e13)
    assert judged(option_without_effect, with_settings(OVERLAP, plan=fast)) is None


def test_instruments_that_wait_are_named() -> None:
    logger = EngineSetting(name="comms_logger.enabled", value="true", effect=SettingEffect.SYNCHRONISES)
    assert "comms_logger.enabled" in found(slowed_by_instruments, with_settings(OVERLAP, logger)).fix
    assert judged(slowed_by_instruments, with_settings(OVERLAP)) is None
