"""All solvers of PCA against NumPy's SVD of the centred matrix, and against each other, on easy and nasty data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import h5py
import numpy as np
import pytest
import zarr
from distributed import Client
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import streampca as sp
from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.solvers import sketch
from streampca.solvers.spectrum import Options

ALL = ("covariance", "tsqr", "sketch", "dual")
BY_ROWS = ("covariance", "tsqr", "sketch")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def with_spectrum(n: int, d: int, singular_values: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> np.ndarray:
    """Rows whose centred matrix has these singular values, as many as it can have."""
    rng = np.random.default_rng([seed, n, d])
    rank = min(n - 1, d)
    U = np.linalg.qr(np.c_[np.ones(n), rng.standard_normal((n, rank))])[0][:, 1 : rank + 1]
    V = np.linalg.qr(rng.standard_normal((d, rank)))[0]
    return 100 * (U * singular_values(np.arange(1.0, rank + 1))) @ V.T + 3


SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "i^-0.3": lambda i: i**-0.3,
    "i^-0.5": lambda i: i**-0.5,
    "i^-1": lambda i: i**-1.0,
    "steep": lambda i: 10.0 ** -np.minimum(i, 5),
    "flat": lambda i: np.ones_like(i),
    "pairs": lambda i: 2.0 ** -((i + 1) // 2),
    "rank 3": lambda i: np.where(i <= 3, 1 / i, 0.0),
}


def suits(solver: str, X: np.ndarray) -> bool:
    return solver != "dual" or X.shape[0] <= X.shape[1]


def fit(solver: str, X: Any, k: Any, **parameters: Any) -> sp.PCA:
    """Fit with no warning at all; the sketch to the accuracy of the others."""
    return sp.PCA(k, solver=solver, memory="2GiB", **({"tol": 1e-14} if solver == "sketch" else {}) | parameters).fit(X)


def reference(X: np.ndarray, standardize: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variances and directions of NumPy's SVD, centred in extended precision."""
    exact = X.astype(np.longdouble)
    mean = exact.mean(axis=0)
    mean += (exact - mean).mean(axis=0)
    exact -= mean
    if standardize:
        deviation = np.sqrt((exact**2).mean(axis=0))
        exact /= np.where(deviation > 0, deviation, 1)
    _, L, V = np.linalg.svd(exact.astype(np.float64), full_matrices=False)
    return mean.astype(np.float64), L**2 / (len(X) - 1), V


def check(pca: sp.PCA, X: np.ndarray, rtol: float = 1e-9, *, standardize: bool = False) -> None:
    """Compare everything that is fitted; equal variances by the space that they span."""
    mean, variances, V = reference(X, standardize)
    k, limit, largest = pca.n_components_, min(X.shape), max(variances[0], 1e-300)
    np.testing.assert_allclose(pca.mean_, mean, rtol=1e-13, atol=rtol * np.sqrt(largest) * 1e-2)
    np.testing.assert_allclose(pca.explained_variance_, variances[:k], rtol=rtol, atol=rtol * largest * 1e-2)
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(pca.singular_values_, np.sqrt(pca.explained_variance_ * (len(X) - 1)), rtol=1e-12)
    total = variances.sum()
    np.testing.assert_allclose(pca.explained_variance_ratio_, variances[:k] / total if total else 0, rtol=rtol, atol=rtol)
    rest = variances[k:].sum() / (limit - k) if k < limit else 0.0
    assert pca.noise_variance_ == pytest.approx(rest, rel=10 * rtol, abs=rtol * largest * 1e-2)
    for i in np.flatnonzero(variances[:k] > 1e-9 * largest):  # each component lies in the space of variances next to its own
        near = np.abs(variances - variances[i]) <= 1e-4 * variances[i]
        assert np.linalg.norm(V[near] @ pca.components_[i]) == pytest.approx(1, abs=max(np.sqrt(rtol), 1e-7))
    accuracy: Any = pca.accuracy_
    assert np.isfinite(accuracy["residuals"]).all()
    assert 0 <= accuracy["subspace_error"] <= 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # equal variances at the cut
@pytest.mark.parametrize("shape", [(40, 150), (60, 60), (200, 30), (2, 9), (9, 2), (50, 1)], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("solver", ALL)
def test_every_spectrum_and_shape(solver: str, spectrum: str, shape: tuple[int, int]) -> None:
    X = with_spectrum(*shape, SPECTRA[spectrum])
    if not suits(solver, X):
        return
    for k in {1, min(7, *shape), min(shape)}:
        check(fit(solver, X, k), X)
    check(fit(solver, X, None), X)


@pytest.mark.parametrize("spectrum", ["i^-0.3", "i^-0.5", "i^-1", "steep"])
def test_a_truncated_sketch_comes_as_near_as_is_asked_for(spectrum: str) -> None:
    X = with_spectrum(700, 400, SPECTRA[spectrum])
    for k, tol, variance in ((4, 1e-3, 2e-3), (4, 1e-10, 1e-8)):
        pca = fit("sketch", X, k, tol=tol)
        assert pca.plan_ is not None
        assert (pca.plan_.rank or 0) < 100
        _, variances, V = reference(X)
        assert 1 - np.linalg.norm(pca.components_ @ V[:k].T) ** 2 / k <= max(2 * tol, 1e-13)
        np.testing.assert_allclose(pca.explained_variance_, variances[:k], rtol=variance)
        assert pca.noise_variance_ == pytest.approx(variances[k:].sum() / (400 - k), rel=variance)


@pytest.mark.parametrize("solver", ALL)
def test_more_components_than_the_rank(solver: str) -> None:
    X = with_spectrum(30, 80, SPECTRA["rank 3"])
    pca = fit(solver, X, 10)
    assert (pca.explained_variance_[3:] <= 1e-12 * pca.explained_variance_[0]).all()
    check(pca, X)
    again = fit(solver, X, 10)
    np.testing.assert_array_equal(again.components_, pca.components_)
    assert np.isfinite(pca.transform(X)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ALL)
def test_rows_without_variance(solver: str, dtype: str) -> None:
    X = np.full((5, 12), 0.1, dtype)
    for k in (1, 4, None):
        pca = fit(solver, X, k)
        assert not pca.explained_variance_.any()
        assert not pca.explained_variance_ratio_.any()
        np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(k or 5), atol=1e-12)
        np.testing.assert_array_equal(pca.mean_, X[0].astype(float))


@pytest.mark.parametrize("solver", ALL)
def test_constant_columns_get_no_weight(solver: str) -> None:
    X = with_spectrum(30, 60, SPECTRA["i^-1"])
    X[:, [0, 7, 59]] = [1e8, 0, 1 / 3]
    for standardize in (False, True):
        pca = fit(solver, X, 5, standardize=standardize)
        check(pca, X, standardize=standardize)
        np.testing.assert_allclose(pca.components_[:, [0, 7, 59]], 0, atol=1e-12)
        np.testing.assert_array_equal(pca.scale_[[0, 7, 59]], 1)


@pytest.mark.parametrize("mean", [1e8, -3e6])
@pytest.mark.parametrize("solver", ALL)
def test_a_large_mean_costs_no_accuracy(solver: str, mean: float) -> None:
    X = with_spectrum(50, 70, SPECTRA["i^-0.5"]) + mean
    check(fit(solver, X, 6), X)


@pytest.mark.parametrize("mean", [0, 1e4, 1e6])
@pytest.mark.parametrize("solver", ALL)
def test_float32_with_a_large_mean(solver: str, mean: float) -> None:
    X = (with_spectrum(50, 70, SPECTRA["i^-0.5"]) + mean).astype(np.float32)
    check(fit(solver, X, 6, **({"tol": 1e-12} if solver == "sketch" else {})), X, 2e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", ">f8", ">f4", ">i4", "bool"])
@pytest.mark.parametrize("solver", ALL)
def test_every_dtype(solver: str, dtype: str) -> None:
    rows = with_spectrum(40, 60, SPECTRA["i^-0.5"])
    X = rows > 3 if dtype == "bool" else (rows * 5 + 100 * (np.dtype(dtype).kind == "u")).clip(-120, 1e4).astype(dtype)
    check(fit(solver, X, 5, **({"tol": 1e-12} if solver == "sketch" else {})), X, 2e-6 if np.can_cast(dtype, np.float32) else 1e-9)


@pytest.mark.parametrize("solver", BY_ROWS)
def test_sorted_rows(solver: str) -> None:
    X = with_spectrum(900, 60, SPECTRA["i^-0.5"])
    X += np.repeat(np.random.default_rng(1).standard_normal((9, 60)) * 5, 100, axis=0)
    X = X[np.argsort(X[:, 0])]
    check(fit(solver, X, 6), X)


@pytest.mark.parametrize("solver", ALL)
def test_standardised_and_whitened(solver: str) -> None:
    X = with_spectrum(50, 70, SPECTRA["i^-0.5"]) * np.logspace(-2, 2, 70)
    pca = fit(solver, X, 6, standardize=True, whiten=True)
    check(pca, X, standardize=True)
    np.testing.assert_allclose(pca.scale_, X.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(pca.transform(X).std(axis=0, ddof=1), 1, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", BY_ROWS)
def test_whole_weights_are_repeated_rows(solver: str) -> None:
    X, times = with_spectrum(60, 40, SPECTRA["i^-0.5"]), np.random.default_rng(0).integers(0, 4, 60)
    repeated = X.repeat(times, axis=0)
    for k in (3, 0.8, None):
        parameters: dict[str, Any] = {"tol": 1e-14} if solver == "sketch" else {}
        pca = sp.PCA(k, solver=solver, memory="2GiB", **parameters).fit(X, sample_weight=times.astype(float))
        check_weighted = fit(solver, repeated, k)
        assert pca.n_components_ == check_weighted.n_components_
        np.testing.assert_allclose(pca.explained_variance_, check_weighted.explained_variance_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(pca.mean_, repeated.mean(axis=0), rtol=1e-12)
        assert pca.noise_variance_ == pytest.approx(check_weighted.noise_variance_, rel=1e-9, abs=1e-12)


def test_the_dual_takes_no_weights() -> None:
    with pytest.raises(UsageError, match="use solver='sketch'"):
        sp.PCA(2, solver="dual").fit(np.eye(3, 9), sample_weight=np.ones(3))


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.999])
def test_a_fraction_keeps_the_same_number(fraction: float) -> None:
    X = with_spectrum(60, 150, SPECTRA["i^-0.5"])
    found = {solver: fit(solver, X, fraction).n_components_ for solver in ALL}
    explained = reference(X)[1].cumsum()
    assert set(found.values()) == {int(np.searchsorted(explained / explained[-1], fraction, side="right")) + 1}


def test_the_scores_of_all_solvers_are_the_same() -> None:
    X = with_spectrum(40, 90, SPECTRA["i^-1"])
    scores = {solver: fit(solver, X, 4).transform(X) for solver in ALL}
    for each in scores.values():
        np.testing.assert_allclose(each, scores["covariance"], atol=1e-6)


# --- where the rows come from ---------------------------------------------------------------------------------------


def stored(kind: str, folder: Path, X: np.ndarray) -> Any:
    if kind == "ndarray":
        return X
    if kind == "zarr":
        zarr.create_array(folder / "x.zarr", data=X, chunks=(17, 50))
        return folder / "x.zarr"
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("X", data=X.T if kind == "transposed" else X, chunks=(25, 19), compression="gzip")
    return sp.open_source(folder / "x.h5", samples_axis=int(kind == "transposed"))


def bits(pca: sp.PCA) -> tuple[bytes, ...]:
    noise = np.asarray(pca.noise_variance_)
    return tuple(
        np.ascontiguousarray(array).tobytes() for array in (pca.components_, pca.explained_variance_, pca.mean_, pca.scale_, noise)
    )


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["ndarray", "hdf5", "zarr", "transposed"])
@pytest.mark.parametrize("solver", ["sketch", "dual", "tsqr"])
def test_the_same_bits_on_every_scheduler(solver: str, kind: str, client: Client, tmp_path: Path) -> None:
    X = with_spectrum(150, 200, SPECTRA["i^-0.5"]).astype(np.float32)
    data = stored(kind, tmp_path, X)
    found = []
    for workers in (1, 2):
        with dask.config.set(scheduler="threads", num_workers=workers):
            found.append(sp.PCA(5, solver=solver, memory="2GiB", random_state=1).fit(data))
    found.append(sp.PCA(5, solver=solver, memory="2GiB", random_state=1).fit(data))
    assert found[0].plan_ is not None
    assert found[0].plan_.n_shards > 1
    assert len({bits(pca) for pca in found}) == 1
    _, variances, V = reference(X)
    np.testing.assert_allclose(found[0].explained_variance_, variances[:5], rtol=1e-3)
    assert 1 - np.linalg.norm(found[0].components_ @ V[:5].T) ** 2 / 5 < 1e-3


@pytest.mark.parametrize("solver", ALL)
def test_saved_and_loaded(solver: str, tmp_path: Path) -> None:
    X = with_spectrum(30, 60, SPECTRA["i^-1"])
    pca = fit(solver, X, 3)
    pca.save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    assert loaded.solver_ == solver
    np.testing.assert_array_equal(loaded.transform(X), pca.transform(X))
    np.testing.assert_array_equal(loaded.accuracy_["residuals"], pca.accuracy_["residuals"])


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["ndarray", "hdf5", "transposed"])
@pytest.mark.parametrize("solver", ALL)
def test_what_is_not_finite_is_named_by_sample_and_feature(solver: str, kind: str, value: float, tmp_path: Path) -> None:
    X = with_spectrum(40, 60, SPECTRA["i^-1"])
    X[7, 33] = X[31, 50] = value
    with pytest.raises(NonFiniteError, match=r"row 7, column 33") as caught:
        fit(solver, stored(kind, tmp_path, X), 3)
    assert (caught.value.row, caught.value.column) == (7, 33)


def test_the_feature_is_named_by_the_dual_too() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).standard_normal((4, 6)), columns=list("abcdef"))
    X.loc[2, "e"] = np.nan
    with pytest.raises(NonFiniteError, match=r"row 2, column 4 \('e'\)"):
        sp.PCA(2, solver="dual").fit(X)


@pytest.mark.parametrize("solver", ALL)
def test_numbers_too_large_are_refused(solver: str) -> None:
    X = np.random.default_rng(0).choice([-1.7e308, 1.7e308], (6, 9))
    with pytest.raises(DataError, match="overflow"):
        fit(solver, X, 2)


# --- the sketch says how far off it is ------------------------------------------------------------------------------


def in_blocks(X: np.ndarray, shard: int = 700, block: int = 350) -> tuple[sketch.Run, list[str]]:
    """Passes over shards of blocks, and their names."""
    names: list[str] = []

    def run(name: str, statistic: Any) -> Any:
        names.append(name)
        total = statistic.fresh()
        for start in range(0, len(X), shard):
            part = statistic.fresh()
            for first in range(start, min(start + shard, len(X)), block):
                part.update(X[first : min(first + block, start + shard)])
            part.release()
            total.merge(part)
        return total

    return run, names


def solved(X: np.ndarray, k: int, rank: int, precision: Any, tol: float) -> tuple[Any, int, float]:
    """The model, the passes that it took, and its true 1 - MEV."""
    run, names = in_blocks(X)
    model, _ = sketch.solve(X.shape[1], Options(k), run, sketch.Effort(rank, precision, "float64", tol))
    V = reference_vectors(X)[:k]
    missed = model.components - (model.components @ V.T) @ V
    return model, len(names), float((missed**2).sum()) / k


def reference_vectors(X: np.ndarray) -> np.ndarray:
    centred = X.astype(np.float64)
    centred -= centred.mean(axis=0)
    vectors: np.ndarray = np.linalg.eigh(centred.T @ centred)[1].T[::-1]
    return vectors


@pytest.mark.parametrize("order", ["as is", "by the first score", "by cluster"])
@pytest.mark.parametrize("spectrum", ["i^-0.3", "i^-0.5", "i^-1"])
def test_the_estimated_error_is_about_the_true_one(spectrum: str, order: str) -> None:
    """Two passes for 1e-3, three for 1e-6, and the estimate within a factor of ten."""
    X = with_spectrum(2100, 600, SPECTRA[spectrum])
    if order == "by the first score":
        X = X[np.argsort(X @ reference_vectors(X)[0])]
    elif order == "by cluster":
        X += np.repeat(np.random.default_rng(1).standard_normal((7, 600)) * 0.5, 300, axis=0)
    X = X.astype(np.float32)
    for rank, tol, most in ((60, 1e-3, 2), (100, 1e-6, 3)):
        model, passes, error = solved(X, 20, rank, "float32", tol)
        assert passes <= most
        assert error <= tol
        assert model.subspace_error <= tol
        if max(error, model.subspace_error) > 1e-12:
            assert 0.1 <= model.subspace_error / error <= 10


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["all equal", "equal at the cut", "equal to what is outside"])
def test_equal_variances_are_told(kind: str, precision: Any) -> None:
    sizes = {
        "all equal": lambda i: np.ones_like(i),
        "equal at the cut": lambda i: np.where(i <= 30, 1.0, 0.1),
        "equal to what is outside": lambda i: np.where(i <= 5, 1.0, 0.1),
    }
    X = with_spectrum(700, 300, sizes[kind])
    with pytest.warns(ConvergenceWarning, match="neighbouring variances may be equal"):
        model, passes, error = solved(X, 10, 40, precision, 1e-3)
    assert passes < 8  # it does not go on in vain
    assert model.subspace_error > 0.01
    assert error > 1e-3
    np.testing.assert_allclose(model.components @ model.components.T, np.eye(10), atol=1e-12)


def test_a_spectrum_too_steep_for_float32_is_told() -> None:
    X = with_spectrum(2100, 300, lambda i: 10.0 ** -np.minimum(i / 4, 7)).astype(np.float32)
    with pytest.warns(ConvergenceWarning, match=r"below what float32 products resolve beside the largest: use precision='float64'"):
        model, _, error = solved(X, 24, 72, "float32", 1e-3)
    assert model.subspace_error > error / 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, passes, error = solved(X, 20, 72, "float64", 1e-3)
    assert error < 1e-9
    assert passes == 2


def test_few_large_directions_do_not_hide_the_others() -> None:
    """Single precision keeps directions of 1e-5 of the largest variance, although products only know 1e-7 of it."""
    X = with_spectrum(2100, 300, lambda i: np.where(i <= 3, 300.0, 1 / i)).astype(np.float32)
    model, passes, error = solved(X, 20, 60, "float32", 1e-3)
    assert passes == 2
    assert error < 1e-6
    assert (model.explained_variance > 0).all()
