"""The scikit-learn classes, and the loading of what they saved."""

from __future__ import annotations

import os

from streampca.errors import DataError
from streampca.estimators.base import StreamingTransformer
from streampca.estimators.pca import PCA
from streampca.storage import stored_kind

__all__ = ["PCA", "load"]

_KINDS: dict[str, type[StreamingTransformer]] = {PCA.kind: PCA}


def load(path: str | os.PathLike[str]) -> StreamingTransformer:
    """Return the fitted estimator that ``save`` stored, after checking versions, shapes and checksums.

    Parameters
    ----------
    path : str or Path
        A model, such as ``model.zarr``.
    """
    kind = stored_kind(path)
    if kind not in _KINDS:
        what = "no such model, or not one of streampca's" if kind is None else f"it holds a {kind!r}"
        raise DataError(f"cannot load {os.fspath(path)}: {what}")
    return _KINDS[kind]._load(path)
