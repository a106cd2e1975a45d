"""PCA against scikit-learn's full SVD, in memory: fitted attributes, every method, batches, merges, precision, hard data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import hadamard
from sklearn import decomposition
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca import PCA
from streampca.errors import DataError, MemoryBudgetError, NonFiniteError, UsageError

SHAPES = [(200, 8), (9, 9), (5, 12), (30, 1), (12, 11), (2, 3)]
FITTED = (
    *("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "scale_"),
    *("noise_variance_", "n_components_", "n_samples_", "n_features_in_", "n_passes_", "solver_"),
)


def data(n: int = 200, d: int = 8, *, seed: int = 0, deviations: Any = None, mean: float = 2.0) -> np.ndarray:
    """Return rows with a spectrum of distinct variances (unless given) in directions of no special kind."""
    rng = np.random.default_rng([seed, n, d])
    directions, _ = np.linalg.qr(rng.standard_normal((d, d)))
    deviations = 3.0 / np.arange(1, d + 1) if deviations is None else np.asarray(deviations)
    return (rng.standard_normal((n, d)) * deviations) @ directions + mean


def full_svd(n_components: Any = None, whiten: bool = False) -> decomposition.PCA:
    return decomposition.PCA(n_components, whiten=whiten, svd_solver="full")


def plan_of(pca: PCA) -> sp.Plan:
    assert pca.plan_ is not None
    return pca.plan_


def assert_same_fit(ours: PCA, theirs: PCA, rtol: float = 1e-12) -> None:
    """Compare two fits of streampca; components only where they are determined by the data."""
    assert ours.n_components_ == theirs.n_components_
    assert ours.n_samples_ == theirs.n_samples_
    top = theirs.explained_variance_[0]
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=rtol, atol=rtol * top)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=rtol)
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, rtol=rtol, atol=rtol * top)
    real = theirs.explained_variance_ > 1e-9 * top
    np.testing.assert_allclose(ours.components_[real], theirs.components_[real], atol=1e3 * rtol)


# --- the fit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", [None, 1, "half", "all", 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_attribute_is_scikit_learns(shape: tuple[int, int], n_components: Any) -> None:
    X = data(*shape)
    limit = min(shape)
    k = {"half": max(limit // 2, 1), "all": limit}.get(n_components, n_components)
    ours, theirs = PCA(k).fit(X), full_svd(k).fit(X)
    top = theirs.explained_variance_[0]
    assert ours.n_components_ == theirs.n_components_ == len(ours.components_)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10, atol=1e-14 * top)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-10, atol=1e-6 * theirs.singular_values_[0])
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-14)
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, rtol=1e-9, atol=1e-13 * top)
    real = theirs.explained_variance_ > 1e-10 * top  # beyond the rank any direction will do
    np.testing.assert_allclose(ours.components_[real], theirs.components_[real], atol=1e-9)
    np.testing.assert_allclose(ours.components_ @ ours.components_.T, np.eye(ours.n_components_), atol=1e-12)
    np.testing.assert_array_equal(ours.scale_, np.ones(shape[1]))
    assert (ours.n_samples_, ours.n_features_in_) == shape
    assert (ours.n_passes_, ours.solver_, plan_of(ours).n_passes) == (1, "covariance", 1)


def ties(deviations: np.ndarray) -> np.ndarray:
    """Return rows whose covariance is exactly diagonal."""
    return hadamard(16)[:, 1 : 1 + len(deviations)] * deviations


SPECTRA = {
    "flat": data(500, 6, deviations=np.ones(6)),
    "geometric": data(500, 6, deviations=2.0 ** -np.arange(6)),
    "one": data(500, 6, deviations=[100, 1, 1, 1, 1, 1]),
    "rank 2": data(500, 6, deviations=[2, 1, 0, 0, 0, 0]),
    "wide": data(6, 40),
    "exact ties": ties(np.ones(7)),
    "ties in pairs": ties(np.array([4.0, 4.0, 2.0, 2.0, 1.0, 1.0])),
}


@pytest.mark.parametrize("X", SPECTRA.values(), ids=list(SPECTRA))
def test_a_fraction_keeps_as_many_components_as_scikit_learn(X: np.ndarray) -> None:
    ratios = np.cumsum(full_svd().fit(X).explained_variance_ratio_)
    fractions = np.linspace(0.003, 0.997, 60)
    for fraction in fractions[np.abs(fractions[:, None] - ratios).min(axis=1) > 1e-9]:  # on the edge, rounding decides
        assert PCA(float(fraction)).fit(X).n_components_ == full_svd(float(fraction)).fit(X).n_components_, fraction


# --- the methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_every_method_is_scikit_learns(k: int, whiten: bool, standardize: bool) -> None:
    X, new = data() * np.arange(1.0, 9.0), data(50, seed=1)
    ours = PCA(k, whiten=whiten, standardize=standardize)
    steps = [StandardScaler()] if standardize else []
    theirs = make_pipeline(*steps, full_svd(k, whiten))
    np.testing.assert_allclose(ours.fit_transform(X), theirs.fit_transform(X), atol=1e-10)
    np.testing.assert_allclose(ours.transform(new), theirs.transform(new), atol=1e-10)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(new)), theirs.inverse_transform(theirs.transform(new)), atol=1e-10)

    scale = np.sqrt(X.var(axis=0)) if standardize else np.ones(8)
    np.testing.assert_allclose(ours.scale_, scale, rtol=1e-12)
    # Whitening scales scores and is no part of the density; scikit-learn's covariance is wrong with it (its issue 13898).
    theirs = make_pipeline(*steps, full_svd(k)).fit(X)
    jacobian = np.log(scale).sum()  # ours is the density of the rows themselves, not of the standardised ones
    np.testing.assert_allclose(ours.score_samples(new), theirs.score_samples(new) - jacobian, rtol=1e-9)
    assert ours.score(new) == pytest.approx(theirs.score(new) - jacobian, rel=1e-9)
    np.testing.assert_allclose(ours.get_covariance(), theirs[-1].get_covariance() * np.outer(scale, scale), atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), theirs[-1].get_precision() / np.outer(scale, scale), rtol=1e-7, atol=1e-9)
    if k == 8:
        np.testing.assert_allclose(ours.get_covariance(), np.cov(X.T), atol=1e-10)


def test_all_components_invert_the_transform() -> None:
    X = data()
    for pca in (PCA(), PCA(whiten=True), PCA(standardize=True, whiten=True)):
        np.testing.assert_allclose(pca.inverse_transform(pca.fit_transform(X)), X, atol=1e-11)


def test_whitened_scores_have_unit_covariance() -> None:
    scores = PCA(4, whiten=True).fit_transform(data())
    np.testing.assert_allclose(np.cov(scores.T), np.eye(4), atol=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint16", "int64", "bool", ">f8", ">i4"])
def test_dtypes(dtype: str) -> None:
    X = (10 * data(mean=0.0) > 0 if dtype == "bool" else 10 * data(mean=5.0)).astype(dtype)
    ours, theirs = PCA(3).fit(X), full_svd(3).fit(X.astype(np.float64))
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    scores = ours.transform(X)
    assert scores.dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_allclose(scores, theirs.transform(X.astype(np.float64)), atol=1e-4 if dtype == "float32" else 1e-9)
    assert ours.inverse_transform(scores).dtype == scores.dtype


def test_memory_order_and_strides_do_not_matter() -> None:
    X = data()
    wanted = PCA(3).fit(X)
    padded = np.zeros((400, 16))
    padded[::2, ::2] = X
    for same in (np.asfortranarray(X), padded[::2, ::2], X.tolist(), pd.DataFrame(X)):
        assert_same_fit(PCA(3).fit(same), wanted, rtol=1e-13)


def test_the_input_is_left_alone() -> None:
    X = data()
    before = X.copy()
    X.flags.writeable = False
    pca = PCA(3).fit(X)
    pca.transform(X), pca.score(X), pca.partial_fit(X)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_entries_that_are_not_finite_are_refused_by_row_and_column(value: float, kind: str, dtype: str) -> None:
    X = data().astype(dtype)
    pca = PCA(3).fit(X)
    X[151, 6] = X[170, 2] = value
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    for method in (PCA(3).fit, PCA(3).partial_fit, pca.transform, pca.score_samples, pca.partial_fit):
        with pytest.raises(NonFiniteError, match=f"contains {kind}: the first such entry is in row 151, column 6"):
            method(X)
    with pytest.raises(NonFiniteError, match=r"row 151, column 6 \('g'\)"):
        PCA(3).fit(frame)
    np.testing.assert_array_equal(pca.partial_fit(X[:100]).n_samples_, 300)  # what was refused left no trace


# --- batches and merges ----------------------------------------------------------------------------------------


def in_batches(X: np.ndarray, sizes: list[int], **params: Any) -> PCA:
    pca, start = PCA(**params), 0
    for size in [*sizes, len(X) - sum(sizes)]:
        pca.partial_fit(X[start : start + size])
        start += size
    return pca


BATCHES = [[100], [1], [1] * 20, [199], [3, 50, 1, 1, 90], [7] * 28]


@pytest.mark.parametrize("sizes", BATCHES, ids=str)
@pytest.mark.parametrize(
    "params",
    [{}, {"n_components": 3}, {"n_components": 8}, {"n_components": 0.9}, {"n_components": 2, "whiten": True, "standardize": True}],
    ids=str,
)
@pytest.mark.parametrize("mean", [2.0, 1e8])
def test_batches_equal_one_fit(sizes: list[int], params: dict[str, Any], mean: float) -> None:
    X = data(mean=mean)
    assert_same_fit(in_batches(X, sizes, **params), PCA(**params).fit(X))


def test_components_grow_with_the_rows() -> None:
    X = data()
    pca = PCA(n_components=5)
    assert [pca.partial_fit(X[i : i + 2]).n_components_ for i in (0, 2, 4, 6)] == [2, 4, 5, 5]


def test_batches_go_on_after_a_fit_and_a_fit_starts_over() -> None:
    X = data()
    assert_same_fit(PCA(3).fit(X[:60]).partial_fit(X[60:]), PCA(3).fit(X))
    assert_same_fit(PCA(3).fit(data(seed=9)).fit(X), PCA(3).fit(X))


def test_batches_of_float32_keep_the_accuracy_of_float64() -> None:
    X = data(2**17, 3, deviations=[1e2, 1, 1e-1]).astype(np.float32)
    pca = PCA().partial_fit(X).partial_fit(X[:10])
    exact = np.linalg.eigvalsh(np.cov(np.vstack([X, X[:10]]).astype(np.float64).T))[::-1]
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=1e-6)


def test_a_batch_of_other_columns_is_refused() -> None:
    X = data()
    pca = PCA(3).fit(X)
    with pytest.raises(ValueError, match="X has 7 features, but PCA is expecting 8"):
        pca.partial_fit(X[:, :7])
    assert pca.n_samples_ == 200


@pytest.mark.parametrize("cut", [1, 2, 77, 199])
def test_merged_fits_equal_one_fit(cut: int) -> None:
    X = data(mean=1e5)
    first, second = PCA(3).partial_fit(X[:cut]), PCA(3).partial_fit(X[cut:])
    assert_same_fit(first.merge(second), PCA(3).fit(X))
    assert second._state is not None
    assert second._state.count == 200 - cut  # left as it was


def test_a_tree_of_merges_equals_one_fit() -> None:
    X = data()
    parts = [PCA(3, standardize=True).fit(part) for part in np.array_split(X, 8)]
    while len(parts) > 1:
        parts = [left.merge(right) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    assert_same_fit(parts[0], PCA(3, standardize=True).fit(X))


def test_merges_that_make_no_sense_are_refused() -> None:
    X = data()
    with pytest.raises(DataError, match="cannot merge fits of 8 and 7 features"):
        PCA(3).fit(X).merge(PCA(3).fit(X[:, :7]))
    with pytest.raises(UsageError, match="both must be fitted"):
        PCA(3).fit(X).merge(PCA(3))
    with pytest.raises(UsageError, match="both must be fitted"):
        PCA(3).merge(PCA(3).fit(X))
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    with pytest.raises(DataError, match="different names"):
        PCA(3).fit(frame).merge(PCA(3).fit(frame[list("hgfedcba")]))


# --- precision -------------------------------------------------------------------------------------------------


def test_a_huge_mean_in_float64() -> None:
    X = data(5000, 6, deviations=np.linspace(1, 2, 6), mean=1e8)
    pca = PCA(3).fit(X)
    centred = X.astype(np.longdouble) - X.astype(np.longdouble).mean(axis=0)
    exact = np.linalg.eigvalsh((centred.T @ centred / 4999).astype(np.float64))[::-1][:3]
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=1e-12)
    scores = centred @ pca.components_.T.astype(np.longdouble)
    # 1.5e-8 is the distance of float64 numbers near 1e8: nothing finer is in the stored mean
    np.testing.assert_allclose(pca.transform(X), scores.astype(np.float64), atol=4e-8)


@pytest.mark.parametrize("whiten", [False, True])
def test_a_huge_mean_in_float32(whiten: bool) -> None:
    X = (data(5000, 6, deviations=np.linspace(1, 2, 6), mean=0) + 1e6 * np.arange(1, 7)).astype(np.float32)
    pca, exact = PCA(3, whiten=whiten).fit(X), full_svd(3, whiten).fit(X.astype(np.float64))
    np.testing.assert_allclose(pca.explained_variance_, exact.explained_variance_, rtol=1e-10)
    scores = pca.transform(X)
    wanted = ((X.astype(np.float64) - exact.mean_) @ exact.components_.T) / (np.sqrt(exact.explained_variance_) if whiten else 1)
    assert scores.dtype == np.float32
    assert np.abs(scores - wanted).max() <= 1e-5 * wanted.std()


def many_float32(deviations: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return enough rows for float32 products, and their exact variances."""
    X = data(2**17, len(deviations), deviations=deviations).astype(np.float32)
    return X, np.linalg.eigvalsh(np.cov(X.astype(np.float64).T))[::-1]


def test_float32_products_for_many_rows() -> None:
    X, exact = many_float32(np.linspace(1, 2, 6))
    pca = PCA().fit(X)
    assert (plan_of(pca).precision, pca.n_passes_) == ("float32", 1)
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=1e-6)
    assert plan_of(PCA().fit(X[:-1])).precision == "float64"
    assert plan_of(PCA().fit(X.astype(np.float64))).precision == "float64"
    assert plan_of(PCA(precision="float64").fit(X)).precision == "float64"


def test_a_steep_spectrum_is_done_again_in_float64() -> None:
    X, exact = many_float32(10.0 ** np.arange(2, -4, -1))
    pca = PCA().fit(X)
    assert (plan_of(pca).precision, pca.n_passes_) == ("float32", 2)
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=1e-6)
    leading = PCA(n_components=2).fit(X)  # its smallest variance is large enough
    assert leading.n_passes_ == 1
    np.testing.assert_allclose(leading.explained_variance_, exact[:2], rtol=1e-6)


def test_float32_can_be_forced() -> None:
    X, exact = many_float32(np.linspace(1, 2, 6))
    for rows, variances in ((X, exact), (X[:5000], np.linalg.eigvalsh(np.cov(X[:5000].astype(np.float64).T))[::-1])):
        pca = PCA(precision="float32").fit(rows)
        assert (plan_of(pca).precision, pca.n_passes_) == ("float32", 1)
        np.testing.assert_allclose(pca.explained_variance_, variances, rtol=1e-6)
    steep = PCA(precision="float32").fit(many_float32(10.0 ** np.arange(2, -4, -1))[0])
    assert steep.n_passes_ == 1  # as asked for


# --- hard data -------------------------------------------------------------------------------------------------


HARD = {
    "a constant column": np.c_[data(50, 4), np.full(50, 7.0)],
    "all constant": np.full((20, 3), 5.0),
    "all zero": np.zeros((20, 3)),
    "duplicate rows": np.repeat(data(3, 5), 20, axis=0),
    "duplicate columns": np.tile(data(50, 2), 3),
    "rank one": np.outer(np.arange(30.0), [1.0, 2.0, 3.0]),
    "two rows": data(2, 6),
    "two equal rows": np.ones((2, 4)),
    "one column": data(20, 1),
    "fewer rows than columns": data(5, 20),
    "large": 1e150 * data(30, 4),
    "small": 1e-150 * data(30, 4),
}


TOO_WIDE_FOR_FLOAT32 = ("large", "small")


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("k", [None, 1, 0.9])
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in HARD for dtype in ("float64", "float32")[: 1 if name in TOO_WIDE_FOR_FLOAT32 else 2]]
)
def test_hard_data_gives_finite_results(name: str, k: Any, whiten: bool, standardize: bool, dtype: str) -> None:
    X = HARD[name].astype(dtype)
    pca = PCA(k, whiten=whiten, standardize=standardize)
    scores = pca.fit_transform(X)
    for attribute in FITTED[:7]:
        assert np.isfinite(getattr(pca, attribute)).all(), attribute
    assert np.isfinite(scores).all()
    assert np.isfinite(pca.inverse_transform(scores)).all()
    assert np.isfinite(pca.get_covariance()).all()
    assert (pca.explained_variance_ >= 0).all()
    assert pca.explained_variance_ratio_.sum() <= 1 + 1e-12
    assert pca.noise_variance_ >= 0


def test_a_singular_model_has_no_density() -> None:
    pca = PCA().fit(HARD["rank one"])
    for method in (pca.score, pca.score_samples, lambda X: pca.get_precision()):
        with pytest.raises(UsageError, match=r"covariance is singular.*fit fewer than 3 components"):
            method(HARD["rank one"])


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_values_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(DataError, match="overflow float64: rescale the data"):
        PCA().fit(1e200 * data())


def test_one_row_is_refused() -> None:
    with pytest.raises(DataError, match="at least 2 rows, but n_samples=1"):
        PCA().fit(data()[:1])


# --- the budget ------------------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_refused_with_its_bytes() -> None:
    X = np.zeros((100, 1000))
    plan: Any = sp.plan
    with pytest.raises(
        MemoryBudgetError, match=r"a memory budget of 1\.0 MiB cannot hold stage '.*' of 100 x 1,000 data: it needs at least"
    ):
        PCA(memory="1MiB").fit(X)
    with pytest.raises(MemoryBudgetError) as caught:
        plan(X, memory=2**20)
    enough = str(caught.value).split("Give a memory of ")[1].split(" or more")[0]
    assert plan(X, memory=enough).peak_memory <= plan(X, memory=enough).budget


def test_a_budget_is_kept_by_the_plan() -> None:
    pca = PCA(2, memory="1GiB").fit(data())
    assert plan_of(pca).budget == 2**30
    assert plan_of(pca).peak_memory <= 2**30
    assert "projected peak memory" in plan_of(pca).explain()
