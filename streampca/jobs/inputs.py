"""Which inputs the sums of a model hold: each file by its name, fingerprint, number of rows, and a digest of its first and last row.

So the same file is not added twice, and one that has grown since is read from where the last run ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from streampca.sources.base import Source
from streampca.sources.many import ManySource
from streampca.sources.views import Rows

Record = dict[str, Any]
_MOST_SAMPLED = 64  # files; of more, only the fingerprints are known


def parts_of(source: Source) -> list[Source]:
    """Return the files of a source, each as a source."""
    return list(source.sources) if isinstance(source, ManySource) else [source]


def records_of(source: Source) -> list[Record]:
    """Return what is to be remembered of the files of a source."""
    parts = parts_of(source)
    records = [record_of(part, sampled=len(parts) <= _MOST_SAMPLED) for part in parts]
    source.release()
    return records


def record_of(part: Source, sampled: bool = True) -> Record:
    """Return what is to be remembered of one file."""
    info = part.info
    sample = sample_of(part, info.n_rows) if sampled else None
    return {"input": info.description, "fingerprint": info.fingerprint, "rows": info.n_rows, "sample": sample}


def sample_of(part: Source, n_rows: int) -> str:
    """Return a digest of the first and the last of the first ``n_rows`` rows."""
    found = hashlib.sha256()
    for row in (0, n_rows - 1):
        found.update(part.read(slice(row, row + 1)).tobytes())
    return found.hexdigest()[:32]


@dataclass(frozen=True)
class News:
    """What of a source is new to a model."""

    parts: list[Source]  # the rows to read
    records: list[Record]  # what the model will have read, with them
    known: list[Record]  # what it had read already and was given again


def news_of(source: Source, known: Iterable[Record]) -> News:
    """Return the rows of a source that are not among the known inputs, and what will be known with them.

    A file is known by its fingerprint. One of the same name that has more rows now, but the same first and last row as before
    where it ended then, has grown.
    """
    records = list(known)
    parts: list[Source] = []
    again: list[Record] = []
    given = parts_of(source)
    for part in given:
        before = _known_as(part, records)
        if before is None:
            parts.append(part)
        elif before["rows"] < part.info.n_rows:
            parts.append(Rows(part, before["rows"], part.info.n_rows))
            records.remove(before)
        else:
            again.append(before)
            continue
        records.append(record_of(part, sampled=len(given) <= _MOST_SAMPLED))
    source.release()
    return News(parts, records, again)


def _known_as(part: Source, records: list[Record]) -> Record | None:
    info = part.info
    for record in records:
        if record["fingerprint"] == info.fingerprint:
            return record
    for record in records:
        same_name = record["input"] == info.description and record["sample"] is not None
        if same_name and record["rows"] <= info.n_rows and sample_of(part, record["rows"]) == record["sample"]:
            return record
    return None
