"""A number of the what-if model, in a cell: of the run as recorded, or predicted for the changed run."""

from zprof.model.quantities import UNKNOWN, Value

#: Prefix of every predicted number, so that it is recognizable without colours.
PREDICTED_SIGN = "~"


class ModelValue(Value, frozen=True, kw_only=True):
    """A number of the model.

    ``words``: the formatted number. ``explanation``: lines of text. ``assumption``: the key of its assumption
    in the outlook.
    """

    words: str
    explanation: str
    assumption: str
    is_predicted: bool

    @property
    def text(self) -> str:
        """The formatted number, prefixed with ``~`` if it is predicted."""
        if self.number is None:
            return UNKNOWN
        return f"{PREDICTED_SIGN}{self.words}" if self.is_predicted else self.words
