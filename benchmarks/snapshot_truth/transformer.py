"""The forward of a transformer-like model, from the batch to the loss."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from benchmarks.snapshot_truth.device import Tensor
from benchmarks.snapshot_truth.frames import TORCH, PythonFrame
from benchmarks.snapshot_truth.model_shapes import ModelShape
from benchmarks.snapshot_truth.operators import ACTIVATIONS, TEMPORARY, Operators
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from benchmarks.snapshot_truth.sharding import NoSharding, ShardingHooks

_CHECKPOINT = (
    PythonFrame(f"{TORCH}_compile.py", 53, "inner"),
    PythonFrame(f"{TORCH}utils/checkpoint.py", 528, "checkpoint"),
)
_RECOMPUTE = (
    PythonFrame(f"{TORCH}utils/checkpoint.py", 1170, "unpack_hook"),
    PythonFrame(f"{TORCH}utils/checkpoint.py", 1690, "recompute_fn"),
)


class Transformer:
    """A model with its parameters; ``lora`` are pairs of low-rank matrices by (layer, name)."""

    def __init__(
        self,
        shape: ModelShape,
        parameters: Sequence[SimulatedParameter],
        operators: Operators,
        *,
        is_checkpointed: bool = False,
        lora: dict[tuple[int, str], tuple[SimulatedParameter, SimulatedParameter]] | None = None,
        hooks: ShardingHooks | None = None,
    ) -> None:
        self.shape, self.operators, self.is_checkpointed = shape, operators, is_checkpointed
        self.parameters = {(each.shape.layer, each.shape.name): each for each in parameters}
        self._lora = lora or {}
        self._hooks = hooks or NoSharding()
        #: Keys and values of earlier tokens, by layer.
        self.cache: dict[int, list[Tensor]] = {}
        #: The first layer of which a parameter is trained.
        trained = [each.shape.layer for each in parameters if each.is_trained]
        self._first_trained = -1 if lora or not trained else min(trained)

    def forward(self, ids: Tensor, tokens: int, context: int) -> Tensor:
        """Return the logits; ``context`` is the number of tokens that attention sees."""
        ops, shape, code = self.operators, self.shape, self.operators.code
        with ops.device.call(*code.module(310)):
            self._hooks.pre_forward(ops, -1)
            with self._maybe_frozen(-1):
                x = ops.embedding(ids, self.parameters[-1, "embed"], tokens)
                positions = self.parameters.get((-1, "positions"))
                if positions is not None:
                    x = self._add_positions(ids, x, positions, tokens)
            for layer in range(shape.layers):
                with self._maybe_frozen(layer):
                    x = self._sharded_layer(x, layer, tokens, context)
            norm = [each for (layer, name), each in self.parameters.items() if name.startswith("final_norm")]
            normed = ops.norm(x, norm, tokens, shape.hidden)
            ops.drop(x)
            head = self.parameters.get((-1, "head")) or self.parameters[-1, "embed"]
            logits = ops.linear(normed, head, None, tokens)
            ops.drop(normed)
        return logits

    def _add_positions(self, ids: Tensor, x: Tensor, table: SimulatedParameter, tokens: int) -> Tensor:
        ops = self.operators
        looked_up = ops.embedding(ids, table, tokens)
        out = ops.temporary(tokens * self.shape.hidden, "add", line=322)
        ops.drop(x, looked_up)
        return out

    def loss(self, logits: Tensor, targets: Tensor, tokens: int) -> Tensor:
        """Return the cross entropy; the caller keeps the logits."""
        ops, elements = self.operators, tokens * self.shape.vocab
        frame = PythonFrame(f"{TORCH}nn/functional.py", 3504, "cross_entropy")
        if logits.lifetime.tenant == TEMPORARY:
            logits.lifetime.tenant, logits.lifetime.sub = ACTIVATIONS, "logits"
            logits.lifetime.also = () if ops.tape is not None else (TEMPORARY,)
        source = logits
        if ops.act_bytes == 2:
            source = ops.device.alloc(elements * 4, ACTIVATIONS, "logits", "_to_copy", also=(TEMPORARY,))
        with ops.device.call(frame):
            probabilities = ops.device.alloc(elements * 4, TEMPORARY, "op_output", "_log_softmax")
            loss = ops.device.alloc(4, ACTIVATIONS, "loss", "nll_loss_forward", also=(TEMPORARY,))
            weight = ops.save_extra(4, "nll_loss_forward")
        saved = ops.save(probabilities) + ops.save(targets, sub="input") + weight
        ops.drop(probabilities)
        if source is not logits:
            ops.drop(source)

        def backward(incoming: Tensor) -> Tensor:
            nll = ops.device.alloc(elements * 4, TEMPORARY, "act_grad", "nll_loss_backward")
            ops.drop(incoming)
            outgoing = ops.device.alloc(elements * 4, TEMPORARY, "act_grad", "_log_softmax_backward_data")
            ops.drop(nll, *saved)
            return ops.grad(outgoing, elements, "_to_copy") if ops.act_bytes == 2 else outgoing

        ops.push(backward)
        return loss

    def _maybe_frozen(self, layer: int) -> AbstractContextManager[None]:
        """Save nothing in layers below the first trained one."""
        return self.operators.no_grad() if layer < self._first_trained else nullcontext()

    def _sharded_layer(self, x: Tensor, layer: int, tokens: int, context: int) -> Tensor:
        """Run a layer between the hooks that gather and reshard its parameters."""
        ops, hooks = self.operators, self._hooks
        ops.push(lambda incoming: _after(incoming, hooks.post_backward, ops, layer))
        hooks.pre_forward(ops, layer)
        out = self._checkpointed_layer(x, layer, tokens, context)
        hooks.post_forward(ops, layer)
        ops.push(lambda incoming: _after(incoming, hooks.pre_backward, ops, layer))
        return out

    def _checkpointed_layer(self, x: Tensor, layer: int, tokens: int, context: int) -> Tensor:
        ops = self.operators
        if not self.is_checkpointed or ops.tape is None:
            return self._layer(x, layer, tokens, context)
        with ops.device.call(*_CHECKPOINT):
            x.references += 1
            with ops.no_grad():
                out = self._layer(x, layer, tokens, context)
            saved = ops.save(x, sub="ckpt_input")
            ops.drop(x)

        def backward(incoming: Tensor) -> Tensor:
            outer, ops.tape = ops.tape, []
            with ops.device.call(*_RECOMPUTE):
                saved[0].references += 1
                again = self._layer(saved[0], layer, tokens, context)
                ops.drop(again)
            for function in reversed(ops.tape or []):
                incoming = function(incoming)
            ops.tape = outer
            ops.drop(*saved)
            return incoming

        ops.push(backward)
        return out

    def _layer(self, x: Tensor, layer: int, tokens: int, context: int) -> Tensor:
        """Run attention and feed-forward, each on a residual branch; drops ``x``."""
        ops, shape, code = self.operators, self.shape, self.operators.code
        with ops.device.call(*code.module(205)):
            for name, run, line in (("norm1", self._attention, 112), ("norm2", self._feed_forward, 150)):
                ops.branch()
                normed = ops.norm(x, self._find(layer, name), tokens, shape.hidden)
                with ops.device.call(*code.module(line)):
                    branch = run(normed, layer, tokens, context)
                if shape.has_dropout:
                    branch = ops.dropout(branch, tokens * shape.hidden)
                x = ops.add_residual(x, branch, tokens * shape.hidden)
        return x

    def _attention(self, x: Tensor, layer: int, tokens: int, context: int) -> Tensor:
        """Apply attention; drops ``x``."""
        ops, shape = self.operators, self.shape
        width = shape.hidden
        projected = [self._linear(x, layer, name, tokens) for name in ("q", "k", "v")]
        ops.drop(x)
        query, key, value = projected
        if shape.buffers == "rope":
            query = self._rotate(query, tokens * width)
            key = self._rotate(key, tokens * shape.kv_width)
        key, value = self._extend_cache(layer, key, value, context)
        if shape.kv_heads != shape.heads and not shape.has_flash:
            keys = shape.batch * context * width
            key, value = (self._repeat(each, keys) for each in (key, value))
        kernel = self._flash_attention if shape.has_flash else self._math_attention
        out = kernel(query, key, value, tokens, context)
        ops.drop(query, key, value)
        final = self._linear(out, layer, "o", tokens)
        ops.drop(out)
        return final

    def _linear(self, x: Tensor, layer: int, name: str, tokens: int) -> Tensor:
        ops = self.operators
        out = ops.linear(
            x, self.parameters[layer, f"{name}.weight"], self.parameters.get((layer, f"{name}.bias")), tokens
        )
        pair = self._lora.get((layer, name))
        if pair is None:
            return out
        low = ops.linear(x, pair[0], None, tokens)
        high = ops.linear(low, pair[1], None, tokens)
        total = ops.temporary(tokens * pair[1].shape.shape[0], "add", line=601)
        ops.drop(low, high, out)
        return total

    def _rotate(self, x: Tensor, elements: int) -> Tensor:
        """Apply a rotary embedding; drops ``x``."""
        ops = self.operators
        with ops.device.call(PythonFrame(ops.code.model_file, 66, "apply_rotary")):
            parts = [ops.temporary(elements, op, line=60 + i) for i, op in enumerate(("mul", "cat", "mul"))]
            out = ops.temporary(elements, "add")
        ops.drop(*parts, x)
        ops.push(lambda incoming: ops.grad(incoming, elements, "mul"))
        return out

    def _repeat(self, x: Tensor, elements: int) -> Tensor:
        ops = self.operators
        with ops.device.call(PythonFrame(ops.code.model_file, 48, "repeat_kv")):
            out = ops.temporary(elements, "clone")
        ops.drop(x)
        return out

    def _extend_cache(self, layer: int, key: Tensor, value: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Append to the cache of this layer, if there is one; the cache holds what is returned too."""
        ops, shape = self.operators, self.shape
        if layer not in self.cache:
            return key, value
        with ops.device.call(PythonFrame(ops.code.model_file, 30, "update")):
            size = shape.batch * context * shape.kv_width * ops.act_bytes
            grown = [ops.device.alloc(size, ACTIVATIONS, "kv_cache", "cat") for _ in range(2)]
        ops.drop(*self.cache[layer], key, value)
        self.cache[layer] = grown
        for each in grown:
            each.references += 1
        return grown[0], grown[1]

    def _math_attention(self, query: Tensor, key: Tensor, value: Tensor, tokens: int, context: int) -> Tensor:
        ops, shape = self.operators, self.shape
        elements = tokens * context * shape.heads
        scores = ops.temporary(elements, "bmm", line=120)
        scaled = ops.temporary(elements, "div", line=120)
        ops.drop(scores)
        masked = ops.temporary(elements, "masked_fill", line=122)
        ops.drop(scaled)
        with ops.device.call(PythonFrame(f"{TORCH}nn/functional.py", 2137, "softmax")):
            weights = ops.temporary(elements, "_softmax")
        ops.drop(masked)
        saved = ops.save(weights)
        if shape.has_dropout:
            weights = ops.dropout(weights, elements)
        out = ops.temporary(tokens * shape.hidden, "bmm", line=126)
        saved += ops.save(query, key, value, weights)
        ops.drop(weights)

        def backward(incoming: Tensor) -> Tensor:
            to_value = ops.temporary(shape.batch * context * shape.hidden, "bmm", "act_grad")
            to_weights = ops.grad(incoming, elements, "bmm")
            to_scores = ops.grad(to_weights, elements, "_softmax_backward_data")
            scaled_grad = ops.grad(to_scores, elements, "div")
            outgoing = ops.grad(scaled_grad, tokens * shape.hidden, "bmm")
            ops.drop(to_value, *saved)
            return outgoing

        ops.push(backward)
        return out

    def _flash_attention(
        self, query: Tensor, key: Tensor, value: Tensor, tokens: int, context: int
    ) -> Tensor:
        ops, shape = self.operators, self.shape
        out = ops.temporary(tokens * shape.hidden, "_scaled_dot_product_flash_attention", line=118)
        extra = ops.save_extra(tokens * shape.heads * 4, "_scaled_dot_product_flash_attention")
        saved = ops.save(query, key, value, out) + extra

        def backward(incoming: Tensor) -> Tensor:
            keys = shape.batch * context * shape.kv_width
            scratch = [
                ops.temporary(keys, "_scaled_dot_product_flash_attention_backward", "act_grad") for _ in "kv"
            ]
            outgoing = ops.grad(
                incoming, tokens * shape.hidden, "_scaled_dot_product_flash_attention_backward"
            )
            ops.drop(*scratch, *saved)
            return outgoing

        ops.push(backward)
        return out

    def _feed_forward(self, x: Tensor, layer: int, tokens: int, context: int) -> Tensor:
        """Apply the feed-forward network; drops ``x``."""
        ops, shape, elements = self.operators, self.shape, tokens * self.shape.ffn
        if shape.is_gated:
            gate = self._linear(x, layer, "gate", tokens)
            with ops.device.call(PythonFrame(f"{TORCH}nn/functional.py", 2440, "silu")):
                gate = ops.pointwise(gate, elements, "silu")
        up = self._linear(x, layer, "up", tokens)
        ops.drop(x)
        if shape.is_gated:
            hidden = ops.pointwise(up, elements, "mul", saves=(gate,))
            ops.drop(gate)
        else:
            hidden = ops.pointwise(up, elements, "gelu")
        out = self._linear(hidden, layer, "down", tokens)
        ops.drop(hidden)
        return out

    def _find(self, layer: int, name: str) -> list[SimulatedParameter]:
        suffixes = ("weight", "bias")
        found = [self.parameters.get((layer, f"{name}.{suffix}")) for suffix in suffixes]
        return [each for each in found if each is not None]


def _after(incoming: Tensor, hook: object, ops: Operators, layer: int) -> Tensor:
    assert callable(hook)
    hook(ops, layer)
    return incoming
