"""The texts of gaps of recordings and of files that were read; see ``gap_texts``."""

from zprof.model.gaps import GapText

RECORDING_GAP_TEXTS: dict[str, GapText] = {}
