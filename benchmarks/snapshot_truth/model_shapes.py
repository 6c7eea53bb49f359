"""Random shapes of transformer-like models and of their batches."""

import random
from dataclasses import dataclass

_VOCABULARIES = (1009, 2003, 4096, 5003, 7919, 8192, 12_289)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamShape:
    """One parameter; ``module`` is the kind of module that owns it, ``layer`` -1 outside the layers."""

    name: str
    shape: tuple[int, ...]
    module: str
    layer: int

    @property
    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a model and of one micro-batch."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    batch: int
    is_gated: bool
    has_bias: bool
    has_layer_norm: bool
    has_positions: bool
    is_tied: bool
    has_flash: bool
    has_dropout: bool
    buffers: str

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    def params(self) -> list[ParamShape]:
        """Return the parameters in the order in which modules make them; a tied head has none of its own."""
        found = [_param("embed", (self.vocab, self.hidden), "embedding", -1)]
        if self.has_positions:
            found.append(_param("positions", (self.seq, self.hidden), "embedding", -1))
        for layer in range(self.layers):
            found += self._layer_params(layer)
        found += self._norm("final_norm", -1)
        if not self.is_tied:
            found.append(_param("head", (self.vocab, self.hidden), "linear", -1))
        return found

    def _layer_params(self, layer: int) -> list[ParamShape]:
        widths = [("q", self.hidden), ("k", self.kv_width), ("v", self.kv_width), ("o", self.hidden)]
        found = self._norm("norm1", layer)
        for name, width in widths:
            found += self._linear(name, width, self.hidden, layer)
        found += self._norm("norm2", layer)
        for name in ("gate", "up") if self.is_gated else ("up",):
            found += self._linear(name, self.ffn, self.hidden, layer)
        return found + self._linear("down", self.hidden, self.ffn, layer)

    def _norm(self, name: str, layer: int) -> list[ParamShape]:
        found = [_param(f"{name}.weight", (self.hidden,), "norm", layer)]
        return found + (
            [_param(f"{name}.bias", (self.hidden,), "norm", layer)] if self.has_layer_norm else []
        )

    def _linear(self, name: str, wide: int, deep: int, layer: int) -> list[ParamShape]:
        found = [_param(f"{name}.weight", (wide, deep), "linear", layer)]
        return found + ([_param(f"{name}.bias", (wide,), "linear", layer)] if self.has_bias else [])


def _param(name: str, shape: tuple[int, ...], module: str, layer: int) -> ParamShape:
    return ParamShape(name=name, shape=shape, module=module, layer=layer)


def draw_model(chance: random.Random) -> ModelShape:
    """Return a random small model."""
    heads = chance.choice((2, 3, 4, 6, 8))
    head_dim = chance.choice((32, 40, 48, 64, 96))
    hidden = heads * head_dim
    is_gated = chance.random() < 0.5
    multiple = chance.choice((2, 8 / 3, 3, 4))
    return ModelShape(
        layers=chance.randint(2, 6),
        heads=heads,
        kv_heads=chance.choice([n for n in (1, 2, heads) if heads % n == 0]),
        head_dim=head_dim,
        ffn=int(hidden * multiple) + chance.choice((0, 0, 1, 7)),
        vocab=chance.choice(_VOCABULARIES),
        seq=chance.choice((64, 100, 128, 192, 256)),
        batch=chance.choice((1, 2, 3, 4, 8)),
        is_gated=is_gated,
        has_bias=not is_gated and chance.random() < 0.6,
        has_layer_norm=chance.random() < 0.5,
        has_positions=not is_gated and chance.random() < 0.6,
        is_tied=chance.random() < 0.35,
        has_flash=chance.random() < 0.55,
        has_dropout=chance.random() < 0.3,
        buffers=chance.choice(("none", "rope", "rope", "masks")),
    )
