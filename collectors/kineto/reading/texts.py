"""Columns of texts while they grow: each text kept once, and not without bound."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

#: A trace has some thousands of names; these bound what a hostile file can make of it.
_MOST_TEXTS, _MOST_LETTERS = 1 << 20, 64 << 20
UNKEPT = "(one of too many names)"


class Texts(dict[str | None, int]):
    """The code of each text that has come by; a new one gets the next code.

    ``texts`` are the texts by code; ``unkept`` counts those beyond the bounds, which share a placeholder.

    Args:
        today: Today's word for a text; two that have the same share a code.
    """

    def __init__(self, today: Callable[[str], str] = str, most: int = _MOST_TEXTS) -> None:
        super().__init__()
        self._today = today
        self._most = most
        self._letters = 0
        self._codes: dict[str, int] = {}
        self.texts: list[str] = []
        self.unkept = 0

    def __missing__(self, text: str | None) -> int:
        letters = self._letters + len(text or "")
        if len(self) >= self._most or letters > _MOST_LETTERS:
            self.unkept += 1
            return self._code(UNKEPT)
        self._letters = letters
        self[text] = code = self._code(self._today(text or ""))
        return code

    def _code(self, word: str) -> int:
        if word not in self._codes:
            self._codes[word] = len(self.texts)
            self.texts.append(word)
        return self._codes[word]


class Answers:
    """The answers of a predicate by code, asked once for each text."""

    def __init__(self, predicate: Callable[[str], bool]) -> None:
        self._predicate = predicate
        self._answers = np.zeros(0, dtype=np.bool_)

    def of(self, texts: list[str], codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """A mask of the rows with these codes."""
        new = texts[len(self._answers) :]
        if new:
            answers = np.fromiter(map(self._predicate, new), np.bool_, len(new))
            self._answers = np.concatenate([self._answers, answers])
        return self._answers[codes]
