"""Check if a job with these environment variables leaves a flight-recorder dump when it hangs.

The names are those of torch 2.8 to 2.13 (``FlightRecorder.hpp``, ``ProcessGroupNCCL.cpp``). A
dump needs entries, a dump at a timeout, the monitoring thread that writes it, and a folder for it. The names
with FR go before the older ones with NCCL. Defaults differ by version, so they are not taken for granted.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zprof.model.doctor import CheckStatus, DoctorCheck

_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_MONITORING = ("TORCH_NCCL_ENABLE_MONITORING",)
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_STACKS = ("TORCH_INCLUDE_STACK_TRACE",)
_ONLY_ACTIVE = ("TORCH_INCLUDE_ONLY_ACTIVE",)
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
_DEFAULT_ENTRIES = 2000
#: A few steps of a large model need some hundred entries.
_FEW_ENTRIES = 100
#: What torch reads as true and as false, in any case.
_TRUE, _FALSE = ("1", "t", "true", "y", "yes"), ("0", "f", "false", "n", "no")
_WITHOUT = "a job that hangs leaves no dump for zprof hang"


def check_flight_recorder(environment: Mapping[str, str] = os.environ) -> DoctorCheck:
    """Return whether a hang would leave a dump; the defaults of torch 2.13 do."""
    problems = [
        problem
        for problem in (
            _check_size(environment),
            _check_flag(environment, _DUMP, "nothing is written at a timeout"),
            _check_flag(environment, _MONITORING, "the thread that writes the dump is off"),
            _check_heartbeat(environment),
            _check_folder(environment),
        )
        if problem
    ]
    if problems:
        found, remedies = zip(*problems, strict=True)
        return DoctorCheck(
            name="hang dumps",
            status=CheckStatus.ABSENT,
            found="; ".join(found),
            without=_WITHOUT,
            remedy="set " + " ".join(dict.fromkeys(remedies)),
        )
    # List what a dump would lack, though it would be written.
    losses = []
    _, value = _read(environment, _SIZE)
    if value is not None and int(value) < _FEW_ENTRIES:
        losses.append(f"{value} operations may be too few: {_SIZE[0]}={_DEFAULT_ENTRIES}")
    if (_read(environment, _STACKS)[1] or "1").lower() in _FALSE:
        losses.append(f"without lines of code: {_STACKS[0]}=1")
    if (_read(environment, _ONLY_ACTIVE)[1] or "0").lower() in _TRUE:
        losses.append(f"without what had finished: {_ONLY_ACTIVE[0]}=0")
    details = [*_describe_size(environment), *losses]
    return DoctorCheck(name="hang dumps", status=CheckStatus.OK, found="; ".join(details))


def _check_size(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _SIZE)
    if value is None:
        return None
    remedy = f"{_SIZE[0]}={_DEFAULT_ENTRIES}"
    if not _is_integer(value):
        return f"{name}={value[:40]} is no number: torch stops", remedy
    return (f"{name}={value}: no operation is kept", remedy) if int(value) <= 0 else None


def _check_flag(
    environment: Mapping[str, str], names: Sequence[str], consequence: str
) -> tuple[str, str] | None:
    """Return what is wrong with a flag that must be on, as it is by default."""
    name, value = _read(environment, names)
    if value is None or value.lower() in _TRUE:
        return None
    if value.lower() in _FALSE:
        return f"{name}={value}: {consequence}", f"{names[0]}=1"
    return f"{name}={value[:40]} is neither true nor false: torch stops", f"{names[0]}=1"


def _check_heartbeat(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _HEARTBEAT)
    if value is None or (_is_integer(value) and int(value) > 0):
        return None
    return f"{name}={value[:40]}: not a number of seconds", f"{name}=480"


def _check_folder(environment: Mapping[str, str]) -> tuple[str, str] | None:
    name, value = _read(environment, _FILE)
    if value is None:
        return None
    folder = Path(value).parent
    remedy = f"{name}=FOLDER/rank_ with a folder that exists and can be written"
    if not folder.is_dir():
        return f"{name}: the folder {folder} does not exist, and torch does not create it", remedy
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{name}: {folder} cannot be written", remedy
    return None


def _describe_size(environment: Mapping[str, str]) -> list[str]:
    _, value = _read(environment, _SIZE)
    _, path = _read(environment, _FILE)
    where = f"to {path}RANK" if path else "to ~/.cache/torch or /tmp, by torch's version"
    if value is None:
        return [
            f"NCCL ranks dump their last operations at a timeout {where}",
            f"their number is torch's default, {_DEFAULT_ENTRIES} in 2.13; {_SIZE[0]} sets it",
        ]
    return [f"NCCL ranks dump their last {int(value)} operations at a timeout {where}"]


def _read(environment: Mapping[str, str], names: Sequence[str]) -> tuple[str, str | None]:
    """Return the name and value of the variable that torch uses."""
    return next(((name, environment[name]) for name in names if name in environment), (names[0], None))


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()
