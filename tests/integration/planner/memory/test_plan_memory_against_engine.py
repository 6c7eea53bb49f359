"""Plans of memory, made from a job's description alone, against recorded ranks of the reference engine.

States must be equal to the byte on every rank; the predicted peak must be within 3 % of that of the fullest
rank.  What gloo copies while it runs comes and goes with its threads: where units are large beside the peak,
a recording varies by a unit of them, and the shapes here are chosen so that this stays below the limit.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest
from plan_memory_cases import Recorded, job_of, options_of, record

from tests.support.expected_states import expected_state
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import model_state_bytes
from zprof.planner.memory.walk.peak import peak_of

pytestmark = pytest.mark.ranks

TOLERANCE = 0.03
STAGES = range(4)


def _cases(shape: str, ranks: int, *more: object) -> Iterator[tuple[str, list[str]]]:
    words = "_".join(str(word).strip("-") for word in more)
    for stage in STAGES:
        for name, checkpoint in (("kept", ()), ("checkpointed", ("--checkpoint",))):
            options = options_of(shape, ranks, "--stage", stage, *checkpoint, *more)
            yield f"{shape}_{stage}_{name}_{words}", options


#: Each stage on two ranks, kept and computed again; of four ranks the stage that does the most.
BY_RANKS: Mapping[int, Mapping[str, list[str]]] = {
    2: dict(_cases("activations", 2)),
    4: {"activations_3_four_ranks": options_of("activations", 4, "--stage", 3)},
}
FEW = [name for cases in BY_RANKS.values() for name in cases]
MANY: Mapping[int, Mapping[str, list[str]]] = {
    2: {
        name: options
        for shape in ("balanced", "states", "logits")
        for dtype in ("float32", "bfloat16")
        for name, options in _cases(shape, 2, "--dtype", dtype)
    }
    | dict(_cases("activations", 2, "--dtype", "bfloat16"))
    | {
        name: options
        for more in (
            ("--accumulate", 2),
            ("--prefetch", 0),
            ("--prefetch", 2),
            ("--keep-after-forward", "last"),
            ("--constant-buffers", 16384),
            ("--defragment",),
            ("--reduce-buckets", 1),
            ("--tied",),
        )
        for name, options in _cases("activations", 2, *more)
    },
    4: {
        name: options
        for shape in ("activations", "logits")
        for dtype in ("float32", "bfloat16")
        for name, options in _cases(shape, 4, "--dtype", dtype)
    },
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """All of ``BY_RANKS``, recorded in one start."""
    return record(tmp_path_factory.mktemp("few"), BY_RANKS)


Many = Callable[[int], dict[str, Recorded]]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Many:
    """All of ``MANY`` for a number of ranks, recorded when it is first asked for."""
    return cache(lambda ranks: record(tmp_path_factory.mktemp(f"many{ranks}"), {ranks: MANY[ranks]}))


@pytest.mark.parametrize("name", FEW)
def test_states_are_exact_and_the_peak_is_within_three_percent(few: dict[str, Recorded], name: str) -> None:
    check_states(few[name])
    check_peak(few[name])


@pytest.mark.parametrize("name", FEW)
def test_the_moment_of_the_peak_is_the_recorded_phase(few: dict[str, Recorded], name: str) -> None:
    recorded = few[name]
    _, at = peak_of(job_of(recorded.config, recorded.ranks), recorded.config.zero.stage)
    assert at.startswith(recorded.highest.peak_phase)


@pytest.mark.parametrize("name", [name for name in FEW if "kept" in name])
def test_activations_at_the_peak_are_those_that_were_recorded(few: dict[str, Recorded], name: str) -> None:
    """Both are highest in the loss, when the whole forward is kept; the loader's whole batch is apart."""
    recorded = few[name]
    terms, _ = peak_of(job_of(recorded.config, recorded.ranks), recorded.config.zero.stage)
    predicted = sum(term.bytes or 0 for term in terms if term.tenant is Tenant.ACTIVATIONS)
    others = recorded.config.batch - recorded.config.batch // recorded.ranks
    others_tokens = 8 * others * (recorded.config.gpt.context + 1)
    assert recorded.highest.tenants[Tenant.ACTIVATIONS] - predicted == pytest.approx(others_tokens, abs=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, cases in MANY.items() for name in cases]
)
def test_every_schedule_dtype_and_number_of_ranks(many: Many, ranks: int, name: str) -> None:
    check_states(many(ranks)[name])
    check_peak(many(ranks)[name])


def check_states(recorded: Recorded) -> None:
    predicted = model_state_bytes(job_of(recorded.config, recorded.ranks), recorded.config.zero.stage)
    assert predicted == expected_state(recorded.training)
    for memory in recorded.memory:
        assert memory.state_bytes == predicted, f"rank {memory.rank}"


def check_peak(recorded: Recorded) -> None:
    terms, at = peak_of(job_of(recorded.config, recorded.ranks), recorded.config.zero.stage)
    predicted = sum(term.bytes or 0 for term in terms)
    measured = recorded.highest
    error = predicted / measured.peak_bytes - 1
    print(
        f"ranks {recorded.ranks} {measured.peak_bytes} {predicted} {error:+.2%} "
        f"in {measured.peak_phase}, predicted at {at}"
    )
    assert abs(error) <= TOLERANCE, f"{error:+.2%}: {measured.parts} against {terms}"
