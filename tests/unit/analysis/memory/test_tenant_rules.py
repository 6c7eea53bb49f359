"""Tenants of the blocks of a snapshot, by their stacks, on programs whose owners are known."""

import numpy as np
import pytest

from benchmarks.snapshot_truth.segments import MIB
from tests.support.snapshot_histories import (
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
    Named,
    Training,
    at,
    named,
    trained,
)
from zprof.model.findings import Confidence
from zprof.model.memory import Basis

Tenant = tuple[str, str]
UNKNOWN = ("untagged", "")
WORKSPACE = ("temporary_buffers", "workspace")
OP_WORKSPACE = ("temporary_buffers", "op_workspace")
STATE_OF_OPTIMIZER = ("optimizer_state", "state")
WEIGHT = ("parameters", "weight")
SAVED = ("activations", "saved")
GRAD = ("gradients", "grad")
ACT_GRAD = ("temporary_buffers", "act_grad")


def tenants(seen: Named, addresses: list[int]) -> set[Tenant]:
    return {seen.of(address) for address in addresses}


@pytest.mark.parametrize("fused", [False, True])
def test_a_training_program_is_named_block_by_block(fused: bool) -> None:
    program = trained(3, fused=fused)
    seen = named(program.allocator)
    assert tenants(seen, program.parameters) == {WEIGHT}
    assert tenants(seen, program.state) == {STATE_OF_OPTIMIZER}
    blocks = seen.history.blocks
    made: dict[tuple[int, bool], set[Tenant]] = {}
    for row in range(len(blocks)):
        key = (int(blocks.requested_bytes[row]) // MIB, int(blocks.stack[row]) == -1)
        made.setdefault(key, set()).add(seen.of_row(row))
    assert made[2, False] == {OP_WORKSPACE}
    assert made[3, False] == {SAVED}
    assert made[4, True] == {GRAD}
    if not fused:
        assert made[3, True] == {ACT_GRAD}
        assert ("temporary_buffers", "optimizer") in made[4, False]
    assert UNKNOWN not in set().union(*made.values())


def frame(file: str, function: str) -> dict[str, object]:
    return at(TORCH + file, function)


STEP_IN_FORWARD = [STATE[0], STATE[1], WRAPPER, at("/home/user/train.py", "forward"), MAIN]
FORWARD_IN_STEP = [at("/home/user/forward_helpers.py", "forward"), at("/home/user/lion.py", "step"), WRAPPER]
SHARD = [frame("distributed/fsdp/_fully_shard/_fsdp_param.py", "_init_sharded_param"), MAIN]
DDP_COPY = [
    frame("distributed/utils.py", "_to_kwargs"), frame("nn/parallel/distributed.py", "_pre_forward"), MAIN,
]  # fmt: skip
WINDOWS = [at("C:\\env\\torch\\optim\\adam.py", "Adam._init_group"), at("C:\\x\\train.py", "main")]
WORDS_ONLY = [at("/home/user/adam_forward_backward.py", "forward_backward_optimizer_step"), MAIN]
COLLECTIVE = [frame("distributed/distributed_c10d.py", "all_gather_object"), MAIN]
CACHE = [at("/home/user/cache.py", "__init__"), FORWARD[1], CALL, MAIN]
MODEL = [at("/home/user/model.py", "__init__"), MAIN]
#: Made between two steps, and kept for ever.
KEPT: dict[str, tuple[Frames, Tenant]] = {
    "an optimizer called from a forward": (STEP_IN_FORWARD, STATE_OF_OPTIMIZER),
    "an optimizer with a helper named forward": (FORWARD_IN_STEP, STATE_OF_OPTIMIZER),
    "Windows paths and qualified names": (WINDOWS, STATE_OF_OPTIMIZER),
    "a name that only contains the words": (WORDS_ONLY, UNKNOWN),
    "a cache of the forward": (FORWARD, UNKNOWN),
    "a cache whose constructor the forward calls": (CACHE, UNKNOWN),
    "a constructor": (MODEL, WEIGHT),
    "a shard": (SHARD, ("parameters", "shard")),
    "what DDP copies for its caller": (DDP_COPY, UNKNOWN),
    "gathered parameters": (ALL_GATHER, ("communication_buffers", "gathered_param")),
    "a collective of the program": (COLLECTIVE, ("communication_buffers", "collective")),
    "buckets of DDP": (BUCKETS, ("communication_buffers", "bucket")),
}


@pytest.mark.parametrize("name", KEPT)
def test_blocks_that_stay(name: str) -> None:
    frames, expected = KEPT[name]
    program = trained(1)
    address = program.alloc(9 * MIB, frames)
    program.step()
    program.step()
    assert named(program.allocator).of(address) == expected


CHECKPOINT = [FORWARD[0], CALL, frame("utils/checkpoint.py", "checkpoint"), MAIN]
QUALIFIED = [frame("nn/functional.py", "linear"), frame("nn/modules/module.py", "Module._call_impl")]
ENGINE = [at("??", "torch::autograd::Engine::evaluate_function"), at("/build/libtorch.cpp", "forward")]
#: With C++ frames: the engine's stand before all Python frames but the innermost.
NATIVE_RECOMPUTE = [frame("nn/functional.py", "softmax"), ENGINE[0], *RECOMPUTE]
CLIP = [frame("nn/utils/clip_grad.py", "_get_total_norm"), MAIN]
#: By frames, and when the block is made and freed: in the forward, in the backward, in the optimizer.
PASSING: dict[str, tuple[Frames, str, str, Tenant]] = {
    "saved by a checkpointed forward": (CHECKPOINT, "forward", "optimizer", SAVED),
    "qualified names of modules": (QUALIFIED, "forward", "optimizer", SAVED),
    "recomputed": (RECOMPUTE, "backward", "optimizer", ("activations", "recomputed")),
    "recomputed, with C++ frames": (NATIVE_RECOMPUTE, "backward", "optimizer", ("activations", "recomputed")),
    "temporary of the recompute": (RECOMPUTE, "backward", "at once", OP_WORKSPACE),
    "C++ frames of the backward": (ENGINE, "backward", "at once", ACT_GRAD),
    "input of a reduction": (REDUCE, "optimizer", "at once", ("communication_buffers", "reduce_scatter")),
    "output of a reduction": (REDUCE, "optimizer", "end", ("gradients", "shard")),
    "norms of clipping": (CLIP, "optimizer", "at once", ("temporary_buffers", "clip")),
}


@pytest.mark.parametrize("name", PASSING)
def test_blocks_of_a_step(name: str) -> None:
    frames, made, freed, expected = PASSING[name]
    program = trained(1)
    block: list[int] = []

    def reach(moment: str) -> None:
        if moment == freed:
            program.free(block)
        if moment == made:
            block.append(program.alloc(9 * MIB, frames))
            if freed == "at once":
                if frames is RECOMPUTE:
                    program.free([program.alloc(MIB, RECOMPUTE)])
                program.free(block)

    reach("forward")
    saved = program.forward()
    reach("backward")
    gradients = program.backward(saved)
    reach("optimizer")
    program.optimize()
    reach("end")
    program.free(gradients)
    assert named(program.allocator).of_size(9 * MIB) == expected


def test_state_from_before_the_history_is_state_unless_it_is_freed() -> None:
    program = Training()
    program.allocator.begin_history(max_entries=40)
    stacks = (STEP, STEP, TO_DEVICE, TO_DEVICE, TO_DEVICE, BARE)
    before = [program.alloc(4 * MIB, frames) for frames in stacks]
    program.step()
    program.step()
    program.free([before[1]])
    program.step()
    seen = named(program.allocator)
    assert seen.history.blocks.before[seen.row(before[0])]
    assert [seen.of(before[n]) for n in (0, 2, 5)] == [STATE_OF_OPTIMIZER, WEIGHT, UNKNOWN]


@pytest.mark.parametrize("forward_before_the_history", [False, True])
def test_without_a_forward_pass_a_block_without_frames_is_no_sure_gradient(
    forward_before_the_history: bool,
) -> None:
    program = Training()
    if forward_before_the_history:
        program.alloc(3 * MIB, FORWARD)
    program.allocator.begin_history()
    lone = program.alloc(4 * MIB, BARE)
    program.alloc(4 * MIB, STEP)
    seen = named(program.allocator)
    assert seen.of(lone) == (GRAD if forward_before_the_history else UNKNOWN)
    assert seen.names.get(seen.row(lone)).confidence is not Confidence.HIGH


def test_what_a_forward_keeps_without_a_backward_is_at_most_a_guess() -> None:
    program = trained(0)
    kept = [program.forward() for _ in range(3)]
    program.free(kept[0])
    seen = named(program.allocator)
    for address in (*kept[0], *kept[2]):
        assert seen.names.get(seen.row(address)).confidence is Confidence.LOW


def test_a_history_that_ends_in_a_recompute_names_it_with_low_confidence() -> None:
    program = trained(1)
    program.forward()
    again = program.alloc(9 * MIB, RECOMPUTE)
    seen = named(program.allocator)
    assert seen.of(again) == ("activations", "recomputed")
    sure = seen.names.sum_confidence_bytes(np.array([seen.row(again)]), seen.history.blocks.requested_bytes)
    assert sure == {Confidence.HIGH: 0, Confidence.MEDIUM: 0, Confidence.LOW: 9 * MIB}


def test_an_unfinished_pass_is_told_from_the_step_before() -> None:
    program = trained(2)
    workspace, new = program.alloc(2 * MIB, FORWARD), program.alloc(5 * MIB, FORWARD)
    seen = named(program.allocator)
    assert [seen.of(address) for address in (workspace, new)] == [OP_WORKSPACE, SAVED]
    assert seen.names.get(seen.row(new)).confidence is not Confidence.MEDIUM
    program = trained(2)
    saved = program.forward()
    flowing, gradient, strange = (program.alloc(size * MIB, BARE) for size in (3, 4, 5))
    seen = named(program.allocator)
    assert [seen.of(address) for address in (flowing, gradient, strange)] == [ACT_GRAD, GRAD, UNKNOWN]
    assert tenants(seen, saved) == {SAVED}
    assert seen.names.get(seen.row(gradient)).confidence is Confidence.MEDIUM


def test_a_tag_wins_over_every_rule_and_another_text_is_no_tag() -> None:
    program = trained(1)
    tags = ["zprof:communication_buffers/kv_cache", "forward", "zprof:nobody", "notes:activations"]
    addresses = [
        program.alloc((3 + n) * MIB, FORWARD if n < 2 else BARE, tag=tag) for n, tag in enumerate(tags)
    ]
    seen = named(program.allocator)
    assert seen.of(addresses[0]) == ("communication_buffers", "kv_cache")
    bases = [seen.names.get(seen.row(address)).basis for address in addresses]
    assert bases[:2] == [Basis.TAGGED, Basis.RULE]
    assert Basis.TAGGED not in bases[2:]


#: As C++ frames are written: no Python on the thread of the backward.
PLUMBING = [
    at("??", "torch::CapturedTraceback::gather(bool, bool, bool)"),
    at(
        "CUDACachingAllocator.cpp",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
    ),
]
NODE = [at("??", "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)")]


@pytest.mark.parametrize(
    ("size", "function", "workspace"),
    [
        (32 * MIB, "at::cuda::getCurrentCUDABlasHandle()", True),
        (32 * MIB, "at::cuda::blas::gemm<float>(char, char)", True),
        (32 * MIB, "at::native::mm(at::Tensor const&)", False),
        (8_519_680, None, True),
    ],
)
def test_a_workspace_of_cublas_is_no_gradient(size: int, function: str | None, workspace: bool) -> None:
    """It stays from a backward on, as a gradient does; its stack or its size tells it."""
    program = trained(1)
    gradients = program.backward(program.forward())
    frames = [*PLUMBING, at("??", function), *NODE] if function else BARE
    address = program.alloc(size, frames)
    program.optimize()
    program.free(gradients)
    program.step()
    assert (named(program.allocator).of(address) == WORKSPACE) == workspace


def test_of_equal_blocks_made_in_constructors_the_oldest_are_the_parameters() -> None:
    program = Training()
    program.allocator.begin_history()
    sizes = [4 * MIB, 5 * MIB, 6 * MIB]
    parameters = [program.alloc(size, MODEL) for size in sizes]
    moments = [program.alloc(size, [at("/home/user/optim.py", "__init__"), MAIN]) for size in sizes]
    for _ in range(2):
        saved = program.forward()
        gradients = [program.alloc(size, BARE) for size in sizes]
        program.free(saved)
        program.free([program.alloc(MIB, STEP)])
        program.free(gradients)
    seen = named(program.allocator)
    assert tenants(seen, parameters) == {WEIGHT}
    assert tenants(seen, moments) == {STATE_OF_OPTIMIZER}
