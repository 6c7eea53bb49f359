"""A baseline of other conditions is refused with each reason, and a planted regression is no condition."""

from dataclasses import replace

import pytest

from tests.support.check_runs import ENVIRONMENT, Made, limit
from zprof.checks.baseline_comparison import find_condition_differences
from zprof.checks.check import check
from zprof.model.baseline import Conditions
from zprof.model.errors import BadInput

HERE = Conditions(
    device="cpu", backend="gloo", world_size=4, engine="reference", stage=3, torch="2.13.0+cpu",
    modelled=("link of 50.0 MB/s",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"world_size": 2}, "world size 4, the baseline has 2"),
        ({"device": "cuda (H200)"}, "device cpu, the baseline has cuda (H200)"),
        ({"backend": "nccl"}, "backend gloo, the baseline has nccl"),
        ({"engine": "FSDP2"}, "engine reference, the baseline has FSDP2"),
        ({"stage": None}, "stage 3, the baseline has unknown"),
        ({"stage": 0}, "stage 3, the baseline has 0"),
        ({"torch": "2.13.1+cpu"}, "torch 2.13.0, the baseline has 2.13.1"),
        ({"torch": ""}, "torch 2.13.0, the baseline has unknown"),
        ({"modelled": ()}, "modelled link of 50.0 MB/s, the baseline has nothing"),
        ({"window": "trace"}, "time measured by steps, the baseline has as one stretch"),
    ],
)
def test_each_difference_is_a_phrase(change: dict[str, object], phrase: str) -> None:
    assert find_condition_differences(replace(HERE, **change), HERE) == (phrase,)  # type: ignore[arg-type]


def test_equal_conditions_differ_in_nothing() -> None:
    assert find_condition_differences(HERE, HERE) == ()
    assert find_condition_differences(HERE, replace(HERE, torch="2.13.0+cu130")) == ()
    planted = (
        "planted no_prefetch: every unit is gathered late",
        "link of 50.0 MB/s",
        "straggler: rank 1 late",
    )
    assert find_condition_differences(HERE, replace(HERE, modelled=planted)) == ()
    only = replace(HERE, modelled=planted[:1])
    assert find_condition_differences(replace(HERE, modelled=()), only) == ()


def test_a_long_condition_is_short_in_the_sentence_and_compared_whole() -> None:
    long = tuple("x" * 300 for _ in range(16))
    (phrase,) = find_condition_differences(
        replace(HERE, modelled=(*long[:-1], "y")), replace(HERE, modelled=long)
    )
    assert len(phrase) < 300


def test_check_refuses_with_all_reasons_unless_asked() -> None:
    run, base = Made(), Made().baseline
    other = replace(base, conditions=replace(base.conditions, stage=2, torch="2.9.1"))
    with pytest.raises(BadInput) as refused:
        check(run.report, [limit("peak_memory", change_ratio=0.0)], other, environment=ENVIRONMENT)
    assert "stage 3, the baseline has 2; torch 2.13.0, the baseline has 2.9.1" in refused.value.message
    assert "zprof baseline update" in refused.value.hint
    assert "--any-conditions" in refused.value.hint
    asked = check(
        run.report,
        [limit("peak_memory", change_ratio=0.0)],
        other,
        environment=ENVIRONMENT,
        any_conditions=True,
    )
    assert asked.outcome == "passed"
    assert "stage 3, the baseline has 2" in asked.notices[0]
