"""DataArrays of xarray: rows and names out of them, labels back onto scores.

xarray itself is never imported here: whoever has a DataArray has it already, and its methods are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streampca.errors import DataError

SAMPLES = ("sample", "samples", "time")  # a dimension of such a name holds the samples, wherever it is; else the first one
_MOST_NAMES = 100_000  # more than these are not worth their memory


def is_labelled(data: Any) -> bool:
    """Return whether data is of xarray, without importing it."""
    return type(data).__module__.partition(".")[0] == "xarray"


def rows_and_names(data: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Return a DataArray as a plain array (NumPy, or Dask if it is chunked) of samples x features, and the names of the features."""
    samples, features = dimensions(data)
    return data.transpose(samples, features).data, _names(data, features)


def dimensions(data: Any) -> tuple[Any, Any]:
    """Return the dimension of the samples and that of the features of a DataArray."""
    if not isinstance(getattr(data, "dims", None), tuple) or not hasattr(data, "coords"):
        raise DataError(f"an xarray {type(data).__name__} was given, but a DataArray is needed: choose a variable, or use .to_dataarray()")
    dims = tuple(data.dims)
    samples = next((name for name in SAMPLES if name in dims), dims[0] if dims else None)
    others = [name for name in dims if name != samples]
    if len(dims) > 2:
        stacked = ", ".join(map(repr, others))
        raise DataError(
            f"the DataArray has {len(dims)} dimensions {dims}, but samples x features (2-D) are needed: "
            f"make one of all but the samples, for example .stack(feature=({stacked}))"
        )
    if len(dims) < 2:
        raise DataError(f"the DataArray has {len(dims)} dimension(s) {dims}, but samples x features (2-D) are needed")
    return samples, others[0]


def with_labels(scores: Any, data: Any, names: Sequence[str]) -> Any:
    """Return scores of a DataArray's samples as a DataArray: the coordinates of the samples stay, ``component`` has the names.

    Parameters
    ----------
    scores : array of samples x components
    data : DataArray
        Whose samples they are.
    names : sequence of str
        Of the components.
    """
    samples, features = dimensions(data)
    kept = data.isel({features: 0}, drop=True).coords  # with its indexes, of several levels too
    return type(data)(scores, dims=(samples, "component"), coords=kept).assign_coords(component=list(names))


def _names(data: Any, dimension: Any) -> tuple[str, ...] | None:
    """Return the labels along a dimension as text, if there are some and no two are alike."""
    if dimension not in data.coords or data.sizes[dimension] > _MOST_NAMES:
        return None
    levels = getattr(data.indexes.get(dimension), "names", (dimension,))
    names = tuple(_name(label, levels) for label in data.coords[dimension].values)
    return names if len(set(names)) == len(names) else None


def _name(label: Any, levels: Sequence[Any]) -> str:
    """Return a label as text.

    >>> _name("t2m", ["feature"]), _name(550.0, ["wavelength"]), _name((10.0, 20.0), ["lat", "lon"])
    ('t2m', '550.0', 'lat=10.0, lon=20.0')
    """
    if isinstance(label, tuple):
        return ", ".join(f"{level}={value}" for level, value in zip(levels, label, strict=True))
    return str(label)
