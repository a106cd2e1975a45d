"""KernelPCA as users have it: against scikit-learn, from files, on a cluster, saved and loaded, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import make_circles
from sklearn.decomposition import KernelPCA as TheirKernelPCA
from sklearn.metrics.pairwise import chi2_kernel, pairwise_kernels
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_get_feature_names_out_error,
    check_set_output_transform,
    check_transformer_get_feature_names_out,
    parametrize_with_checks,
)
from threadpoolctl import threadpool_limits

import streampca as sp
from streampca import KernelPCA
from streampca.engine.cluster import Cluster
from streampca.engine.threads import Threads
from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels import KERNELS
from tests.cli.harness import run
from tests.kernels.cases import DATA, circles, digits, swiss_roll

SMALL = 1e-6


@pytest.fixture(autouse=True, scope="module")
def one_blas_thread() -> Iterator[None]:
    with threadpool_limits(1, user_api="blas"):
        yield


def clusters(n: int = 3000, seed: int = 0) -> np.ndarray:
    """Four clusters in ten columns."""
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal((4, 10))[rng.integers(4, size=n)] + 0.5 * rng.standard_normal((n, 10))


def same_up_to_sign(ours: np.ndarray, theirs: np.ndarray, atol: float) -> None:
    np.testing.assert_allclose(ours * np.where((ours * theirs).sum(axis=0) < 0, -1, 1), theirs, atol=atol)


# --- the same as scikit-learn, the exact method, and PCA -------------------------------------------------------


def theirs(name: str, X: np.ndarray, k: int) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    name = {"polynomial": "poly", "laplacian": "precomputed"}.get(name, name)
    model = TheirKernelPCA(k, kernel=name, eigen_solver="dense")
    if name != "precomputed":
        return model.fit(X), model.transform
    model.fit(pairwise_kernels(X, metric="laplacian"))
    return model, lambda new: model.transform(pairwise_kernels(new, X, metric="laplacian"))


@pytest.mark.filterwarnings("ignore:the sigmoid kernel is not positive")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", KERNELS)
def test_the_exact_method_is_scikit_learns(name: str, data: str) -> None:
    X = DATA[data](300)
    fitted, new = X[:220], X[220:] + 0.01
    reference, scores = theirs(name, fitted, 8)
    ours = KernelPCA(8, kernel=name, method="exact").fit(fitted)
    size = reference.eigenvalues_[0]
    positive = reference.eigenvalues_ > 0
    np.testing.assert_allclose(ours.eigenvalues_, reference.eigenvalues_, rtol=0, atol=SMALL * size)
    np.testing.assert_allclose(ours.transform(fitted)[:, positive], scores(fitted)[:, positive], atol=SMALL * size**0.5)
    np.testing.assert_allclose(ours.transform(new)[:, positive], scores(new)[:, positive], atol=SMALL * size**0.5)
    assert ours.method_ == ours.solver_ == "exact"
    assert ours.approximation_error_ == {"frobenius": 0.0, "uncaptured_trace": 0.0}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "sigmoid"])
def test_all_rows_as_landmarks_reproduce_the_exact_method(name: str, data: str) -> None:
    X, k = DATA[data](200), 2 if name == "linear" or data == "circles" else 6
    exact = KernelPCA(k, kernel=name, method="exact").fit(X)
    landmarks = KernelPCA(k, kernel=name, method="nystrom", n_landmarks=200).fit(X)
    size, new = exact.eigenvalues_[0], X[:50] + 0.01
    np.testing.assert_allclose(landmarks.eigenvalues_, exact.eigenvalues_, rtol=0, atol=SMALL * size)
    same_up_to_sign(landmarks.transform(new), exact.transform(new), SMALL * size**0.5)
    np.testing.assert_allclose(landmarks.explained_variance_ratio_, exact.explained_variance_ratio_, atol=SMALL)
    assert landmarks.approximation_error_["frobenius"] < SMALL
    assert abs(landmarks.approximation_error_["uncaptured_trace"]) < SMALL


@pytest.mark.parametrize(
    "options", [{"method": "exact"}, {"method": "nystrom"}, {"method": "nystrom", "n_landmarks": 12}, {"method": "auto"}], ids=str
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_the_linear_kernel_is_pca(options: dict[str, Any], dtype: str) -> None:
    X = (100 * np.random.default_rng(0).standard_normal((400, 5)) * [9, 7, 5, 3, 2] + 1e4).astype(dtype)
    pca, ours = sp.PCA(4).fit(X), KernelPCA(4, kernel="linear", **options).fit(X)
    size = float(pca.singular_values_[0])
    np.testing.assert_allclose(ours.eigenvalues_, pca.singular_values_**2, rtol=SMALL)
    same_up_to_sign(ours.transform(X.astype(float)), pca.transform(X.astype(float)), SMALL * size)
    same_up_to_sign(ours.transform(X[:9]), pca.transform(X[:9]), (SMALL if dtype != "f4" else 1e-5) * size)
    np.testing.assert_allclose(ours.explained_variance_ratio_, pca.explained_variance_ratio_, atol=SMALL)


@pytest.mark.parametrize("options", [{"method": "exact"}, {"n_landmarks": 60}, {"n_random_features": 1000}], ids=str)
def test_one_component_separates_circles(options: dict[str, Any]) -> None:
    X, inner = make_circles(600, noise=0.05, factor=0.3, random_state=0)
    scores = KernelPCA(1, gamma=3, **options).fit_transform(X)[:, 0]
    assert scores[inner == 0].max() < scores[inner == 1].min()


def test_more_components_than_columns_and_zeros_beyond_the_rank() -> None:
    X = swiss_roll(300)
    assert KernelPCA(40, n_landmarks=100).fit_transform(X).shape == (300, 40)
    for method in ("exact", "nystrom"):
        fitted = KernelPCA(6, kernel="linear", method=method, whiten=True).fit(X)
        assert (fitted.eigenvalues_ > 0).tolist() == [True] * 3 + [False] * 3
        scores = fitted.transform(X)
        np.testing.assert_allclose(np.cov(scores[:, :3].T), np.eye(3), atol=1e-8)
        assert not scores[:, 3:].any()
        assert KernelPCA(kernel="linear", method=method).fit(X).n_components_ == 3


@pytest.mark.parametrize("method", ["exact", "nystrom", "fourier"])
def test_a_share_or_a_criterion_chooses_the_number(method: str) -> None:
    X = clusters(400)
    every = KernelPCA(method=method).fit(X)
    some = KernelPCA(0.8, method=method).fit(X)
    assert 1 <= some.n_components_ < every.n_components_ <= 400
    ratios = every.explained_variance_ratio_ / every.explained_variance_ratio_.sum()
    assert ratios[: some.n_components_].sum() >= 0.8 > ratios[: some.n_components_ - 1].sum()
    np.testing.assert_allclose(some.eigenvalues_, every.eigenvalues_[: some.n_components_], rtol=1e-8)
    assert KernelPCA("bic", method=method).fit(X).n_components_ >= 1


def test_whitened_scores_have_unit_variance() -> None:
    X = clusters(500)
    for options in ({"method": "exact"}, {"n_landmarks": 100}, {"n_random_features": 200}):
        scores = KernelPCA(4, whiten=True, **options).fit_transform(X)
        np.testing.assert_allclose(np.cov(scores.T), np.eye(4), atol=1e-5)


# --- the error -------------------------------------------------------------------------------------------------


def test_random_features_err_like_one_over_the_root_of_their_number() -> None:
    X, sizes = np.random.default_rng(0).standard_normal((400, 8)), [32, 128, 512]

    def mean_error(count: int, orthogonal: bool) -> float:
        fits = (KernelPCA(3, gamma=0.06, n_random_features=count, orthogonal=orthogonal, random_state=seed).fit(X) for seed in range(6))
        return float(np.mean([each.approximation_error_["frobenius"] for each in fits]))

    plain, orthogonal = ([mean_error(size, how) for size in sizes] for how in (False, True))
    for errors in (plain, orthogonal):
        assert -0.6 < np.polyfit(np.log(sizes), np.log(errors), 1)[0] < -0.4
    assert all(better < 0.8 * worse for better, worse in zip(orthogonal, plain, strict=True))


@pytest.mark.parametrize(("n", "tiny", "count"), [(600, 6, 30), (1500, 6, 50), (1900, 20, 30)])
@pytest.mark.parametrize("landmarks", ["leverage", "auto"])
def test_landmarks_see_a_tiny_cluster(landmarks: str, n: int, tiny: int, count: int) -> None:
    """Enough of them: of 20 drawn by leverage from five clusters, one in twenty draws misses a large one, where uniform ones do not."""
    rng = np.random.default_rng(0)
    large = 0.2 * rng.standard_normal((n - tiny, 4)) + 3 * rng.standard_normal((4, 4))[rng.integers(4, size=n - tiny)]
    X = np.r_[large, 0.1 * rng.standard_normal((tiny, 4)) + 15]

    def mean_errors(how: str) -> np.ndarray:
        fits = (KernelPCA(3, gamma=0.1, n_landmarks=count, landmarks=how, random_state=seed).fit(X) for seed in range(8))
        return np.mean([list(each.approximation_error_.values()) for each in fits], axis=0)

    assert (mean_errors(landmarks) < mean_errors("uniform")).all()


def test_the_error_is_what_is_left_out() -> None:
    X = clusters(1200)
    fitted = KernelPCA(3, n_landmarks=40).fit(X)
    K = pairwise_kernels(X, metric="rbf", gamma=fitted.gamma_)
    Z = fitted.landmarks_
    assert Z is not None
    KZ = pairwise_kernels(X, Z, metric="rbf", gamma=fitted.gamma_)
    left = K - KZ @ np.linalg.pinv(pairwise_kernels(Z, metric="rbf", gamma=fitted.gamma_), hermitian=True) @ KZ.T
    assert fitted.approximation_error_["uncaptured_trace"] == pytest.approx(np.trace(left) / 1200, rel=1e-6)
    assert fitted.approximation_error_["frobenius"] == pytest.approx(np.linalg.norm(left) / np.linalg.norm(K), rel=0.1)
    more = KernelPCA(3, n_landmarks=200).fit(X)
    assert more.approximation_error_["frobenius"] < 0.3 * fitted.approximation_error_["frobenius"]


def test_the_error_sees_rows_wherever_they_are() -> None:
    """Sorted rows, the last of them unlike all others: no landmark is there, and the error says so."""
    rng = np.random.default_rng(0)
    X = np.r_[0.1 * rng.standard_normal((1400, 3)), 0.1 * rng.standard_normal((400, 3)) + 20]
    one = KernelPCA(1, gamma=1, n_landmarks=1).fit(X)
    assert one.landmarks_ is not None
    K, KZ = (pairwise_kernels(X, other, metric="rbf", gamma=1) for other in (X, one.landmarks_))
    assert one.approximation_error_["frobenius"] == pytest.approx(np.linalg.norm(K - KZ @ KZ.T) / np.linalg.norm(K), rel=0.1)


# --- from files, anywhere, the same bits -----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    X = clusters(3000).astype("f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(100, 10), compression="gzip")
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(100, 10))
    np.save(tmp_path / "x.npy", X)
    return {"array": X, "hdf5": tmp_path / "x.h5", "zarr": tmp_path / "x.zarr", "npy": tmp_path / "x.npy"}


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("method", ["nystrom", "fourier"])
def test_every_source_gives_the_same(files: dict[str, Any], method: str, tmp_path: Path) -> None:
    fits = {name: KernelPCA(4, method=method, n_landmarks=60, n_random_features=60).fit(X) for name, X in files.items()}
    lazy = KernelPCA(4, method=method, n_landmarks=60, n_random_features=60).fit(da.from_array(files["array"], chunks=(700, 4)))
    for each in (*fits.values(), lazy):
        np.testing.assert_allclose(each.eigenvalues_, fits["array"].eigenvalues_, rtol=1e-5)
        assert each.n_passes_ == 2
    wanted = fits["hdf5"].transform(files["array"])
    assert wanted.dtype == np.float32
    np.testing.assert_allclose(fits["hdf5"].transform(files["zarr"]).compute(), wanted, atol=1e-5)
    fits["hdf5"].transform_to(files["zarr"], tmp_path / "z.h5")
    np.testing.assert_allclose(sp.open_source(tmp_path / "z.h5").read(slice(None)), wanted, atol=1e-5)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("options", [{"n_landmarks": 60}, {"n_random_features": 60}, {"method": "exact"}], ids=str)
def test_the_same_bits_on_threads_and_on_a_cluster(files: dict[str, Any], two_processes: Client, options: dict[str, Any]) -> None:
    source = sp.open_source(files["hdf5"], rows=slice(0, 1200))
    estimator = KernelPCA(4, memory="2GiB", fit_inverse_transform=True, **options)
    fits = [clone(estimator).fit_source(source, scheduler=each) for each in (Threads(1), Threads(2), Cluster(two_processes))]
    for each in fits[1:]:
        np.testing.assert_array_equal(each.eigenvalues_, fits[0].eigenvalues_)
        np.testing.assert_array_equal(each.transform(files["array"][:200]), fits[0].transform(files["array"][:200]))


def test_the_default_is_reproducible_and_the_seed_counts() -> None:
    X = clusters(600)
    one, two, other = (KernelPCA(3, n_landmarks=50, random_state=seed).fit(X) for seed in (None, 0, 1))
    np.testing.assert_array_equal(one.transform(X), two.transform(X))
    assert one.landmarks_ is not None
    assert other.landmarks_ is not None
    assert not np.array_equal(one.landmarks_, other.landmarks_)


@pytest.mark.parametrize("name", ["rbf", "linear"])
def test_weights_count_rows(name: str) -> None:
    rng = np.random.default_rng(0)
    X, w = clusters(300), rng.integers(0, 4, 300)
    weighted = KernelPCA(3, kernel=name, n_landmarks=300).fit(X, sample_weight=w.astype(float))
    repeated = KernelPCA(3, kernel=name, method="exact").fit(np.repeat(X, w, axis=0))
    np.testing.assert_allclose(weighted.eigenvalues_, repeated.eigenvalues_, rtol=1e-7)
    np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), atol=1e-6)
    assert KernelPCA(2).fit(X, sample_weight=np.ones(300)).solver_ == "nystrom"


def test_many_rows_of_float32_and_a_steep_spectrum() -> None:
    """From 131,072 rows on products are in float32; where the spectrum is steep, the pass is repeated in float64."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((140_000, 2)).astype("f4")
    fitted = KernelPCA(2, gamma=0.5, n_landmarks=8).fit(X)
    assert (fitted.n_passes_, fitted.plan_ is not None and fitted.plan_.precision) == (2, "float32")
    few = KernelPCA(2, gamma=0.5, method="exact").fit(X[:2000])
    np.testing.assert_allclose(fitted.eigenvalues_ / 140_000, few.eigenvalues_ / 2000, rtol=0.15)
    steep = KernelPCA(3, gamma=1e-4, n_random_features=16).fit(X)
    assert steep.n_passes_ == 3
    np.testing.assert_allclose(steep.transform(X.astype(float)).var(axis=0) * 140_000, steep.eigenvalues_, rtol=1e-3)


# --- pre-images ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"method": "exact"}, {"n_landmarks": 300}], ids=str)
def test_denoised_digits_are_at_least_as_good_as_scikit_learns(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X = digits(1100)
    rng.shuffle(X)
    fitted, clean = X[:800] + 0.25 * rng.standard_normal((800, 64)), X[800:]
    noisy = clean + 0.25 * rng.standard_normal(clean.shape)

    def mse(rows: np.ndarray) -> float:
        return float(np.mean((rows - clean) ** 2))

    reference = TheirKernelPCA(16, kernel="rbf", gamma=0.05, fit_inverse_transform=True).fit(fitted)
    ours = KernelPCA(16, gamma=0.05, fit_inverse_transform=True, **options).fit(fitted)
    scores = ours.transform(noisy)
    their_error = mse(reference.inverse_transform(reference.transform(noisy)))
    assert mse(ours.inverse_transform(scores)) <= their_error
    assert mse(ours.inverse_transform(scores, method="fixed-point")) <= their_error < 0.5 * mse(noisy)
    lazy = ours.inverse_transform(da.from_array(scores, chunks=(64, 16)))
    np.testing.assert_allclose(lazy.compute(), ours.inverse_transform(scores), atol=1e-10)
    given = KernelPCA(16, gamma=0.05, whiten=True, fit_inverse_transform=True, **options).fit(fitted)
    np.testing.assert_allclose(given.inverse_transform(given.transform(noisy)), ours.inverse_transform(scores), atol=1e-6)


def test_pre_images_from_random_features_and_without_a_regression() -> None:
    X = circles(400)
    fourier = KernelPCA(10, gamma=2, n_random_features=200, fit_inverse_transform=True).fit(X)
    assert np.abs(fourier.inverse_transform(fourier.transform(X)) - X).mean() < 0.05
    plain = KernelPCA(20, gamma=2, n_landmarks=100).fit(X)
    assert np.abs(plain.inverse_transform(plain.transform(X), method="fixed-point") - X).mean() < 0.05
    with pytest.raises(UsageError, match="fit with fit_inverse_transform=True"):
        plain.inverse_transform(plain.transform(X))
    with pytest.raises(UsageError, match="fixed point is for the rbf kernel"):
        fourier.inverse_transform(fourier.transform(X), method="fixed-point")
    with pytest.raises(UsageError, match="Did you mean 'ridge'"):
        fourier.inverse_transform(fourier.transform(X), method="rigde")
    with pytest.raises(DataError, match="10 columns"):
        fourier.inverse_transform(X)


# --- saved -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"method": "exact", "kernel": "poly", "degree": 2},
        {"n_landmarks": 50, "fit_inverse_transform": True, "gamma": "median"},
        {"n_landmarks": 50, "kernel": "linear", "whiten": True},
        {"n_random_features": 50, "kernel": "laplacian", "fit_inverse_transform": True},
    ],
    ids=str,
)
def test_a_loaded_fit_is_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    X = clusters(300)
    one = KernelPCA(3, **options).fit(X)
    one.save(tmp_path / "m.zarr")
    two = sp.load(tmp_path / "m.zarr")
    assert isinstance(two, KernelPCA)
    assert two.get_params() == one.get_params()
    np.testing.assert_array_equal(two.transform(X), one.transform(X))
    np.testing.assert_array_equal(two.eigenvalues_, one.eigenvalues_)
    assert (two.approximation_error_, two.gamma_, two.solver_) == (one.approximation_error_, one.gamma_, one.solver_)
    assert two.summary() == one.summary()
    if one.fit_inverse_transform:
        np.testing.assert_array_equal(two.inverse_transform(one.transform(X)), one.inverse_transform(one.transform(X)))


@pytest.mark.filterwarnings("ignore:the custom kernel is not positive")
@pytest.mark.parametrize("method", ["exact", "nystrom"])
def test_a_function_is_a_kernel_that_cannot_be_saved(method: str, tmp_path: Path) -> None:
    X = digits(200)
    ours, reference = KernelPCA(4, kernel=chi2_kernel, method=method, n_landmarks=200), TheirKernelPCA(4, kernel="precomputed")
    scores = ours.fit_transform(X)
    same_up_to_sign(scores, reference.fit_transform(chi2_kernel(X)), 1e-6)
    with pytest.raises(UsageError, match="a Python function cannot be stored"):
        ours.save(tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()


def test_from_the_command_line(files: dict[str, Any], tmp_path: Path) -> None:
    done = run(
        "fit", files["hdf5"], "--method", "kpca", "-k", "5", "--model", tmp_path / "m.zarr", "--scores", tmp_path / "z.npy", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    model = sp.load(tmp_path / "m.zarr")
    assert (model.kind, model.n_components_, model.n_samples_) == ("kpca", 5, 3000)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), model.transform(files["array"]), atol=1e-5)


# --- bad input -------------------------------------------------------------------------------------------------


def test_a_kernel_with_negative_eigenvalues_is_said() -> None:
    X = digits(200)
    for method in ("exact", "nystrom"):
        with pytest.warns(UserWarning, match="sigmoid kernel is not positive semi-definite.*% of its spectrum is negative"):
            fitted = KernelPCA(4, kernel="sigmoid", gamma=0.5, method=method).fit(X)
        assert fitted.negative_share_ > 0
        assert (fitted.eigenvalues_ >= 0).all()
        assert np.isfinite(fitted.transform(X)).all()
        assert fitted.summary()["negative_share"] == fitted.negative_share_


def test_duplicates_and_more_landmarks_than_rows() -> None:
    X = np.repeat(circles(40), 5, axis=0)
    with pytest.warns(UserWarning, match="n_landmarks=500 is more than the 200 rows"):
        every = KernelPCA(4, gamma=2, n_landmarks=500).fit(X)
    some = KernelPCA(4, gamma=2, n_landmarks=150, landmarks="uniform").fit(X)
    exact = KernelPCA(4, gamma=2, method="exact").fit(X)
    np.testing.assert_allclose(every.eigenvalues_, exact.eigenvalues_, rtol=1e-6)
    np.testing.assert_allclose(some.eigenvalues_, exact.eigenvalues_, rtol=1e-6)
    np.testing.assert_allclose(every.transform(X), exact.transform(X), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["exact", "nystrom", "fourier"])
def test_the_first_nan_is_named(method: str, bad: float) -> None:
    X = clusters(400)
    X[[123, 300], [7, 1]] = bad
    fitted = KernelPCA(2, method=method).fit(clusters(400))
    for act in (KernelPCA(2, method=method).fit, fitted.transform):
        with pytest.raises(NonFiniteError, match="row 123, column 7"):
            act(X)
    Z = fitted.transform(clusters(20))
    Z[3, 1] = bad
    with pytest.raises(NonFiniteError, match="row 3, column 1"):
        KernelPCA(2, method=method, fit_inverse_transform=True).fit(clusters(200)).inverse_transform(Z)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"gamma": 0}, "gamma must be a positive number, not 0.0"),
        ({"gamma": -1.0}, "gamma must be a positive number, not -1.0"),
        ({"gamma": np.nan}, "gamma must be a positive number, not nan"),
        ({"gamma": "media"}, "Did you mean 'median'"),
        ({"gamma": "median", "kernel": "poly"}, "the polynomial kernel has none"),
        ({"kernel": "rfb"}, "Did you mean 'rbf'"),
        ({"kernel": 3}, "kernel must be a name or a function"),
        ({"degree": -1, "kernel": "poly"}, "degree must be a positive number"),
        ({"method": "nystroem"}, "Did you mean 'nystrom'"),
        ({"landmarks": "unifrom"}, "Did you mean 'uniform'"),
        ({"n_landmarks": 0}, "n_landmarks must be None or an integer of 1 or more, not 0"),
        ({"n_landmarks": 2.5}, "n_landmarks must be None or an integer"),
        ({"n_random_features": 7}, "even as cos and sin are paired, not 7"),
        ({"n_random_features": 8, "kernel": "linear"}, "random Fourier features are for the rbf and laplacian kernels"),
        ({"n_random_features": 8, "kernel": "laplacian", "orthogonal": True}, "orthogonal frequencies are for the rbf kernel"),
        ({"n_components": 0}, "n_components=0 must be 1 or more"),
        ({"n_components": 9, "n_landmarks": 8}, "between 1 and the number of landmarks, 8"),
        ({"n_components": 41, "method": "exact"}, "between 1 and n_samples=40"),
        ({"n_components": 1.5}, "n_components=1.5 is not a fraction"),
        ({"n_components": "bicc"}, "Did you mean 'bic'"),
        ({"whiten": "no"}, "whiten must be true or false"),
        ({"alpha": 0}, "alpha must be a positive number or 'auto', not 0"),
        ({"random_state": -1}, "random_state must be None or an integer of 0 or more"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelPCA(**params).fit(clusters(40))
    with pytest.raises(ValueError, match=message):
        KernelPCA(**params).plan_for(sp.open_source(clusters(40)))


def test_the_exact_method_takes_no_weights() -> None:
    with pytest.raises(UsageError, match="use method='nystrom'"):
        KernelPCA(2, method="exact").fit(clusters(40), sample_weight=np.ones(40))


@pytest.mark.parametrize("method", ["exact", "nystrom", "fourier"])
def test_constant_rows_have_no_components(method: str) -> None:
    fitted = KernelPCA(2, method=method, whiten=True).fit(np.full((30, 3), 7.0))
    assert not fitted.eigenvalues_.any()
    assert not fitted.transform(np.full((4, 3), 7.0)).any()


# --- scikit-learn's checks -------------------------------------------------------------------------------------

ESTIMATORS = [KernelPCA(n_components=1), KernelPCA(n_components=1, method="nystrom", whiten=True)]


@parametrize_with_checks(ESTIMATORS)
def test_all_of_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        check_dataframe_column_names_consistency,
        check_get_feature_names_out_error,
        check_set_output_transform,
        check_transformer_get_feature_names_out,
    ],
)
@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names")  # the checks themselves mix frames and arrays
def test_checks_that_parametrize_with_checks_leaves_out(check: Any) -> None:
    check("KernelPCA", clone(ESTIMATORS[0]))
