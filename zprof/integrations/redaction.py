"""Redact reports and manifests: keep only listed keys, replace names, and keep only zprof's own words.

Unlisted keys are dropped, including keys from later report versions, until reviewed. Numbers and booleans in
listed objects are kept.

The same name gets the same pseudonym in all parts of a bundle, so support can distinguish names, and the
owner can translate them back with the list. Strings are split at blanks. Pseudonyms, zprof's own words,
numbers, versions, units after a number, and public words are kept. Everything else is hidden: no search for
names means that none can be missed.

Own words come from the text tables, the cause records, the number catalogue, and the report and run types.
Sentences of findings and gaps fill such a text with values from files, such as a kernel name, a path or a
library's error message; only zprof's text may be disclosed. Word fragments around a value are ignored.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from zprof import causes
from zprof.analysis.memory.attribution.rules import LAST_RESORT_RULES, TENANT_RULES
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind
from zprof.model.doctor import Doctor
from zprof.model.gap_texts import read_all_texts
from zprof.model.gap_texts.reading import SEGMENT_CONTRADICTIONS
from zprof.model.gap_texts.untested import UNTESTED_TEXTS
from zprof.model.metrics import METRICS
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, LateReason
from zprof.model.training import ENGINE_TITLES
from zprof.run.manifest import RankManifest, RunManifest
from zprof.run.schema import TABLES

_EDGES = re.compile(r"^[(\[{\"'<«]+|[)\]}\"'>»,;:.!?…]+$")
#: Shorter strings count as words only within a sentence: alone they are keys, patterns and formats.
_MIN_WORD_LETTERS = 4
_ARTICLE = "a"
_HIDDEN = "(hidden)"
_HIDDEN_TWICE = re.compile(r"\(hidden\)(?: +\(hidden\))+")
_NUMBER = re.compile(r"[-+±~≥≤<>]?\d{1,7}(?:\.\d{1,6})?(?:e[-+]?\d{1,2}|[x%])?|\d{1,6}[-/]\d{1,6}", re.ASCII)
_VERSION = re.compile(
    r"\d{1,4}(?:\.\d{1,4}){1,2}(?:(?:a|b|rc|\.dev|\.post)\d{1,4})?(?:\+(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){0,2}))?",
    re.ASCII,
)
_PSEUDONYM = re.compile(r"[a-z]+-\d{1,9}", re.ASCII)
_FINDING = re.compile(r"(?:docs/findings/)?ZP\d{3}(?:\.md)?", re.ASCII)
_PARTS = re.compile(r"[,=():;^]+")
_MARKS = re.compile(r"[!-/:-@\[-`{-~…→±≥≤]{0,3}")
#: Longer strings are cut; no sentence is longer.
_MAX_TEXT_LETTERS = 2000
_MIN_NAME_LETTERS = 3
#: Keys with strings that are reduced to zprof's own words.
_TEXT_KEYS = frozenset(
    (
        "schema", "zprof_version", "status", "policy", "severity", "confidence", "id", "cause", "doc",
        "fix", "disprove", "kind", "dtype", "tenant", "sub", "basis", "moment",
        "sentence", "what", "reason", "remedy", "modelled", "peak_phase", "phase",
        "device", "backend", "engine", "framework", "method", "late_reason", "operator", "memory_mode",
        "source", "saving_notes",
    )
)  # fmt: skip
#: Keys with names from the program or its machines, and their pseudonym kind.
_NAME_KINDS = {
    **{"name": "run", "baseline": "run", "module": "module", "host": "host"},
    **dict.fromkeys(("stack", "where", "frame", "chain"), "frame"),
}
_OBJECT_KEYS = frozenset(
    (
        "verdict", "run", "time", "per_rank", "steps", "alignment", "window", "blame", "fits", "messages",
        "collectives", "memory", "tenants", "formula", "parts", "basis_bytes", "state_bytes", "volume",
        "comparison", "ledger_delta", "memory_delta", "step_time", "findings", "evidence", "gaps",
        "unclaimed", "units", "top", "spread", "counters", "devices", "training", "files",
        "offsets_ns", "rank_uncertainty_ns", "interval_ns", "drift_ppb", "rungs", "shifts", "reasons",
        "origins", "critical_path", "delta_bytes", "phases", "baseline_run", "baseline_time",
        "baseline_memory", "ranks", "shares", "longest", "stacks", "nodes", "growth", "grown_bytes",
        "largest", "groups", "bounds",
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
#: Units of evidence; any other ``unit`` is a module.
_UNITS = frozenset(("ns", "bytes", "ratio", "count", "bytes_per_s"))
_MAX_DIGITS = 7
_DROPPED = object()
#: A value in a table text, such as ``{size:bytes}``, or in a fix, such as ``$unit_elements``.
_FIELD = re.compile(r"\{[a-z_]\w*(?:![rs])?(?::[^{}]*)?\}|\$[a-z_]+")
#: Placeholder for a value.
_VALUE = "\0"
#: Names defined by zprof: schemas, methods, memory kinds, and ownership rules.
_NAMES = frozenset(
    (
        "zprof.report/1", "zprof.run/1", "flight_recorder", "gloo_fifo_order", "gloo_execution_order",
        "backend_scratch", "unreduced", "retained", "recomputed", "partition",
        "op_output", "reduce_bucket", "allreduce", "sizes_repeat_gradients", "sizes_repeat_parameters",
        "size_of_a_workspace", "lasts_in_copies", "lasts_in_one_set", "lasts_without_gradient",
        "replaces_parameter", "timeout", "signal",
    )
)  # fmt: skip
#: Words in composed sentences: verdicts, endings, methods, lateness, hang fixes.
_SENTENCE_WORDS = frozenset(
    (
        "adds", "addition", "additive", "aten", "assumes", "carries", "circle", "cover", "decide",
        "decides", "defragmented", "distinguish", "engine's", "enough", "exist", "exit", "figure",
        "figures", "fixing", "gap", "go", "grew", "grows", "headroom", "hundredth", "implements",
        "joined", "just", "keeping", "kill", "leads", "machines", "matches", "occurs", "open", "outcome",
        "owners", "pageable", "pending", "proof", "race", "refused", "regions", "replicated", "retried",
        "roles", "round", "saw", "scheduler", "shut", "skip", "steady", "storage", "storages", "stored",
        "survived", "system", "transferred", "tui", "turns", "uninterruptible", "usually", "verdict", "vs",
        "ways", "why", "window's", "-CONT", "Ctrl-Z", "SIGSTOP", "TORCH_LOGS=graph_breaks",
        "batch.to(device", "offload_policy", "torch.optim.AdamW(parameters", "zprof.steps(skip=3", ".step(",
        # Reasons for unread files, and results of machine checks.
        "CPU-only", "NVRTC", "TORCH_FR_BUFFER_SIZE", "cuda-core", "imports", "~/.cache/torch", "/tmp",
        "--workers", "damaged", "deleted", "duration", "install", "installed", "readable", "reinstall",
    )
)  # fmt: skip
#: Words kept only after a number.
UNITS = frozenset(
    (
        "%", "s", "ms", "µs", "us", "ns", "h", "min", "B", "KiB", "MiB", "GiB", "TiB", "B/s",
        "KB/s", "MB/s", "GB/s", "TB/s", "MHz", "W", "°C", "x", "times",
    )
)  # fmt: skip
PUBLIC_WORDS = frozenset(
    (
        # Systems and machines.
        "Linux", "Darwin", "Windows", "x86_64", "aarch64", "arm64", "ppc64le",
        # Devices.
        "NVIDIA", "AMD", "Tesla", "Instinct", "GeForce", "RTX", "Quadro", "Radeon", "PCIe", "NVL",
        "HBM3", "HBM3e", "80GB", "A10", "A30", "A40", "A100", "A800", "H20", "H100", "H200", "H800",
        "GH200", "GB200", "GB300", "B200", "B300", "L4", "L40", "L40S", "T4", "V100", "P100",
        "3090", "4090", "5090", "MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X",
        "MI355X", "A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "V100-SXM2-16GB",
        "V100-SXM2-32GB",
        # Backends, and types as named in traces.
        "cuda", "hip", "cpu", "gloo", "nccl", "rccl", "mpi", "ucc", "Float", "Half", "BFloat16",
        "Double", "Byte", "Char", "Short", "Int", "Long", "Bool",
        # Operators, groups and ranges named by torch, and a time zone.
        "all_gather_into_tensor", "all_gather_base", "reduce_scatter_tensor", "reduce_scatter_base",
        "_all_gather_base", "_reduce_scatter_base", "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_", "aten::item", "softmax", "cross_entropy", "default_pg",
        "ProfilerStep", "Optimizer.step", "UTC",
        # Values of torch and NCCL variables.
        "True", "False", "native", "cudaMallocAsync", "backend", "expandable_segments",
        "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions", "Ring",
        "Tree", "CollNet", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT", "LL",
        "LL128", "Simple", "INFO", "WARN", "TRACE", "VERSION", "ABORT", "PIX", "PXB", "PHB", "SYS",
        "LOC",
    )
)  # fmt: skip


class OwnWords(Struct, frozen=True, kw_only=True):
    """Strings of zprof.

    ``lines``: complete lines without values. ``words``: words without surrounding punctuation. ``fields``:
    field names of reports, runs and checks.
    """

    lines: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()


def collect_own_words() -> OwnWords:
    """Collect all own words."""
    fields, values = _list_fields(Report, RunManifest, RankManifest, Doctor)
    lines: set[str] = set()
    words = {*values, *CollectiveKind, *LateReason, *TABLES, *BYTES_PER_ELEMENT, *_NAMES, *_SENTENCE_WORDS}
    words |= {name for rule in (*TENANT_RULES, *LAST_RESORT_RULES) for name in (rule.name, rule.sub)}
    tables = (read_all_texts(), UNTESTED_TEXTS, SEGMENT_CONTRADICTIONS, METRICS, LEDGER_NAMES, ENGINE_TITLES)
    for text in (*_iter_texts(tables), *_iter_cause_texts()):
        marked = _FIELD.sub(_VALUE, text)
        lines |= {line for line in marked.splitlines() if " " in line.strip() and _VALUE not in line}
        chunks = {strip_marks(chunk) for chunk in marked.split() if _VALUE not in chunk}
        min_letters = 2 if " " in text.strip() else _MIN_WORD_LETTERS
        words |= {chunk for chunk in chunks if len(chunk) >= min_letters or chunk == _ARTICLE}
    known = (*_TEXT_KEYS, *_OBJECT_KEYS, *_NAME_KINDS)
    return OwnWords(lines=frozenset(lines), words=frozenset(words), fields=frozenset((*fields, *known)))


def strip_marks(chunk: str) -> str:
    """Remove surrounding brackets, quotes and punctuation from a word."""
    return _EDGES.sub("", chunk)


def _iter_texts(value: object) -> Iterator[str]:
    """Yield the strings in nested records, tables and sequences."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Struct):
        yield from _iter_texts([getattr(value, name) for name in value.__struct_fields__])
    elif isinstance(value, Mapping):
        yield from _iter_texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _iter_texts(entry)


def _iter_cause_texts() -> Iterator[str]:
    """Yield the strings in all cause records and in their fixes."""
    for module in iter_modules(causes.__path__):
        constants = vars(import_module(f"{causes.__name__}.{module.name}"))
        yield from _iter_texts([value for name, value in constants.items() if not name.startswith("__")])


def _list_fields(*types: Any) -> tuple[set[str], set[str]]:
    """Return the field names of record types and of nested types, and the values of enums."""
    names: set[str] = set()
    values: set[str] = set()
    pending, seen = list(types), set(types)
    while pending:
        kind = pending.pop()
        hints: Mapping[str, Any] = {}
        if isinstance(kind, type) and issubclass(kind, Enum):
            values |= {str(member.value) for member in kind}
        elif isinstance(kind, type) and issubclass(kind, Struct):
            hints = get_type_hints(kind)
            names |= hints.keys()
        found = [each for each in (*hints.values(), *get_args(kind)) if each not in seen]
        seen.update(found)
        pending += found
    return names, values


class Pseudonyms:
    """Assigns pseudonyms to names, and hides text outside ``own``."""

    def __init__(self, own: OwnWords | None = None) -> None:
        self._own = own or OwnWords()
        self._assigned: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def replace_name(self, name: str, kind: str) -> str:
        """Return the pseudonym of a name, such as ``module-3``; an empty name stays empty."""
        if not name:
            return ""
        if name not in self._assigned:
            self._count[kind] = self._count.get(kind, 0) + 1
            self._assigned[name] = f"{kind}-{self._count[kind]}"
        return self._assigned[name]

    def redact_text(self, text: str) -> str:
        """Replace known names in a string by pseudonyms and hide all other foreign words."""
        cut = text if len(text) <= _MAX_TEXT_LETTERS else f"{text[:_MAX_TEXT_LETTERS]} …"
        lines = cut.replace("\r", "\n").split("\n")
        return "\n".join(line if line in self._own.lines else self._redact_line(line) for line in lines)

    def is_own(self, word: str) -> bool:
        """Return True if this is one of zprof's words or field names."""
        return word in self._own.words or word in self._own.fields

    @property
    def assigned(self) -> dict[str, str]:
        """Pseudonyms by name."""
        return dict(self._assigned)

    def _redact_line(self, line: str) -> str:
        chunks = self._replace_names(line).split(" ")
        pairs = zip(chunks, ["", *chunks], strict=False)
        redacted = [
            chunk if self._is_kept(chunk, before) else self._assigned.get(strip_marks(chunk), _HIDDEN)
            for chunk, before in pairs
        ]
        return _HIDDEN_TWICE.sub(_HIDDEN, " ".join(redacted))

    def _replace_names(self, line: str) -> str:
        """Replace names that contain blanks or are surrounded by punctuation, keeping own words."""
        matches = [
            name
            for name in self._assigned
            if len(name) >= _MIN_NAME_LETTERS and name in line and not self.is_own(name)
        ]
        if not matches:
            return line
        longest_first = "|".join(map(re.escape, sorted(matches, key=len, reverse=True)))
        return re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", lambda found: self._assigned[found[0]], line)

    def _is_kept(self, chunk: str, previous: str) -> bool:
        core = strip_marks(chunk)
        if core in UNITS:
            return _is_number(strip_marks(previous))
        return self._is_disclosable(core) or all(map(self._is_disclosable, _PARTS.split(core)))

    def _is_disclosable(self, word: str) -> bool:
        own = self._own.words
        if word in own or word in PUBLIC_WORDS or _is_number(word) or _MARKS.fullmatch(word):
            return True
        if word.isupper() and word.lower() in own:
            return True
        if _PSEUDONYM.fullmatch(word):
            return word in self._assigned.values()
        return bool(_VERSION.fullmatch(word) or _FINDING.fullmatch(word))


def _is_number(word: str) -> bool:
    return bool(_NUMBER.fullmatch(word))


class AllowList:
    """Copies the allowed part of a tree of JSON values; ``dropped`` collects the omitted keys."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names
        self.dropped: set[str] = set()

    def filter_tree(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the allowed part of an object."""
        filtered = {}
        for key, entry in value.items():
            # Keys are zprof fields or ranks; other keys come from files.
            is_rank = key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS
            is_known = self._names.is_own(key) or is_rank
            filtered[key] = self._filter_value(key, entry) if is_known else self._drop(key)
        return {key: entry for key, entry in filtered.items() if entry is not _DROPPED}

    def _filter_value(self, key: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._filter_text(key, value)
        if key == "environment":
            return self._filter_variables(value)
        if isinstance(value, Mapping):
            return self.filter_tree(value) if key in _OBJECT_KEYS else self._drop(key)
        filtered = [self._filter_value(key, entry) for entry in value]
        return [entry for entry in filtered if entry is not _DROPPED]

    def _filter_variables(self, environment: Mapping[str, Any]) -> dict[str, str]:
        self.dropped |= {f"environment.{name}" for name in environment if name not in _VARIABLES}
        return {
            name: self._names.redact_text(str(value))
            for name, value in environment.items()
            if name in _VARIABLES
        }

    def _filter_text(self, key: str, text: str) -> Any:
        if key == "unit" and text in _UNITS:
            return text
        if key in _NAME_KINDS:
            return self._names.replace_name(text, _NAME_KINDS[key])
        if key == "unit":
            return self._names.replace_name(text, "module")
        if key == "group":
            return redact_group(text, self._names)
        return self._names.redact_text(text) if key in _TEXT_KEYS else self._drop(key)

    def _drop(self, key: str) -> Any:
        self.dropped.add(key)
        return _DROPPED


def redact_group(text: str, names: Pseudonyms) -> str:
    """Keep the ranks of a group and replace its name: ``0,1,2#mesh_fsdp`` becomes ``0,1,2#group-1``."""
    ranks, mark, name = text.partition("#")
    if ranks.replace(",", "").isdigit():
        return ranks + (mark + names.replace_name(name, "group") if mark else "")
    return names.replace_name(text, "group")
