"""What a choice of the number of components is made with, and what it says: two frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streampca.selection.noise import NoiseFrom
from streampca.selection.spectrum import Floats, Integers


@dataclass(frozen=True)
class Options:
    """What a criterion may need besides the spectrum."""

    threshold: float | None = None
    noise_variance: float | None = None
    noise: NoiseFrom = "median"
    confidence: float = 0.99
    held_out: Mapping[int, float] | Sequence[float] | None = None


@dataclass(frozen=True, eq=False)
class Selection:
    """A number of components, and how it came about.

    Attributes
    ----------
    k : int
        The number of components; never more than are known. 0 where nothing stands out.
    criterion : str
        The name of the criterion.
    values : ndarray
        What the criterion compares, for each candidate.
    candidates : ndarray
        The number of components of each value.
    reason : str
        One sentence with the numbers.
    bound : bool
        True when k is only a lower bound, because the spectrum is truncated.
    """

    k: int
    criterion: str
    values: Floats
    candidates: Integers
    reason: str
    bound: bool = False
