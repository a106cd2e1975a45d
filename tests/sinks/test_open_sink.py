from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.errors import OutputError, UsageError
from streampca.sinks import check_sink, open_sink


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"'\.csv' is not one of \.zarr, \.h5, \.hdf5, \.npy"),
        open_sink(tmp_path / "a.csv", 1, 1, "f8", chunk_rows=1),
    ):
        pass


def test_too_large_an_output_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"needs 80000000001048576 bytes .* bytes .* are free") as caught:
        check_sink(tmp_path / "new" / "a.zarr", 8 * 10**16)
    assert caught.value.exit_code == 73
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [{"n_rows": 0}, {"n_columns": 0}, {"chunk_rows": 0}, {"dtype": "U3"}, {"dtype": "c16"}, {"n_rows": 2**28, "chunk_rows": 2**28}],
)
def test_shapes_that_cannot_be_stored(tmp_path: Path, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"n_rows": 4, "n_columns": 2, "dtype": "f8", "chunk_rows": 2} | options
    with pytest.raises(UsageError), open_sink(tmp_path / "a.npy", **given):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attributes", [{"a": np.zeros(3)}, {"a": float("nan")}, {"a": {1, 2}}])
def test_attributes_must_be_json(tmp_path: Path, attributes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="JSON"), open_sink(tmp_path / "a.zarr", 4, 2, "f8", chunk_rows=2, attributes=attributes):
        pass


def test_feature_names_must_match(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 feature names were given for 2 columns"):
        open_sink(tmp_path / "a.zarr", 4, 2, "f8", chunk_rows=2, feature_names=["a", "b", "c"]).__enter__()
