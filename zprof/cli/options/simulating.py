"""From the options of ``zprof simulate`` to a plan, and the room that it is written to."""

import argparse
import random
from dataclasses import replace
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Plan, Recording, Vendor

_TRUTH = "truth.json"
_MOST_STEPS = 10_000
_MOST_MEGABYTES = 4_096


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that was asked for.

    Raises:
        BadInput: it cannot be simulated.
    """
    _check(arguments)
    plan = Plan(
        ranks=arguments.ranks,
        steps=arguments.steps,
        stage=arguments.stage,
        units=arguments.units,
        prefetch=arguments.prefetch,
        micro_batches=arguments.micro_batches,
        seed=arguments.seed,
        vendor=Vendor(arguments.vendor),
        recording=Recording(pad_to_bytes=int(arguments.megabytes * 1e6)),
    )
    plan = replace(plan, offsets_ns=_offsets(plan, arguments.skew_us))
    return plant(plan, Cause(arguments.cause), arguments.strength)


def room_for(folder: Path, *, force: bool) -> Path:
    """The folder, with an older simulation taken out of it.

    Raises:
        BadInput: something is there, and it is no simulation or ``force`` is not given.
    """
    try:
        found = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", hint="name a folder") from None
    if not found:
        return folder
    old = [
        path
        for path in found
        if path.name == _TRUTH or path.match("rank*.json") or path.match("rank*.json.gz")
    ]
    if len(old) < len(found) or not (folder / _TRUTH).is_file():
        raise BadInput(f"{folder}: holds other things than a simulation", hint="name an empty folder")
    if not force:
        raise BadInput(f"{folder}: there already", hint="--force replaces it")
    for path in old:
        path.unlink()
    return folder


def _check(arguments: argparse.Namespace) -> None:
    for wrong, what in (
        (not 1 <= arguments.steps <= _MOST_STEPS, f"--steps: 1 to {_MOST_STEPS}"),
        (not 1 <= arguments.units <= 1_000, "--units: 1 to 1000"),
        (not 1 <= arguments.micro_batches <= 1_000, "--micro-batches: 1 to 1000"),
        (not 0 <= arguments.seed < 1 << 63, "--seed: 0 or more"),
        (not 0 <= arguments.megabytes <= _MOST_MEGABYTES, f"--megabytes: 0 to {_MOST_MEGABYTES}"),
        (not 0 <= arguments.skew_us <= 1e9, "--skew-us: 0 to 1e9"),
    ):
        if wrong:
            raise BadInput(what, hint="zprof simulate --help shows the options")


def _offsets(plan: Plan, skew_us: float) -> dict[int, int]:
    """One clock a host."""
    most = int(skew_us * 1000)
    draw = random.Random(plan.seed)
    hosts = [draw.randint(-most, most) for _ in range(-(-plan.ranks // plan.ranks_per_host))]
    return {rank: hosts[rank // plan.ranks_per_host] for rank in range(plan.ranks)} if most else {}
