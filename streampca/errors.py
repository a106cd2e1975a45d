"""Every error a user can meet: what is wrong, where, the limit, the remedy.

Each class carries the exit code of the command line, and is also the built-in exception that Python
code would expect (``ValueError``, ``FileNotFoundError``, ...).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class StreamPCAError(Exception):
    """Base of all errors raised by streampca."""

    exit_code = 1


class UsageError(StreamPCAError, ValueError):
    """The request is wrong: a parameter, an option, a combination."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file does not say what to do."""


class MemoryBudgetError(UsageError, MemoryError):
    """The memory budget cannot hold the job."""


class MissingExtraError(StreamPCAError, ImportError):
    """A feature needs a package that is not installed."""

    exit_code = 2


class DataError(StreamPCAError, ValueError):
    """The data is wrong: shape, type, values, or the file itself."""

    exit_code = 65


class SourceNotFoundError(DataError, FileNotFoundError):
    """There is no such file, or no such dataset in it."""

    def __new__(cls, *args: object) -> Self:
        """Make it as Dask makes it again that comes from a worker: by this method, which would be that of ``ValueError``."""
        return FileNotFoundError.__new__(cls, *args)


class CorruptDataError(DataError):
    """A file or chunk cannot be decoded, or fails its checksum."""


class ChangedDataError(DataError):
    """The input changed while it was being read."""


class NonFiniteError(DataError):
    """A NaN or infinite entry where none is allowed."""

    def __init__(self, value: float, row: int, column: int, name: str | None = None) -> None:
        self.value, self.row, self.column, self.name = value, row, column, name
        super().__init__(value, row, column, name)

    def __str__(self) -> str:
        column = f"column {self.column}" + (f" ({self.name!r})" if self.name else "")
        kind = "NaN" if self.is_nan else "inf"
        more = ", or use ProbabilisticPCA or FactorAnalysis, where NaN is a missing value" if self.is_nan else ""
        return (
            f"Input X contains {kind}: the first such entry is in row {self.row}, {column}. "
            f"Finite numbers are needed: drop or fill such entries{more}."
        )

    @property
    def is_nan(self) -> bool:
        """Whether the entry is NaN rather than infinite."""
        return self.value != self.value

    def at(self, row_offset: int, names: tuple[str, ...] | None = None) -> NonFiniteError:
        """Return the same error with the row counted from the start of the source."""
        name = names[self.column] if names else None
        return NonFiniteError(self.value, self.row + row_offset, self.column, name)

    def transposed(self, names: tuple[str, ...] | None = None) -> NonFiniteError:
        """Return the same error with row and column swapped: that of a table whose features were read as rows."""
        return NonFiniteError(self.value, self.column, self.row, names[self.row] if names else None)


class RefusedResumeError(StreamPCAError):
    """An interrupted run has left its work, and this is another run."""


class OtherRunError(RefusedResumeError, UsageError):
    """An interrupted run had another config, or more memory."""


class OtherDataError(RefusedResumeError, ChangedDataError):
    """The data has changed since a run on it was interrupted."""


class OutputError(StreamPCAError, OSError):
    """An output exists already or cannot be written."""

    exit_code = 73


class InterruptedRunError(StreamPCAError):
    """The run was asked to stop, or lost its scheduler; it can be run again."""

    exit_code = 75


class LockedError(StreamPCAError):
    """Another run holds the output."""

    exit_code = 76


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string.

    >>> did_you_mean("memry", ["memory", "method"])
    " Did you mean 'memory'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
