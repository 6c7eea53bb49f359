"""Build the live memory at the peak by allocation, with the reason for each tenant."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_percent, printable, shorten
from zprof.model.cursor import Cursor, get, read
from zprof.model.memory import Allocation, Basis, StackNode, StackNodeKind, StackTree
from zprof.model.quantities import ESTIMATE_SIGN, Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.reports.page import Icicle, IcicleBox, Section, make_section
from zprof.reports.pages.tenants import (
    CONFIDENCE_WORDS,
    PEAK,
    SHARE,
    SIZE,
    build_tenant_legend,
    find_largest_rank,
    get_tenant_class,
    largest_rank,
    make_tenant_cell,
    read_owned,
    tenant_name,
)
from zprof.reports.table import (
    MAX_LINES,
    Column,
    Kind,
    Opens,
    Row,
    Table,
    make_name_column,
    make_table,
)

_REASONS: Mapping[str, str] = {
    "tag": "the program tagged it",
    "library_workspace": "the workspace of a math library, by its frames",
    "cublas_workspace": "as large as the workspace of cuBLAS, and kept",
    "sharding_gather": "allocated to gather sharded parameters",
    "sharding_reduced_shard": "a reduced shard that lives until the optimizer",
    "sharding_reduce": "allocated to reduce gradients",
    "ddp_bucket": "a bucket of DistributedDataParallel",
    "collective": "allocated by a collective",
    "optimizer_init": "allocated where the optimizer initializes its state",
    "optimizer_long_lived": "allocated by the optimizer, and live in the next forward",
    "optimizer_from_before": "allocated by the optimizer before the history, and never freed",
    "optimizer_temporary": "allocated by the optimizer, and freed before the next forward",
    "clip_or_scale": "allocated to clip or scale gradients",
    "sharding_parameter": "allocated to shard parameters, and never freed",
    "module_setup": "allocated to set up a module, and never freed",
    "constructor": "allocated in a constructor, and never freed",
    "recomputed": "recomputed in the backward",
    "recomputed_at_the_end": "recomputed in the backward in which the history ends",
    "recompute_temporary": "freed while activations were recomputed",
    "backward_until_optimizer": "allocated in the backward, and live in the optimizer",
    "backward_outlived": "allocated in the backward, and live after it",
    "backward_temporary": "allocated and freed in the backward",
    "forward_until_backward": "allocated in the forward, and freed in the backward",
    "forward_name_until_backward": "allocated in a function named forward, and freed in the backward",
    "forward_in_running_backward": "from the forward, and live in the backward in which the history ends",
    "forward_output_kept": "allocated in the forward, and live after the backward",
    "forward_temporary": "allocated and freed in the forward",
    "forward_at_the_end": "allocated in the forward in which the history ends",
    "autocast_saved": "copied by autocast in the forward, and freed in the backward",
    "autocast": "copied by autocast, and freed without a backward",
    "saved_before": "older than the history, and freed in its first backward",
    "temporary_before": "older than the history, and freed in its first forward",
    "forward_keeps": "kept to the end of a forward that no backward follows",
    "forward_only_temporary": "allocated and freed in a forward that no backward follows",
    "forward_only_kept": "allocated in a forward that no backward follows, and never freed",
    "optimizer_at_the_end": "allocated by the optimizer in which the history ends",
    "replaces_parameter": "allocated by the optimizer in place of a parameter that it freed",
    "sizes_repeat_gradients": "sizes repeat those of the gradients",
    "sizes_repeat_parameters": "sizes repeat those of the parameters",
    "sums_to_gradients": "together as large as all gradients",
    "buckets_without_gradients": "buckets of DistributedDataParallel, and no gradients beside them",
    "lasts_in_one_set": "older than the history, never freed, and sizes that repeat like layers",
    "lasts_in_copies": "older than the history, never freed, and each size in equal copies",
    "lasts_without_gradient": "older than the history, never freed, and without gradients",
    "size_of_a_workspace": "as large as a workspace of cuBLAS, and kept",
}
ALLOCATION_TITLE = "Largest live allocations at the peak"
#: Maximum rows of the short table, and of the short and the long table in text.
_MAX_BRIEF, _MAX_BRIEF_TEXT, _MAX_TEXT = 8, 4, 8
_MAX_GROUPS, _MAX_GROUPS_SHORT = 20, 8
_MAX_FRAMES = 6
_NO_STACK = "no stack: allocated before recording started, or outside Python"
#: Minimum table width on a screen to show all columns.
_MIN_WIDTH = 100
#: Path parts of installed code, which is not user code.
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3")
#: Maximum length of a frame's path, of its line and function, and of an operator or kind name.
_MAX_PATH, _MAX_FUNCTION, _MAX_NAME = 60, 50, 60
_ALL_FOLDERS = 1_000
#: Kinds that add nothing to the tenant.
_OBVIOUS_KINDS = frozenset({"", "weight", "grad", "state", "saved"})
#: Prefixes that model wrappers add to module names.
_WRAPPER = re.compile(r"^(?:(?:module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?:\.|$))+")
_BASIS = {
    Basis.TAGGED: "recorded by a hook or tag",
    Basis.RULE: "inferred by a rule from its stack and lifetime",
    Basis.SIZES: "inferred from its size alone",
    Basis.UNKNOWN: "no rule matches",
}
_MAX_STACK_ROWS = 40
_NODE_NAMES = {
    StackNodeKind.ROOT: "all live blocks",
    StackNodeKind.BEFORE: "before the history",
    StackNodeKind.NO_STACK: "no stack",
}


def describe_reason(reason: str) -> str:
    """Return the sentence of a rule without its full stop; for an unknown rule, its name in words."""
    return _REASONS.get(reason) or reason.replace("_", " ")


def build_allocation_table(report: Report, rank: int | None = None, *, brief: bool = False) -> Table | None:
    """Build the table of the largest live allocations at the peak, for one rank or all ranks.

    For all ranks, allocations of the rank with the largest peak come first. ``brief``: fewer rows, without
    stacks.
    """
    memory = Cursor(report).memory
    largest = largest_rank(report.memory.per_rank)
    entries = [(at, entry) for at, entry in enumerate(memory.top) if rank in (None, get(entry).rank)]
    entries.sort(key=lambda item: largest is None or get(item[1]).rank != largest.rank)
    rows = [_build_allocation_row(at, entry, of_all_ranks=rank is None) for at, entry in entries]
    if brief:
        rows = [replace(row, below=()) for row in rows[:_MAX_BRIEF]]
    return make_table(
        f"{ALLOCATION_TITLE}{'' if rank is None else f', rank {rank}'}",
        _make_allocation_columns(of_all_ranks=rank is None),
        rows,
        name="top",
        help="Press enter on a row for the full call stack, and on a size to explain the number.",
        max_rows=MAX_LINES,
        max_text_rows=_MAX_BRIEF_TEXT if brief else _MAX_TEXT,
        total=len(entries),
        noun="allocations",
        below="" if brief else "where",
    )


def _make_allocation_columns(*, of_all_ranks: bool) -> tuple[Column, ...]:
    return (
        Column(
            title="module",
            kind=Kind.NAME,
            help="module whose forward or backward allocated it; in brackets the blocks of a snapshot's "
            "group, else the kind of memory",
        ),
        *([Column(title="rank")] if of_all_ranks else []),
        SIZE,
        Column(
            title="tenant",
            kind=Kind.TEXT,
            help=f"{ESTIMATE_SIGN} prefix: known by the sizes of the blocks alone",
        ),
        Column(title="kind", kind=Kind.NAME, from_width=_MIN_WIDTH),
        Column(
            title="allocated at",
            kind=Kind.TEXT,
            help="innermost stack frame of the user's program",
            screen_only=True,
        ),
        Column(title="operator", kind=Kind.TEXT, from_width=_MIN_WIDTH, screen_only=True),
    )


def _build_allocation_row(index: int, place: Cursor, *, of_all_ranks: bool) -> Row:
    entry: Allocation = get(place)
    size_name = "bytes" if entry.total_bytes is None else "total_bytes"
    frames = select_user_frames(entry.stack, _MAX_FRAMES)
    more = (f"of {len(entry.stack)} frames",) if len(entry.stack) > len(frames) else ()
    return Row(
        key=str(index),
        cells=(
            _name_module(entry),
            *([str(entry.rank)] if of_all_ranks else []),
            read_owned(place, size_name),
            make_tenant_cell(entry.tenant, ESTIMATE_SIGN * (entry.basis is Basis.SIZES)),
            entry.sub,
            _name_frame(entry),
            entry.operator,
        ),
        opens=Opens.ALLOCATION,
        target=index,
        below=tuple(part for part in (entry.operator, *frames, *more) if part) or (_NO_STACK,),
    )


def _name_module(entry: Allocation) -> str:
    """Return the module of an allocation, the blocks of a group, or the kind of memory."""
    if entry.module:
        return strip_wrappers(entry.module) or "(entire model)"
    if entry.total_bytes is not None:
        return f"({count_blocks(entry.count)})"
    return f"({entry.sub.replace('_', ' ') or 'no module'})"


def strip_wrappers(module: str) -> str:
    """Return a module name without model wrappers; empty for the model or its wrapper."""
    return _WRAPPER.sub("", module)


def _name_frame(entry: Allocation) -> str:
    """Return the allocating frame, or why it is unknown."""
    if entry.groups > 1 or entry.before:
        return f"({name_place(entry)})"
    return (entry.where or find_user_frame(entry)).rpartition("/")[2] or "(no stack)"


def find_user_frame(entry: Allocation) -> str:
    """Return the innermost frame of user code, else the innermost frame; empty without a stack."""
    frames = select_user_frames(("", *entry.stack), 2)
    return frames[1] if len(frames) > 1 else ""


def describe_allocation(report: Report, index: int) -> tuple[str, str]:
    """Return the title and text of one of the largest allocations, with its full stack."""
    place = Cursor(report).memory.top[index]
    entry: Allocation = get(place)
    kind = ": ".join(part for part in (tenant_name(entry.tenant), entry.sub) if part)
    sure = f" ({CONFIDENCE_WORDS[entry.confidence]})" if entry.confidence else ""
    lines = [
        f"rank      {entry.rank}, live at its peak",
        f"tenant    {printable(kind)} ({_BASIS[entry.basis]})",
        f"module    {printable(strip_wrappers(entry.module)) or '(none)'}",
        f"operator  {printable(entry.operator) or '(none recorded)'}",
        *([f"reason    {printable(describe_reason(entry.reason))}{sure}"] if entry.reason else []),
        *([f"blocks    {describe_blocks(entry)}"] if entry.total_bytes is not None else []),
        "",
    ]
    if not entry.stack:
        lines.append(_NO_STACK)
    else:
        lines += ["allocation stack, innermost first", *(f"  {printable(frame)}" for frame in entry.stack)]
    return f"{read(place.bytes).text} {printable(kind)}", "\n".join(lines)


def build_group_table(report: Report, *, short: bool = False) -> Table | None:
    """Build the group table of the largest rank; its rows sum to the peak."""
    memory = Cursor(report).memory
    rank = find_largest_rank(memory.per_rank)
    if rank is None:
        return None
    groups = [entry for entry in memory.top if get(entry).rank == get(rank).rank]
    sizes = [entry["bytes" if get(entry).total_bytes is None else "total_bytes"] for entry in groups]
    max_groups = _MAX_GROUPS_SHORT if short else _MAX_GROUPS
    names = name_groups([get(entry) for entry in groups])
    rows = [
        Row(
            cells=(
                name,
                replace(read(size), is_estimate=get(entry).basis is Basis.SIZES),
                read(size, rank.peak_bytes, how=Aggregation.SHARE),
            ),
            below=(_describe_group(get(entry)),),
        )
        for name, entry, size in zip(names, groups, sizes, strict=True)
    ][:max_groups]
    rest = read(rank.peak_bytes, *sizes[:max_groups], how=Aggregation.DIFFERENCE)
    if rest.number:
        count = sum(get(entry).groups for entry in groups[max_groups:])
        share = Value(rest.number / get(rank).peak_bytes, Unit.RATIO)
        rows.append(Row(cells=(f"{count} more", rest, share)))
    rows.append(Row(cells=(PEAK, read(rank.peak_bytes), ""), total=True))
    return make_table(
        "Largest groups",
        (make_name_column("owner and place of allocation"), SIZE, SHARE),
        rows,
        note=f"live at the peak of rank {get(rank).rank}",
        max_text_rows=len(rows),
        below="blocks",
    )


def _describe_group(entry: Allocation) -> str:
    """Describe the number and size of the blocks, and the calling frame of user code."""
    start = entry.stack.index(entry.where) + 1 if entry.where in entry.stack else len(entry.stack)
    caller = next((shorten_frame(frame, 0) for frame in entry.stack[start:] if not is_installed(frame)), "")
    merged = f"{entry.groups:,} groups, " if entry.groups > 1 else ""
    return f"{merged}{describe_blocks(entry)}{f'; called from {caller}' if caller else ''}"


def describe_blocks(entry: Allocation) -> str:
    """Describe the number of blocks and their size range."""
    smallest, largest = format_bytes(entry.smallest_bytes or entry.bytes), format_bytes(entry.bytes)
    if entry.count == 1:
        return count_blocks(1)
    sizes = f"of {largest} each" if smallest == largest else f"of {smallest} to {largest}"
    return f"{count_blocks(entry.count)} {sizes}"


def count_blocks(count: int) -> str:
    """Format a number of blocks."""
    return f"{count:,} block{'' if count == 1 else 's'}"


def name_groups(groups: Sequence[Allocation]) -> list[str]:
    """Return a name for each group; equal names get more detail.

    Pass all groups of a peak, not only displayed groups, to get the same name for a group on every page.
    """
    names = [_name_group(entry, 0, in_full=False) for entry in groups]
    for folders in (0, 2, _ALL_FOLDERS):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else _name_group(entry, folders, in_full=True)
            for name, entry in zip(names, groups, strict=True)
        ]
    return names


def _name_group(entry: Allocation, folders: int, *, in_full: bool) -> str:
    is_named = entry.sub and (in_full or entry.sub not in _OBVIOUS_KINDS)
    sub = f" ({shorten(printable(entry.sub.replace('_', ' ')), _MAX_NAME)})" if is_named else ""
    return f"{tenant_name(entry.tenant)}{sub}: {name_place(entry, folders, in_full=in_full)}"


def name_place(entry: Allocation, folders: int = 0, *, in_full: bool = False) -> str:
    """Return the allocation site of a group: frame and operator, or why it is unknown."""
    if entry.groups > 1:
        return "smaller groups"
    if entry.before:
        reason = describe_reason(entry.reason)
        return f"before the history{f', {reason}' if in_full and reason else ''}"
    frame = shorten_frame(entry.where, folders)
    if not frame and not entry.operator:
        return shorten_frame(entry.stack[0], folders) if entry.stack else "no stack"
    operator = shorten(printable(entry.operator), _MAX_NAME)
    return ", ".join(part for part in (frame, operator) if part)


def is_installed(frame: str) -> bool:
    """Return True for a frame of an installed package or of Python itself."""
    return any(folder in frame for folder in _INSTALLED)


def shorten_frame(frame: str, folders: int = _ALL_FOLDERS) -> str:
    """Return a frame with the last ``folders`` folders of its path, in about 100 characters.

    A long path keeps its end, a long function name its start.
    """
    path, colon, rest = printable(frame).partition(":")
    path = "/".join(path.split("/")[-folders - 1 :])
    path = path if len(path) <= _MAX_PATH else f"…{path[1 - _MAX_PATH :]}"
    return f"{path}{colon}{shorten(rest, _MAX_FUNCTION)}"


def select_user_frames(stack: Sequence[str], max_frames: int) -> tuple[str, ...]:
    """Return the innermost frame and the frames of user code; without user code, the innermost frames.

    Paths are cut to the last two folders; the report data has full paths.
    """
    own = [frame for frame in stack[1:] if not is_installed(frame)]
    chosen = [*stack[:1], *own] if own else list(stack)
    return tuple(shorten_frame(frame, 2) for frame in chosen[:max_frames])


def build_stack_section(report: Report, *, in_text: bool = True) -> tuple[Section, ...]:
    """Build the allocation tree of the largest rank; empty if unknown. ``in_text``: also in a terminal."""
    rank = largest_rank(report.memory.per_rank)
    trees = [tree for tree in report.memory.stacks if rank and tree.rank == rank.rank and tree.nodes]
    if not trees:
        return ()
    lead = "Live bytes at the peak by call stack, outermost frames first; the colour is the largest owner."
    return make_section(
        "stacks", "Stacks at the peak", lead, _build_icicle(trees[0], _MAX_STACK_ROWS if in_text else 0)
    )


def _build_icicle(tree: StackTree, max_text_rows: int) -> Icicle:
    total = max(1, tree.nodes[0].bytes)
    boxes: list[IcicleBox] = []
    depths: list[int] = []
    inner_frames: list[str] = []
    next_starts: list[int] = []  # where the next child of a node starts, in bytes
    for at, node in enumerate(tree.nodes):
        start = next_starts[node.parent] if at else 0
        if at:
            next_starts[node.parent] += node.bytes
        depths.append(depths[node.parent] + 1 if at else 0)
        next_starts.append(start)
        caller = "" if at == 0 else inner_frames[node.parent]
        inner_frames.append((node.chain or (node.frame,))[-1] or caller)
        chain = " → ".join(map(shorten_frame, node.chain or filter(None, (node.frame or caller,))))
        owner = f"{count_blocks(node.blocks)}, mostly {tenant_name(node.tenant)}"
        boxes.append(
            IcicleBox(
                depth=depths[at],
                start=round(100 * start / total, 3),
                width=round(100 * node.bytes / total, 3),
                colour=get_tenant_class(node.tenant),
                text=_name_node(node),
                values=(format_bytes(node.bytes), format_percent(node.bytes / total)),
                details=tuple(filter(None, (owner, chain))),
            )
        )
    return Icicle(
        title=f"Stacks at the peak of rank {tree.rank}, {tree.device}",
        boxes=tuple(boxes),
        legend=build_tenant_legend(),
        note="Frames of torch's internals and of the interpreter are left out.",
        max_text_rows=max_text_rows,
    )


def _name_node(node: StackNode) -> str:
    """Return a node's outermost and innermost own frame, and the operator called."""
    if node.kind is StackNodeKind.MERGED:
        return f"{node.branches:,} smaller branches"
    frames = dict.fromkeys([*node.chain[:1], node.frame])
    text = " → ".join(shorten_frame(frame, 0) for frame in frames if frame)
    named = ", ".join(part for part in (text, node.operator) if part)
    return _NODE_NAMES.get(node.kind) or named or "(unknown)"
