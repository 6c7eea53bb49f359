"""List the operations of one rank of a job with several dimensions of parallelism, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from zprof.simulator import kernels
from zprof.simulator import operations as p
from zprof.simulator.job import NORMALS, Job, hash_key
from zprof.simulator.mesh import layout as m
from zprof.simulator.mesh.schedules import Action, Message, list_actions, list_messages, play_actions

REDUCE, SEND_NEXT, RECEIVE_PREVIOUS, SEND_PREVIOUS, RECEIVE_NEXT, RING_SEND, RING_RECEIVE = range(9, 16)
STREAMS: Final = 16
"""Streams of a rank: compute, one of each communicator (its number + 1), and these."""
WEIGHT: Final = 3
"""The phase of a pass that computes only weight gradients, after those of `operations.py`."""
_ATTENTION: Final = (
    (kernels.NORM, 4),
    (kernels.GEMM, 30),
    (kernels.FLASH, 40),
    (kernels.GEMM2, 22),
    (kernels.ADD, 4),
)
_DENSE: Final = (
    (kernels.NORM, 4),
    (kernels.GEMM2, 50),
    (kernels.MUL, 5),
    (kernels.GEMM, 37),
    (kernels.ADD, 4),
)
"""Kernels of the two parts of a layer, their shares in percent; norm and add are outside of tensor groups."""


class MeshProgram(p.OperationList):
    """Collect the operations of a step of one rank."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job)
        assert job.parallel is not None
        self.parallel = job.parallel
        self.degrees = job.parallel.degrees
        self.rank = rank
        self.place = self.degrees.locate(rank)
        self.stage_rank = self.place["pipeline"]
        self.base = 0
        self.index = 0
        self.gathered: set[int] = set()
        self.reduced = 0

    def build(self) -> list[p.Op]:
        """Return the operations of one step."""
        job = self.job
        self.think(job.host.hook_ns, "step start")
        self.open("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        self.think(job.data_ns, "data")
        self.add(p.POINT, p.MAIN, p.DATA_POINT)
        self.close()
        self.add(p.MEMCPY, p.MAIN, p.COMPUTE, "HtoD", 262_144, job.batch_copy_ns, hash_key("batch"))
        ranks = self.degrees.pipeline
        orders = list_actions(self.parallel.schedule, ranks, job.micro_batches, self.parallel.virtual)
        if ranks == 1:
            for action in orders[0]:
                self.run_pass(action)
        else:
            spans = play_actions(orders, self.parallel.stages)
            messages = list_messages(spans, ranks, self.parallel.stages)
            if self.parallel.batched_messages:
                self.run_batched(orders, spans, messages)
            else:
                self.run_posted(orders[self.stage_rank], messages)
        self.tid = p.MAIN
        self.reduce_gradients()
        self.optimize()
        if job.blocking != "none":
            self.read_back("metrics", 0)
        return self.ops

    # messages of the pipeline
    def run_posted(self, order: Sequence[Action], messages: list[Message]) -> None:
        """Run passes whose receives are posted while the pass before computes."""
        own = self.stage_rank
        sends = {msg.needed_by: msg for msg in messages if msg.sender == own}
        receives = [msg for msg in messages if msg.receiver == own]
        position = {action: number for number, action in enumerate(order)}
        posted = 0
        for number, action in enumerate(order):
            needed = [i for i, msg in enumerate(receives) if position[msg.needed_by] <= number + 1]
            while needed and posted <= needed[-1]:
                self.post(receives[posted])
                posted += 1
            if any(msg.needed_by == action for msg in receives):
                self.add(p.WAIT, p.COMPUTE, self.name_event(action))
            self.run_pass(action)
            following = self.find_following(action)
            if following in sends:
                self.post(sends[following])

    def find_following(self, action: Action) -> Action | None:
        """Return the pass of another stage that needs the result of a pass."""
        if action.kind == "W":
            return None
        stage = action.stage + (1 if action.kind == "F" else -1)
        return Action(action.kind, stage, action.micro) if 0 <= stage < self.parallel.stages else None

    def name_event(self, action: Action) -> int:
        """Return the event that is reached when the input of a pass has arrived."""
        return 1_000_000 + hash_key("event", *action) % (1 << 40)

    def post(self, message: Message) -> None:
        """Launch a send or a receive on the stream of its direction."""
        is_send = message.sender == self.stage_rank
        peer = message.receiver if is_send else message.sender
        is_next = peer == (self.stage_rank + 1) % self.degrees.pipeline
        if is_send:
            stream = SEND_NEXT if is_next else SEND_PREVIOUS
        else:
            stream = RECEIVE_NEXT if is_next else RECEIVE_PREVIOUS
        self.sync_streams(stream, p.COMPUTE)
        self.send_receive(stream, m.PIPELINE, False, self.count_boundary(), (message,))
        if not is_send:
            self.add(p.RECORD, stream, self.name_event(message.needed_by))

    def run_batched(
        self, orders: list[list[Action]], spans: dict[Action, tuple[int, int]], messages: list[Message]
    ) -> None:
        """Run passes and, between them, batches of messages; compute waits for each batch."""
        merged = [merge_events(order, spans, messages, rank) for rank, order in enumerate(orders)]
        events = merged[self.stage_rank]
        pairs = {(a, b) for a, b in pairwise(events) if are_exchanged(a, b)}
        number = 0
        while number < len(events):
            event = events[number]
            number += 1
            if isinstance(event, Action):
                self.run_pass(event)
                continue
            batch: tuple[Message, ...] = (event,)
            if number < len(events) and (event, events[number]) in pairs:
                following = events[number]
                assert isinstance(following, Message)
                peer = event.receiver if event.sender == self.stage_rank else event.sender
                place = merged[peer].index(event)
                if merged[peer][place + 1 : place + 2] == [following]:
                    batch = (event, following)
                    number += 1
            stream = 1 + m.PIPELINE
            self.sync_streams(stream, p.COMPUTE)
            self.send_receive(stream, m.PIPELINE, True, self.count_boundary(), batch)
            self.sync_streams(p.COMPUTE, stream)

    def send_receive(
        self, stream: int, comm: int, is_batched: bool, elements: int, messages: Sequence[Message]
    ) -> None:
        """Launch the kernel of one or more messages, whose ranks are positions in the group."""
        members = m.list_mesh_members(self.degrees, comm, m.find_mesh_group(self.degrees, comm, self.rank))
        ends = [members[end] for msg in messages for end in (msg.sender, msg.receiver)]
        key = hash_key("message", comm, *(part for msg in messages for part in msg.needed_by))
        self.add(p.MESSAGE, self.tid, stream, comm, is_batched, elements, 2, key, *ends)

    def count_boundary(self) -> int:
        """Return the elements that a rank sends to the next stage: its part, if sequences are split."""
        count = self.parallel.activation_elements // self.degrees.context
        return count // (self.degrees.tensor if self.parallel.sequence_parallel else 1)

    # passes
    def run_pass(self, action: Action) -> None:
        """Run the forward or backward pass of a stage for one micro-batch."""
        kind, stage, self.micro = action
        layers = range(self.parallel.layers[stage])
        phase = {"F": p.FORWARD, "B": p.BACKWARD, "W": WEIGHT}[kind]
        self.tid = p.MAIN if kind == "F" else p.AUTOGRAD
        self.think(self.job.host.hook_ns, "pass", *action)
        self.enter(phase, stage)
        is_last = stage + 1 == self.parallel.stages
        head_ns = self.parallel.head_ns if is_last else 0
        if self.parallel.spreads_head:
            head_ns = self.parallel.head_ns // self.parallel.stages
        if kind == "F":
            for layer in layers:
                self.gather(stage, layer, layer + 1 < len(layers), 1)
                self.run_layer(stage, layer, phase, 1.0)
            self.run_head(head_ns)
            return
        factor = 1.0 if self.parallel.schedule == "zero_bubble" else 2.0
        self.run_head(int(head_ns * factor))
        share = self.parallel.recompute_share(stage) * len(layers)
        for layer in reversed(layers):
            if kind == "B":
                self.gather(stage, layer, layer > 0, -1)
                part = min(1.0, max(0.0, share - layer))
                if part:
                    self.enter(p.RECOMPUTE, stage, layer)
                    self.run_layer(stage, layer, p.RECOMPUTE, part)
            self.enter(phase, stage, layer)
            self.run_layer(stage, layer, phase, factor)
            if kind == "B" and self.parallel.data_mode == "fsdp" and self.micro + 1 == self.job.micro_batches:
                self.reduce(self.parallel.layer_params, (stage, layer))

    def enter(self, phase: int, stage: int, layer: int = 0) -> None:
        """Begin to number the kernels of a pass, or of one of its layers."""
        self.base = 1 << 60 | self.micro << 40 | phase << 32 | stage << 24 | layer << 14
        self.index = 0

    def compute(self, kind: int, ns: float) -> None:
        """Launch a kernel of a pass."""
        self.add(p.LAUNCH, self.tid, p.COMPUTE, kind, max(1_500, int(ns)), self.base | self.index)
        self.index += 1

    def run_head(self, ns: int) -> None:
        """Run the kernels of head and loss."""
        if ns:
            self.compute(kernels.GEMM2, 0.8 * ns)
            self.compute(kernels.SOFTMAX, 0.2 * ns)

    def run_layer(self, stage: int, layer: int, phase: int, factor: float) -> None:
        """Run a layer, in the backward pass from its end; `factor` scales the time of a forward pass."""
        parts = (self.run_attention, self.run_dense)
        is_forward = phase in (p.FORWARD, p.RECOMPUTE)
        label = (stage, layer, phase, self.micro)
        for part in parts if is_forward else reversed(parts):
            part(factor, is_forward, label)

    def run_attention(self, factor: float, is_forward: bool, label: tuple[int, ...]) -> None:
        """Run attention: norm, tensor group, projections around attention over the context group."""
        total = self.parallel.attention_ns * factor / 100
        (norm, a), (first, b), (flash, c), (second, d), (add, e) = _ATTENTION
        if label[2] == WEIGHT:
            self.compute(first, total * 55)
            self.compute(second, total * 45)
            return
        factors = self.parallel.attention_factors
        replica = self.place["data"] + self.place["replica"] * self.degrees.data
        length = factors[replica][self.micro] if factors else 1.0
        order = [(first, b), (flash, c), (second, d)]
        self.compute(norm if is_forward else add, total * (a if is_forward else e))
        self.enter_tensor("attention", label)
        for kind, share in order if is_forward else reversed(order):
            if kind == flash:
                kind = flash if is_forward else kernels.FLASH_BACKWARD
                self.attend(kind, total * share * length, label)
            else:
                self.compute(kind, total * share)
        self.leave_tensor("attention", label)
        self.compute(add if is_forward else norm, total * (e if is_forward else a))

    def attend(self, kind: int, ns: float, label: tuple[int, ...]) -> None:
        """Run attention over the keys and values of all context ranks: passed around, or gathered before."""
        size = self.degrees.context
        elements = self.parallel.activation_elements // size // 2  # keys and values of fewer heads
        if size == 1:
            self.compute(kind, ns)
        elif not self.parallel.ring_attention:
            self.communicate_as(m.CONTEXT, "all_gather", elements * size, "keys", *label)
            self.compute(kind, ns)
            if label[2] == p.BACKWARD:
                self.communicate_as(m.CONTEXT, "reduce_scatter", elements * size, "key grads", *label)
        else:
            own = self.place["context"]
            for turn in range(size):
                if turn + 1 < size:
                    action = Action(f"ring {turn}", hash_key(*label) % (1 << 30), self.micro)
                    sent = Message(0, own, (own + 1) % size, action)
                    got = Message(0, (own - 1) % size, own, action)
                    self.exchange_ring(elements, sent, got)
                self.compute(kind, ns / size)
                if turn + 1 < size:
                    self.add(p.WAIT, p.COMPUTE, self.serial)

    def exchange_ring(self, elements: int, sent: Message, got: Message) -> None:
        """Launch an exchange with both neighbors in the ring, beside the attention of this turn."""
        if self.parallel.batched_messages:
            stream = 1 + m.CONTEXT
            self.sync_streams(stream, p.COMPUTE)
            self.send_receive(stream, m.CONTEXT, True, elements, (sent, got))
        else:
            for stream, message in ((RING_SEND, sent), (RING_RECEIVE, got)):
                self.sync_streams(stream, p.COMPUTE)
                self.send_receive(stream, m.CONTEXT, False, elements, (message,))
        self.serial += 1
        self.add(p.RECORD, stream, self.serial)

    def run_dense(self, factor: float, is_forward: bool, label: tuple[int, ...]) -> None:
        """Run the feed-forward part, or send tokens to their experts and back."""
        total = self.parallel.dense_ns * factor / 100
        (norm, a), (first, b), (middle, c), (second, d), (add, e) = _DENSE
        load = self.find_load(label)
        if label[2] == WEIGHT:
            self.compute(first, total * 55 * load)
            self.compute(second, total * 45 * load)
            return
        has_experts = self.degrees.expert > 1
        order = [(first, b), (middle, c), (second, d)]
        self.compute(norm if is_forward else add, total * (a if is_forward else e))
        if has_experts:
            self.exchange_tokens("dispatch", label, load)
        else:
            self.enter_tensor("dense", label)
        for kind, share in order if is_forward else reversed(order):
            self.compute(kind, total * share * load)
        if has_experts:
            self.exchange_tokens("combine", label, load)
        else:
            self.leave_tensor("dense", label)
        self.compute(add if is_forward else norm, total * (e if is_forward else a))

    def find_load(self, label: tuple[int, ...]) -> float:
        """Return the tokens that this rank's experts get in a layer, against the mean of the expert group."""
        size = self.degrees.expert
        if size == 1:
            return 1.0
        stage, layer, _, micro = label
        loads = []
        for position in range(size):
            number = hash_key(self.job.key, "routing", stage, layer, micro, position) & 4095
            steady = self.parallel.expert_loads[position] if self.parallel.expert_loads else 1.0
            loads.append(steady * max(0.2, 1 + self.parallel.routing_skew * NORMALS[number]))
        return loads[self.place["data"] % size] * size / sum(loads)

    def exchange_tokens(self, name: str, label: tuple[int, ...], load: float) -> None:
        """Send tokens to the ranks of their experts, or their results back."""
        even = self.parallel.activation_elements // self.degrees.context // self.degrees.tensor
        own = int(even * load)
        sent, got = (even, own) if name == "dispatch" else (own, even)
        self.communicate_as(m.EXPERT, "all_to_all", 0, name, *label, sizes=(sent, got))

    # collectives
    def enter_tensor(self, name: str, label: tuple[int, ...]) -> None:
        """Gather the sequence over the tensor group, if its ranks have a part each."""
        if self.degrees.tensor > 1 and self.parallel.sequence_parallel:
            self.communicate_as(m.TENSOR, "all_gather", self.count_tokens(), f"enter {name}", *label)

    def leave_tensor(self, name: str, label: tuple[int, ...]) -> None:
        """Sum a result over the tensor group."""
        if self.degrees.tensor > 1:
            operation = "reduce_scatter" if self.parallel.sequence_parallel else "all_reduce"
            self.communicate_as(m.TENSOR, operation, self.count_tokens(), f"leave {name}", *label)

    def count_tokens(self) -> int:
        """Return the elements of the activations of a tensor group."""
        return self.parallel.activation_elements // self.degrees.context

    def communicate_as(
        self,
        comm: int,
        operation: str,
        elements: int,
        *key: int | str,
        sizes: tuple[int, int] | None = None,
        stream: int | None = None,
        waits: bool = True,
        itemsize: int = 2,
    ) -> None:
        """Launch a collective after the compute launched so far; later compute waits for it if `waits`."""
        members = len(m.list_groups(self.degrees, comm)[0])
        if members == 1:
            return
        shard = -(-elements // members)
        sent, got = sizes or {
            "all_gather": (shard, shard * members), "reduce_scatter": (shard * members, shard),
        }.get(operation, (elements, elements))  # fmt: skip
        stream = 1 + comm if stream is None else stream
        self.sync_streams(stream, p.COMPUTE)
        self.add(p.COLLECTIVE, self.tid, stream, comm, operation, p.RAW_NAMES[operation], sent, got, itemsize,
                 hash_key("collective", comm, *key))  # fmt: skip
        if waits:
            self.sync_streams(p.COMPUTE, stream)

    def gather(self, stage: int, layer: int, has_following: bool, direction: int) -> None:
        """Gather a layer's parameters and, while it computes, those of the next one."""
        if self.parallel.data_mode != "fsdp" or len(m.list_groups(self.degrees, m.DATA)[0]) == 1:
            return
        is_kept = self.degrees.pipeline > 1
        for number in (layer, layer + direction) if has_following else (layer,):
            unit = stage << 14 | number
            if unit in self.gathered:
                continue
            self.gathered.add(unit)
            label = ("parameters", stage, number, self.micro, direction)
            self.communicate_as(m.DATA, "all_gather", self.parallel.layer_params, *label, waits=False)
            self.record(1 + m.DATA, f"gathered {unit}")
        unit = stage << 14 | layer
        self.add(p.WAIT, p.COMPUTE, 1_000_000 + hash_key("event", f"gathered {unit}") % (1 << 40))
        if not is_kept:
            self.gathered.discard(unit)

    def reduce(self, params: int, label: tuple[int, ...]) -> None:
        """Reduce gradients over the data group, then over the replicas, beside later compute."""
        shards = len(m.list_groups(self.degrees, m.DATA)[0])
        operation = "all_reduce" if self.parallel.data_mode == "ddp" else "reduce_scatter"
        itemsize = self.job.reduce_itemsize
        self.communicate_as(
            m.DATA, operation, params, "gradients", *label, stream=REDUCE, waits=False, itemsize=itemsize
        )
        if self.degrees.replica > 1:
            shard = params if operation == "all_reduce" else params // shards
            self.sync_streams(1 + m.REPLICA, REDUCE)
            self.communicate_as(
                m.REPLICA, "all_reduce", shard, "replicas", *label, waits=False, itemsize=itemsize
            )
        self.reduced += 1

    def reduce_gradients(self) -> None:
        """Reduce what no layer has reduced in the backward pass, and wait for all reductions."""
        if self.parallel.data_mode != "fsdp":
            buckets = self.parallel.buckets
            for bucket in range(buckets):
                self.reduce(self.count_own_params() // buckets, (self.stage_rank, bucket))
        self.sync_streams(p.COMPUTE, REDUCE)
        self.sync_streams(p.COMPUTE, 1 + m.REPLICA)

    def count_own_params(self) -> int:
        """Return the parameters of this rank's stages."""
        layers = self.parallel.layers[self.stage_rank :: self.degrees.pipeline]
        return sum(layers) * self.parallel.layer_params

    def optimize(self) -> None:
        """Clip and update; a distributed optimizer gathers the new parameters."""
        job, mode = self.job, self.parallel.data_mode
        shards = 1 if mode == "ddp" else len(m.list_groups(self.degrees, m.DATA)[0])
        shard = self.count_own_params() // shards
        self.run_kernel(p.COMPUTE, kernels.LP_NORM, 4 * shard / job.gpu.memory_rate, "norm")
        comm = {"megatron": m.MODEL, "torch": m.PIPELINE, "deepspeed": m.WORLD}[self.parallel.framework]
        self.communicate_as(comm, "all_reduce", 1, "norm", itemsize=4)
        self.open("Optimizer.step#AdamW.step")
        self.think(job.host.hook_ns * 2, "optimizer")
        self.run_kernel(p.COMPUTE, kernels.ADAM, 28 * shard / job.gpu.memory_rate, "adam")
        self.close()
        if mode == "distributed":
            for bucket in range(self.parallel.buckets):
                size = self.count_own_params() // self.parallel.buckets
                self.communicate_as(m.DATA, "all_gather", size, "new parameters", bucket)


def merge_events(
    order: Sequence[Action], spans: dict[Action, tuple[int, int]], messages: list[Message], rank: int
) -> list[Action | Message]:
    """Return a rank's passes and messages by ideal time: a message before the passes that start then."""
    keyed: list[tuple[int, int, int, Action | Message]] = [
        (spans[action][0], 1, number, action) for number, action in enumerate(order)
    ]
    keyed += [
        (message.time, 0, number, message)
        for number, message in enumerate(messages)
        if rank in (message.sender, message.receiver)
    ]
    return [event for *_, event in sorted(keyed, key=lambda row: row[:3])]


def are_exchanged(one: Action | Message, other: Action | Message) -> bool:
    """Return True for two messages between the same ranks in opposite directions."""
    return (
        isinstance(one, Message)
        and isinstance(other, Message)
        and (one.sender, one.receiver) == (other.receiver, other.sender)
    )
