"""Groups and the tree of stacks hold the peak to the byte, whatever the history, and name the user's code."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.hostile_names import NAMES
from tests.support.snapshot_histories import (
    CALL,
    FORWARD,
    MAIN,
    TORCH,
    Frames,
    at,
    tables_of,
    trained,
    written,
)
from tests.support.snapshots import random_history
from zprof.analysis.memory.analyse import compare_groups
from zprof.analysis.memory.attribution.assign import attribute_history
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import find_allocated_peak, find_live_blocks, read_history
from zprof.analysis.memory.snapshot import analyse_snapshot_rank, measure_growth
from zprof.analysis.memory.stacks import MAX_GROUPS, MAX_NODES, build_stack_tree, list_largest_groups
from zprof.analysis.memory.state_checks import RankMemoryResult
from zprof.analysis.memory.tables import Timeline
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.model.memory import Memory, StackNodeKind

NO_STEPS = Timeline(begin_ns=0, end_ns=0, steps=[], step_ends=[], phases=[])
EINOPS = "/venv/lib/python3.11/site-packages/einops/"
LLAMA = "/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"


def native(function: str, file: str = "??") -> dict[str, Any]:
    return {"filename": file, "line": 0, "name": function}


ALLOCATE = native("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, int)")
EMPTY = native("at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)")
EXP = native("at::_ops::exp::call(at::Tensor const&)")
MULTIPLY = native("at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)")
CAST = [
    EMPTY,
    native("at::_ops::_to_copy::call(at::Tensor const&)"),
    native("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)"),
    native("at::_ops::einsum::call(std::string_view)"),
]
BACKWARD = [
    EMPTY,
    native("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"),
    native("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"),
    native("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)"),
]
INTERPRETER = [
    native("_PyEval_EvalFrameDefault", "/usr/src/python3.12/Python/bytecodes.c"),
    native("slot_tp_call", "/usr/src/python3.12/Objects/typeobject.c"),
]


def imported(path: Path, *allocators: Allocator) -> RankMemoryResult:
    return analyse_snapshot_rank(written(path, convert_snapshot(snapshot_of(*allocators)).tables()), 0)


def with_frames(*stacks: Frames) -> Allocator:
    """A block of a MiB for each stack."""
    allocator = Allocator()
    allocator.begin_history()
    for frames in stacks:
        allocator.tick(10)
        allocator.alloc(MIB, frames=frames)
    return allocator


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_groups_tree_and_growth_hold_every_byte_of_the_peak(seed: int) -> None:
    tables = tables_of(random_history(seed, 120))
    history = read_history(tables["block"], tables["segment"], "cuda:0")
    if history is None or not len(history.blocks):
        return
    blocks, stacks = history.blocks, StackIndex(tables["stack"])
    names, _, _ = attribute_history(blocks, stacks)
    peak_ns, peak_bytes = find_allocated_peak(history)
    rows = find_live_blocks(blocks, peak_ns)
    groups = list_largest_groups(0, blocks, rows, names, stacks)
    assert sum(group.held_bytes for group in groups) == peak_bytes
    assert sum(group.count for group in groups) == len(rows)
    root, *others = build_stack_tree(0, "cuda:0", blocks, rows, names, stacks).nodes
    nodes = (root, *others)
    assert (root.bytes, root.blocks, root.parent) == (peak_bytes, len(rows), -1)
    for at_node, node in enumerate(nodes):
        children = [child for child in nodes if child.parent == at_node]
        assert sum(child.bytes for child in children) <= node.bytes
        assert all(nodes.index(child) > at_node for child in children)
    assert sum(child.bytes for child in others if child.parent == 0) == peak_bytes
    growth = measure_growth(0, history, NO_STEPS, peak_ns, names, stacks)
    assert sum(growth.grown_bytes.values()) == growth.peak_bytes - growth.start_bytes
    assert growth.peak_bytes == peak_bytes


def test_a_group_is_named_by_the_users_frame_and_the_operator(tmp_path: Path) -> None:
    model = at("/home/user/model.py", "softmax")
    helper = [at(TORCH + "functional.py", "einsum"), at(EINOPS + "einops.py", "einsum")]
    llama = [at(TORCH + "nn/functional.py", "linear"), at(TORCH + "nn/modules/linear.py", "forward"), CALL]
    allocator = with_frames(
        [ALLOCATE, EMPTY, EXP, *INTERPRETER, model, CALL, MAIN],
        [ALLOCATE, EMPTY, EXP, model, *INTERPRETER, CALL, at("/home/user/train.py", "other")],
        [*CAST, *helper, model, CALL, MAIN],
        [MULTIPLY, *llama, at(LLAMA, "forward"), CALL, MAIN],
        BACKWARD,
        [at(TORCH + "nn/functional.py", "linear"), model, MAIN],
    )
    found = {(group.where, group.operator): group.count for group in imported(tmp_path, allocator).top}
    assert found == {
        ("/home/user/model.py:7 softmax", "exp"): 2,
        ("/home/user/model.py:7 softmax", "_to_copy by autocast"): 1,
        (f"{LLAMA}:7 forward", "mul"): 1,
        ("", "MmBackward0"): 1,
        ("/home/user/model.py:7 softmax", "linear"): 1,
    }


def test_blocks_from_before_the_history_are_one_group_per_owner(tmp_path: Path) -> None:
    allocator = Allocator()
    for size in (1, 2, 3, 4):
        allocator.alloc(size * MIB)
    allocator.begin_history()
    allocator.tick(10)
    allocator.alloc(MIB, frames=[MAIN])
    first, second = imported(tmp_path, allocator).top
    assert (first.before, first.count, first.held_bytes) == (True, 4, 10 * MIB)
    assert (first.smallest_bytes, first.bytes) == (MIB, 4 * MIB)
    assert (second.before, second.count, second.total_bytes) == (False, 1, None)


def test_the_smallest_groups_and_branches_are_merged(tmp_path: Path) -> None:
    stacks: list[Frames] = [
        [at(f"/home/user/file{number}.py", "inner"), at("/home/user/train.py", f"outer{number}"), MAIN]
        for number in range(2 * MAX_NODES)
    ]
    result = imported(tmp_path, with_frames(*stacks))
    *listed, rest = result.top
    assert len(listed) == MAX_GROUPS
    assert (rest.groups, rest.count) == (2 * MAX_NODES - MAX_GROUPS, 2 * MAX_NODES - MAX_GROUPS)
    (tree,) = result.stacks
    assert len(tree.nodes) <= MAX_NODES
    merged = [node for node in tree.nodes if node.kind is StackNodeKind.MERGED]
    assert sum(node.branches for node in merged) + len(tree.nodes) - len(merged) - 2 == 2 * MAX_NODES


def test_frames_that_call_nothing_else_are_one_node(tmp_path: Path) -> None:
    model, loop = at("/home/user/model.py", "softmax"), at("/home/user/train.py", "loop")
    (tree,) = imported(tmp_path, with_frames([EXP, model, loop, MAIN], [MULTIPLY, loop, MAIN])).stacks
    _, outer, first, second = tree.nodes
    assert outer.chain == ("/home/user/train.py:7 main", "/home/user/train.py:7 loop")
    assert {(first.frame, first.operator), (second.frame, second.operator)} == {
        ("/home/user/model.py:7 softmax", "exp"),
        ("", "mul"),
    }


def test_hostile_frames_are_only_text(tmp_path: Path) -> None:
    stacks: list[Frames] = [[at(name, name), at(f"{name}.py", name), MAIN] for name in NAMES]
    result = imported(tmp_path, with_frames(*stacks))
    assert (
        sum(group.held_bytes for group in result.top) == len(NAMES) * MIB == result.stacks[0].nodes[0].bytes
    )


def test_growth_starts_at_the_end_of_the_step_before(tmp_path: Path) -> None:
    program = trained(2)
    program.forward()
    program.alloc(60 * MIB, FORWARD)
    (growth,) = imported(tmp_path, program.allocator).growth
    state_bytes = 3 * 3 * 4 * MIB
    assert state_bytes <= growth.start_bytes <= 1.1 * state_bytes, "between two steps only that is live"
    assert growth.largest[0].where == "/home/user/model.py:7 forward"


def test_changes_of_groups_sum_to_the_change_of_the_peak_and_follow_moved_lines(tmp_path: Path) -> None:
    def frame(line: int, function: str = "forward") -> dict[str, Any]:
        return {"filename": "/home/user/model.py", "line": line, "name": function}

    sides = []
    for name, stacks in (
        ("a", [[frame(10)], [frame(20)], [frame(20)], [frame(5, "old")]]),
        ("b", [[frame(12)], [frame(22)], [frame(22)], [frame(22)], [frame(30, "new")], [frame(31, "new")]]),
    ):
        result = imported(tmp_path / name, with_frames(*stacks))
        sides.append(Memory(per_rank=result.per_rank, top=result.top, growth=result.growth))
    changes = compare_groups(*sides)
    assert sum(change.delta_bytes for change in changes) == 2 * MIB
    deltas = {change.where.partition(":")[2]: change.delta_bytes // MIB for change in changes}
    assert deltas == {"12 forward": 0, "22 forward": 1, "30 new": 1, "31 new": 1, "5 old": -1}
    sizes = [abs(change.delta_bytes) for change in changes]
    assert sizes == sorted(sizes, reverse=True), "what shrank is listed like what grew"
    assert compare_groups(Memory(), sides[0]) == ()
