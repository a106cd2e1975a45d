"""What ``streampca inspect`` tells of a file or a model, without reading the rows."""

from __future__ import annotations

from typing import Any

from streampca.estimators import load
from streampca.sources import open_source
from streampca.storage import stored_kind


def describe(path: str, dataset: str | None = None, samples_axis: int = 0) -> dict[str, Any]:
    """Return the facts of a stored model, or of a source."""
    kind = None if "*" in path else stored_kind(path)
    return _describe_model(path) if kind else _describe_source(path, dataset, samples_axis)


def _describe_model(path: str) -> dict[str, Any]:
    model = load(path)
    return {
        "model": path,
        "kind": model.kind,
        "solver": model.solver_,
        "rows": model.n_samples_,
        "features": model.n_features_in_,
        "components": model.n_components_,
        **model.summary(),
    }


def _describe_source(path: str, dataset: str | None, samples_axis: int) -> dict[str, Any]:
    source = open_source(path, dataset=dataset, samples_axis=samples_axis)
    info = source.info
    names = info.feature_names
    return {
        "input": info.description,
        "rows": info.n_rows,
        "features": info.n_features,
        "dtype": str(info.dtype),
        "bytes_decoded": info.bytes_decoded,
        "bytes_stored": info.bytes_stored,
        "chunk_rows": info.chunk_rows,
        **source.details(),
        "missing_chunks": source.missing_chunks(),
        "feature_names": None if names is None else [*names[:5], *(["..."] if len(names) > 5 else [])],
        "fingerprint": info.fingerprint,
    }
