"""Models by name, with their shape.

    parameters = 12 L h^2 + V h + s h        (12 h^2: attention 4, perceptron 8; no norms, no biases)

L layers, h hidden, V vocabulary, s context (arXiv 1910.02054, appendix: with or without the last two terms
this reproduces every row there within 3 %).  Shapes are those of the paper's tables 5 (figure 2), 6 (figure
3), 7 (figure 6) and 10 (figure 4).  Its table 4 prints hidden 4096 for 40B to 60B: 12 * 88 * 4096^2 is
17.7e9, and table 5 has 6144, which is right.  Where a name stands in two tables with two shapes, the other
one has its shape in its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.errors import BadInput
from zprof.model.planning.job import Shape

#: GPT-2's 50257 words, padded as Megatron-LM pads them (a multiple of 128 for each of 8 or 16 ranks).
VOCABULARY = 51_200
#: "Sequence length 1K" throughout the paper.
CONTEXT = 1024
#: By hidden: as in table 5 where it has that width, else heads of 96 to 160 elements.
_HEADS = {1600: 16, 1920: 16, 2304: 24, 3072: 24, 4096: 32, 6144: 32, 8192: 64, 25600: 160}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model that has a name; ``source``: where its shape stands."""

    name: str
    shape: Shape
    source: str

    @property
    def parameters(self) -> int:
        """By the formula of this module."""
        return parameters_of(self.shape)


def parameters_of(shape: Shape) -> int:
    """Parameters of a shape; the head's table counts only where it is not the embedding's."""
    tables = shape.vocabulary * (1 if shape.tied else 2) + shape.context
    return 12 * shape.layers * shape.hidden**2 + tables * shape.hidden


def preset(name: str) -> Preset:
    """The model of that name, in letters of any case.

    Raises:
        BadInput: there is none.
    """
    found = PRESETS.get(name.strip().lower())
    if found is None:
        raise BadInput(f"there is no model {name[:60]!r}", hint=f"known: {', '.join(PRESETS)}")
    return found


def _named(name: str, layers: int, hidden: int, source: str, context: int = CONTEXT) -> Preset:
    shape = Shape(layers=layers, hidden=hidden, vocabulary=VOCABULARY, context=context, heads=_HEADS[hidden])
    return Preset(name=name, shape=shape, source=source)


_PAPER = "arXiv 1910.02054"
_ALL = (
    _named("gpt2-1.5b", 48, 1600, f"{_PAPER}, section 3.2 and table 5"),
    _named("1.5b", 34, 1920, f"{_PAPER}, table 10"),
    _named("2.5b", 54, 1920, f"{_PAPER}, table 10"),
    _named("4b", 64, 2304, f"{_PAPER}, table 10"),
    _named("6b", 52, 3072, f"{_PAPER}, table 10"),
    _named("7.5b", 36, 4096, f"size of {_PAPER}, figure 1, which prints no shape"),
    _named("8b", 72, 3072, f"{_PAPER}, tables 5 and 10"),
    _named("10b", 50, 4096, f"{_PAPER}, table 10"),
    _named("11b", 54, 4096, f"{_PAPER}, table 10"),
    _named("12b", 58, 4096, f"{_PAPER}, table 10"),
    _named("13b", 62, 4096, f"{_PAPER}, table 10"),
    _named("40b", 88, 6144, f"{_PAPER}, table 5 (table 4 prints hidden 4096, an error)"),
    _named("40b-50x8192", 50, 8192, f"{_PAPER}, table 7"),
    _named("50b", 62, 8192, f"{_PAPER}, table 7"),
    _named("60b", 75, 8192, f"{_PAPER}, tables 6 and 9"),
    _named("60b-132x6144", 132, 6144, f"{_PAPER}, tables 5 and 7 (table 4 prints hidden 4096, an error)"),
    _named("80b", 100, 8192, f"{_PAPER}, table 5"),
    _named("100b", 125, 8192, f"{_PAPER}, table 5"),
    _named("120b", 150, 8192, f"{_PAPER}, table 5"),
    _named("128b", 159, 8192, f"size of {_PAPER}, table 1, which prints no shape"),
    _named("140b", 175, 8192, f"{_PAPER}, tables 5 and 7"),
    _named("150b", 187, 8192, f"{_PAPER}, table 7"),
    _named("170b", 212, 8192, f"{_PAPER}, tables 5 and 9"),
    _named("1t", 128, 25600, f"size of {_PAPER}, table 1; shape of arXiv 2104.04473, table 1", context=2048),
)
PRESETS: Mapping[str, Preset] = {each.name: each for each in _ALL}
