"""What of a report and of manifests may leave the house: an allow-list of keys, and how their texts go.

Names get a stand-in; of other texts only the words go that are known to be zprof's own.

What is not on a list is left out, also what a later report has more, until somebody has thought about it.
Numbers and booleans of the objects that are on the list go as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from zprof.integrations.bundle.names import Names

#: Texts of which zprof's own words go.
_WRITTEN = frozenset(
    (
        "schema", "zprof_version", "status", "policy", "severity", "confidence", "id", "cause", "doc",
        "fix", "disprove", "kind", "dtype", "tenant", "sub", "basis", "moment",
        "sentence", "what", "reason", "remedy", "modelled", "peak_phase", "phase",
        "device", "backend", "engine", "method", "late_reason", "operator", "memory_mode", "source",
    )
)  # fmt: skip
#: Names of the program and of its machines, by the kind of their stand-in.
_NAMES = {"name": "run", "baseline": "run", "module": "module", "host": "host", "stack": "frame"}
_OBJECTS = frozenset(
    (
        "verdict", "run", "time", "per_rank", "steps", "alignment", "window", "blame", "fits", "messages",
        "collectives", "memory", "tenants", "formula", "parts", "basis_bytes", "state_bytes", "volume",
        "comparison", "ledger_delta", "memory_delta", "step_time", "findings", "evidence", "gaps",
        "unclaimed", "units", "top", "spread", "counters", "devices", "training", "files",
        "offsets_ns", "rank_uncertainty_ns", "interval_ns", "drift_ppb", "rungs", "shifts", "reasons",
        "origins", "critical_path", "delta_bytes", "phases", "baseline_run", "baseline_time",
        "baseline_memory", "ranks", "shares", "longest",
    )
)  # fmt: skip
_VARIABLES = frozenset(
    (
        "zprof", "python", "torch", "cuda", "hip", "machine", "processors", "torch_threads",
        "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_DEBUG", "NCCL_IB_DISABLE",
        "NCCL_MAX_CTAS", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_DISABLE", "NCCL_PROTO", "NCCL_SHM_DISABLE",
        "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
    )
)  # fmt: skip
#: Of evidence, where ``unit`` is no module.
_UNITS = frozenset(("ns", "bytes", "ratio", "count", "bytes_per_s"))
_MOST_DIGITS = 7
_LEFT_OUT = object()


class Allowed:
    """Takes what is allowed out of a tree of JSON values; ``dropped``: the keys that were left out."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.dropped: set[str] = set()

    def tree(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The allowed part of an object."""
        found = {
            key: self._leaf(key, each) if self._is_known(key) else self._drop(key)
            for key, each in value.items()
        }
        return {key: each for key, each in found.items() if each is not _LEFT_OUT}

    def _is_known(self, key: str) -> bool:
        """A field of ours, or a rank: other keys come from files."""
        return self._names.is_own(key) or (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS)

    def _leaf(self, key: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(key, value)
        if key == "environment":
            return self._variables(value)
        if isinstance(value, Mapping):
            return self.tree(value) if key in _OBJECTS else self._drop(key)
        return self._list(key, value)

    def _list(self, key: str, values: Sequence[Any]) -> Any:
        found = [self._leaf(key, each) for each in values]
        return [each for each in found if each is not _LEFT_OUT]

    def _variables(self, environment: Mapping[str, Any]) -> dict[str, str]:
        self.dropped |= {f"environment.{name}" for name in environment if name not in _VARIABLES}
        return {
            name: self._names.scrubbed(str(value))
            for name, value in environment.items()
            if name in _VARIABLES
        }

    def _text(self, key: str, text: str) -> Any:
        if key == "unit" and text in _UNITS:
            return text
        if key in _NAMES:
            return self._names.of(text, _NAMES[key])
        if key == "unit":
            return self._names.of(text, "module")
        if key == "group":
            return group_of(text, self._names)
        return self._names.scrubbed(text) if key in _WRITTEN else self._drop(key)

    def _drop(self, key: str) -> Any:
        self.dropped.add(key)
        return _LEFT_OUT


def group_of(text: str, names: Names) -> str:
    """The ranks of a group stay, its name does not: ``0,1,2#mesh_fsdp`` becomes ``0,1,2#group-1``."""
    ranks, mark, name = text.partition("#")
    if ranks.replace(",", "").isdigit():
        return ranks + (mark + names.of(name, "group") if mark else "")
    return names.of(text, "group")
