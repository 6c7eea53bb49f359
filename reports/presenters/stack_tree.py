"""Build the icicle of the stacks that are live at the peak of a snapshot, outermost frames on top."""

from zprof.model.formatting import format_bytes, format_percent
from zprof.model.memory_history import StackNode, StackNodeKind, StackTree
from zprof.model.report import Report
from zprof.reports.page import Icicle, IcicleBox, Section, make_section
from zprof.reports.presenters.memory_formatting import (
    build_tenant_legend,
    get_tenant_class,
    largest_rank,
    shorten_frame,
    tenant_name,
)
from zprof.reports.presenters.memory_groups import count_blocks

_MAX_TEXT_ROWS = 40
_NAMES = {
    StackNodeKind.ROOT: "all live blocks",
    StackNodeKind.BEFORE: "before the history",
    StackNodeKind.NO_STACK: "no stack",
}


def build_stack_section(report: Report, *, in_text: bool = True) -> tuple[Section, ...]:
    """Build the tree of the largest rank; empty if unknown. ``in_text``: also in a terminal."""
    rank = largest_rank(report.memory.per_rank)
    trees = [tree for tree in report.memory.stacks if rank and tree.rank == rank.rank and tree.nodes]
    if not trees:
        return ()
    lead = "Live bytes at the peak by call stack, outermost frames first; the colour is the largest owner."
    return make_section(
        "stacks", "Stacks at the peak", lead, _build_icicle(trees[0], _MAX_TEXT_ROWS if in_text else 0)
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
        boxes.append(_make_box(node, depths[at], start, total, caller))
    return Icicle(
        title=f"Stacks at the peak of rank {tree.rank}, {tree.device}",
        boxes=tuple(boxes),
        legend=build_tenant_legend(),
        note="Frames of torch's internals and of the interpreter are left out.",
        max_text_rows=max_text_rows,
    )


def _make_box(node: StackNode, depth: int, start: int, total: int, caller: str) -> IcicleBox:
    frames = node.chain or filter(None, (node.frame or caller,))
    chain = " → ".join(map(shorten_frame, frames))
    owner = f"{count_blocks(node.blocks)}, mostly {tenant_name(node.tenant)}"
    return IcicleBox(
        depth=depth,
        start=round(100 * start / total, 3),
        width=round(100 * node.bytes / total, 3),
        colour=get_tenant_class(node.tenant),
        text=_name_node(node),
        values=(format_bytes(node.bytes), format_percent(node.bytes / total)),
        details=tuple(filter(None, (owner, chain))),
    )


def _name_node(node: StackNode) -> str:
    """Return the outermost and the innermost own frame of a node, and the operator that they called."""
    if node.kind is StackNodeKind.MERGED:
        return f"{node.branches:,} smaller branches"
    frames = dict.fromkeys([*node.chain[:1], node.frame])
    text = " → ".join(shorten_frame(frame, 0) for frame in frames if frame)
    named = ", ".join(part for part in (text, node.operator) if part)
    return _NAMES.get(node.kind) or named or "(unknown)"
