"""Every rule on a program whose owners are known, and on one that looks like it and is not."""

import numpy as np
import pytest
from history_tables import Told, frames_of, told
from training_history import (
    ALL_GATHER,
    BARE,
    BUCKETS,
    CALL,
    FORWARD,
    MAIN,
    RECOMPUTE,
    REDUCE,
    STATE,
    STEP,
    TO_DEVICE,
    TORCH,
    WRAPPER,
    Frames,
    Training,
    at,
)

from tests.support.snapshots import MIB, Allocator
from zprof.analysis.memory.stack_origins import Stacks
from zprof.model.findings import Confidence
from zprof.model.memory import Basis

UNKNOWN = ("untagged", "")


def trained(steps: int = 2, *, fused: bool = False) -> Training:
    program = Training(fused=fused)
    program.build()
    for _ in range(steps):
        program.step()
    return program


def kinds(seen: Told, addresses: list[int]) -> set[tuple[str, str]]:
    return {seen.of(address) for address in addresses}


@pytest.mark.parametrize("fused", [False, True])
def test_a_training_program_is_named_block_by_block(fused: bool) -> None:
    program = trained(3, fused=fused)
    seen = told(program.allocator)
    assert kinds(seen, program.parameters) == {("parameters", "weight")}
    assert kinds(seen, program.state) == {("optimizer_state", "state")}
    blocks = seen.history.blocks
    made: dict[tuple[int, bool], set[tuple[str, str]]] = {}
    for row in range(len(blocks)):
        key = (int(blocks.requested_bytes[row]) // MIB, int(blocks.stack[row]) == -1)
        made.setdefault(key, set()).add(seen.of_row(row))
    assert made[2, False] == {("temporary_buffers", "op_workspace")}
    assert made[3, False] == {("activations", "saved")}
    assert made[4, True] == {("gradients", "grad")}
    if not fused:
        assert made[3, True] == {("temporary_buffers", "act_grad")}
        assert ("temporary_buffers", "optimizer") in made[4, False]
    assert UNKNOWN not in set().union(*made.values())


def test_the_same_block_has_the_same_tenant_in_every_step() -> None:
    program = trained(4)
    seen = told(program.allocator)
    blocks, names = seen.history.blocks, seen.names
    gradients = (blocks.requested_bytes == 4 * MIB) & (blocks.stack == -1)
    assert gradients.sum() == 4 * 3
    assert {names.tenant_name(int(row)) for row in np.flatnonzero(gradients)} == {"gradients"}


def test_forward_in_a_name_does_not_win_over_an_optimizer() -> None:
    program = trained(1)
    outer = [at("/home/user/train.py", "forward"), at("/home/user/train.py", "forward_and_step")]
    below = [STATE[0], STATE[1], WRAPPER, *outer, MAIN]
    state = program.alloc(5 * MIB, below)
    inner = [at("/home/user/forward_helpers.py", "forward"), at("/home/user/lion.py", "step"), WRAPPER, MAIN]
    helped = program.alloc(6 * MIB, inner)
    for _ in range(2):
        program.step()
    seen = told(program.allocator)
    assert seen.of(state) == ("optimizer_state", "state")
    assert seen.of(helped) == ("optimizer_state", "state")


def test_the_model_within_an_optimizers_closure_is_a_forward_pass() -> None:
    program = Training()
    program.build()
    closure = [at("/home/user/train.py", "closure"), at(TORCH + "optim/lbfgs.py", "step"), WRAPPER, MAIN]
    saved = program.alloc(3 * MIB, [FORWARD[0], CALL, *closure])
    program.alloc(4 * MIB, BARE)
    program.free([saved])
    program.alloc(1 * MIB, STEP)
    assert told(program.allocator).of(saved) == ("activations", "saved")


def test_a_name_that_only_contains_a_word_tells_nothing() -> None:
    program = Training()
    program.build()
    frames = [at("/home/user/adam_forward_backward.py", "forward_backward_optimizer_step"), MAIN]
    address = program.alloc(9 * MIB, frames)
    program.step()
    assert told(program.allocator).of(address) == UNKNOWN


def test_optimizer_memory_of_an_unfinished_step_is_not_called_state() -> None:
    program = trained(1)
    new = program.alloc(7 * MIB, STEP)  # the history ends within the optimizer's step: temporary or state?
    kept = program.alloc(8 * MIB, STATE)
    seen = told(program.allocator)
    assert seen.of(new) == UNKNOWN
    assert seen.of(kept) == ("optimizer_state", "state")


def test_state_that_was_there_before_is_state_and_freed_is_not() -> None:
    program = Training()
    program.allocator.begin_history(max_entries=40)
    before = [program.alloc(4 * MIB, frames) for frames in (STEP, STEP, TO_DEVICE, BARE)]
    for _ in range(2):
        program.step()
    program.free([before[1]])
    program.step()
    seen = told(program.allocator)
    assert seen.history.blocks.before[seen.row(before[0])]
    assert seen.of(before[0]) == ("optimizer_state", "state")
    assert seen.of(before[2]) == ("parameters", "weight")
    assert seen.of(before[3]) == UNKNOWN


def test_gradients_kept_over_the_step_are_gradients() -> None:
    program = trained(1)
    saved = program.forward()
    kept = program.backward(saved)
    program.optimize()
    program.backward(program.forward())
    program.optimize()
    assert kinds(told(program.allocator), kept) == {("gradients", "grad")}


def test_without_a_forward_pass_a_block_without_frames_has_no_owner() -> None:
    program = Training()
    program.allocator.begin_history()
    lone = program.alloc(4 * MIB, BARE)
    program.alloc(4 * MIB, STEP)
    seen = told(program.allocator)
    assert seen.of(lone) == UNKNOWN


def test_a_forward_pass_from_before_the_history_tells_no_backward() -> None:
    program = Training()
    for _ in range(2):
        program.alloc(3 * MIB, FORWARD)
    program.allocator.begin_history()
    lone = program.alloc(4 * MIB, BARE)
    program.alloc(1 * MIB, STEP)
    assert told(program.allocator).of(lone) == UNKNOWN


def test_inference_is_temporary_or_unknown_and_never_an_activation() -> None:
    program = Training()
    program.build()
    kept = [program.forward() for _ in range(3)]
    program.free(kept[0])
    seen = told(program.allocator)
    assert kinds(seen, kept[0]) == {("temporary_buffers", "op_workspace")}
    assert kinds(seen, kept[2]) == {UNKNOWN}


def test_what_a_forward_keeps_for_ever_is_unknown() -> None:
    program = trained(1)
    cache = program.alloc(6 * MIB, FORWARD)
    for _ in range(2):
        program.step()
    assert told(program.allocator).of(cache) == UNKNOWN


def test_an_output_that_outlives_its_backward_is_kept() -> None:
    program = trained(1)
    logits = program.alloc(6 * MIB, FORWARD)
    program.step()
    saved = program.forward()
    program.free([logits])
    program.backward(saved)
    assert told(program.allocator).of_size(6 * MIB) == ("activations", "kept")


def test_a_recomputed_block_and_a_temporary_of_the_recompute() -> None:
    program = trained(1)
    saved = program.forward()
    again, short = program.alloc(6 * MIB, RECOMPUTE), program.alloc(7 * MIB, RECOMPUTE)
    last = program.alloc(MIB, RECOMPUTE)
    program.free([short, last])
    gradients = program.backward(saved)
    program.free([again])
    program.optimize()
    program.free(gradients)
    seen = told(program.allocator)
    assert seen.of_size(6 * MIB) == ("activations", "recomputed")
    assert seen.of_size(7 * MIB) == ("temporary_buffers", "op_workspace")


def test_a_checkpointed_forward_is_no_recompute() -> None:
    program = trained(1)
    saved = program.alloc(6 * MIB, [FORWARD[0], CALL, at(TORCH + "utils/checkpoint.py", "checkpoint"), MAIN])
    rest = program.forward()
    gradients = program.backward(rest)
    program.free([saved])
    program.optimize()
    program.free(gradients)
    assert told(program.allocator).of_size(6 * MIB) == ("activations", "saved")


def test_sharding_and_collectives_are_communication() -> None:
    program = trained(1)
    gathered = program.alloc(12 * MIB, ALL_GATHER)
    collective = program.alloc(
        13 * MIB, [at(TORCH + "distributed/distributed_c10d.py", "all_gather_object"), MAIN]
    )
    buckets = program.alloc(14 * MIB, BUCKETS)
    saved = program.forward()
    program.backward(saved)
    scratch, shard = program.alloc(15 * MIB, REDUCE), program.alloc(16 * MIB, REDUCE)
    program.free([scratch])
    program.optimize()
    program.free([shard])
    seen = told(program.allocator)
    assert seen.of(gathered) == ("communication_buffers", "gathered_param")
    assert seen.of(collective) == ("communication_buffers", "collective")
    assert seen.of(buckets) == ("communication_buffers", "bucket")
    assert seen.of_size(15 * MIB) == ("communication_buffers", "reduce_scatter")
    assert seen.of_size(16 * MIB) == ("gradients", "shard")


def test_shards_that_stay_are_parameters_and_those_given_back_are_not() -> None:
    program = trained(1)
    shard = [at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param.py", "_init_sharded_param"), MAIN]
    program.alloc(9 * MIB, shard)
    gone = program.alloc(10 * MIB, shard)
    program.free([gone])
    program.step()
    seen = told(program.allocator)
    assert seen.of_size(9 * MIB) == ("parameters", "shard")
    assert seen.of_size(10 * MIB) == UNKNOWN


def test_a_history_that_ends_in_a_recompute_names_it_with_low_confidence() -> None:
    program = trained(1)
    program.forward()
    again = program.alloc(9 * MIB, RECOMPUTE)
    seen = told(program.allocator)
    assert seen.of(again) == ("activations", "recomputed")
    row = np.array([seen.row(again)])
    sure = seen.names.confidence_bytes(row, seen.history.blocks.requested_bytes)
    assert sure == {Confidence.HIGH: 0, Confidence.MEDIUM: 0, Confidence.LOW: 9 * MIB}


def test_what_ddp_copies_for_its_caller_is_no_bucket() -> None:
    program = trained(1)
    copies = [
        at(TORCH + "distributed/utils.py", "_to_kwargs"),
        at(TORCH + "nn/parallel/distributed.py", "_pre_forward"),
    ]
    moved = program.alloc(9 * MIB, [*copies, MAIN])
    program.step()
    assert told(program.allocator).of(moved) == UNKNOWN


def test_a_modules_setup_that_is_given_back_is_no_parameter() -> None:
    program = trained(1)
    short = program.alloc(9 * MIB, TO_DEVICE)
    program.free([short])
    program.step()
    assert told(program.allocator).of_size(9 * MIB) == UNKNOWN


def test_a_cache_made_by_a_constructor_below_a_forward_is_not_a_parameter() -> None:
    program = trained(1)
    frames = [at("/home/user/cache.py", "__init__"), FORWARD[1], CALL, MAIN]
    cache = program.alloc(9 * MIB, frames)
    made = program.alloc(10 * MIB, [at("/home/user/model.py", "__init__"), MAIN])
    program.step()
    seen = told(program.allocator)
    assert seen.of(cache) == UNKNOWN
    assert seen.of(made) == ("parameters", "weight")


def test_clipping_is_temporary() -> None:
    program = trained(1)
    saved = program.forward()
    program.backward(saved)
    norms = program.alloc(MIB, [at(TORCH + "nn/utils/clip_grad.py", "_get_total_norm"), MAIN])
    program.free([norms])
    program.optimize()
    assert told(program.allocator).of_size(MIB) == ("temporary_buffers", "clip")


@pytest.mark.parametrize(("frames", "kind"), [(FORWARD, "workspace"), (BARE, "workspace")])
def test_the_workspace_of_cublas_is_not_taken_for_a_gradient(frames: Frames, kind: str) -> None:
    program = Training()
    program.build()
    saved = program.forward()
    workspace = program.alloc(8_519_680, frames)
    program.backward(saved)
    program.optimize()
    program.step()
    assert told(program.allocator).of(workspace) == ("temporary_buffers", kind)


def test_an_unfinished_backward_is_told_from_the_step_before() -> None:
    program = trained(2)
    saved = program.forward()
    flowing = program.alloc(3 * MIB, BARE)
    gradient = program.alloc(4 * MIB, BARE)
    strange = program.alloc(5 * MIB, BARE)
    seen = told(program.allocator)
    assert seen.of(flowing) == ("temporary_buffers", "act_grad")
    assert seen.of(gradient) == ("gradients", "grad")
    assert seen.of(strange) == UNKNOWN
    assert kinds(seen, saved) == {("activations", "saved")}
    assert seen.names.by_twin[seen.row(gradient)] == 1


def test_an_unfinished_forward_is_told_from_the_step_before() -> None:
    program = trained(2)
    workspace, saved = program.alloc(2 * MIB, FORWARD), program.alloc(3 * MIB, FORWARD)
    new = program.alloc(5 * MIB, FORWARD)
    seen = told(program.allocator)
    assert seen.of(workspace) == ("temporary_buffers", "op_workspace")
    assert seen.of(saved) == ("activations", "saved")
    assert seen.of(new) == ("activations", "saved")
    assert seen.names.by_twin[seen.row(new)] == 0


def test_a_tag_wins_over_every_rule_and_another_text_is_no_tag() -> None:
    program = trained(1)
    tagged = program.alloc(3 * MIB, FORWARD, tag="zprof:communication_buffers/kv_cache")
    noted = program.alloc(4 * MIB, FORWARD, tag="forward")
    odd = program.alloc(5 * MIB, BARE, tag="zprof:nobody")
    foreign = program.alloc(6 * MIB, BARE, tag="notes:activations")
    seen = told(program.allocator)
    assert seen.of(tagged) == ("communication_buffers", "kv_cache")
    assert seen.names.basis_of(seen.row(tagged)) is Basis.TAGGED
    assert seen.names.basis_of(seen.row(noted)) is Basis.RULE
    assert seen.names.basis_of(seen.row(odd)) is not Basis.TAGGED
    assert seen.names.basis_of(seen.row(foreign)) is not Basis.TAGGED


def test_qualified_names_windows_paths_and_cpp_frames() -> None:
    program = trained(1)
    qualified = [at("C:\\env\\torch\\optim\\adam.py", "Adam._init_group"), at("C:\\x\\train.py", "main")]
    state = program.alloc(5 * MIB, qualified)
    program.step()
    called = [
        at(TORCH + "nn/functional.py", "linear"),
        at(TORCH + "nn/modules/module.py", "Module._call_impl"),
    ]
    output = program.alloc(7 * MIB, called)
    saved = program.forward()
    engine = [at("??", "torch::autograd::Engine::evaluate_function"), at("/build/libtorch.cpp", "forward")]
    flowing = program.alloc(6 * MIB, engine)
    program.free([flowing])
    program.backward(saved)
    program.free([output])
    program.optimize()
    seen = told(program.allocator)
    assert seen.of_size(7 * MIB) == ("activations", "saved")
    assert seen.of(state) == ("optimizer_state", "state")
    assert seen.of_size(6 * MIB) == ("temporary_buffers", "act_grad")


#: As C++ frames are written: no Python on the thread of the backward.
PLUMBING = [
    at("??", "torch::unwind::unwind()"),
    at("??", "torch::CapturedTraceback::gather(bool, bool, bool)"),
    at(
        "CUDACachingAllocator.cpp",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
    ),
]
NODE = [
    at("??", "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"),
    at("??", "__clone"),
]


@pytest.mark.parametrize(
    "function", ["at::cuda::getCurrentCUDABlasHandle()", "at::cuda::blas::gemm<float>(char, char)"]
)
def test_a_workspace_is_temporary_on_whatever_thread_it_is_made(function: str) -> None:
    """32 MiB that stay from a backward on, as a gradient does, and which cuBLAS asked for."""
    program = trained(1)
    gradients = program.backward(program.forward())
    workspace = program.alloc(32 * MIB, [*PLUMBING, at("??", function), *NODE])
    other = program.alloc(33 * MIB, [*PLUMBING, at("??", "at::native::mm(at::Tensor const&)"), *NODE])
    program.optimize()
    program.free(gradients)
    program.step()
    seen = told(program.allocator)
    assert seen.of(workspace) == ("temporary_buffers", "workspace")
    assert seen.of(other)[0] != "temporary_buffers"


def test_shown_frames_are_somebody_s_code() -> None:
    operator = at("??", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")
    interpreter = [at("??", "_PyEval_EvalFrameDefault"), at("??", "PyObject_Vectorcall")]
    mine, theirs = at("/home/user/model.py", "forward"), at("kernel.cu", "flash::mha_forward(int)")
    allocator = Allocator()
    allocator.begin_history()
    allocator.alloc(MIB, frames=[*PLUMBING, theirs, operator, *interpreter, mine, CALL, MAIN])
    stacks = Stacks(frames_of(allocator)["stack"])
    shown = stacks.shown(0)
    assert [frame.rpartition(" ")[2] for frame in shown] == [
        "flash::mha_forward",
        "at::_ops::mm::call",
        "forward",
        MAIN["name"],
    ]
