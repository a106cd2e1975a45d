from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import DataError
from streampca.planning.covariance import FULL_SPECTRUM_LIMIT, kept_vectors
from streampca.solvers.choice import count_components, known_spectrum
from streampca.solvers.covariance import column_scales, eigenpairs, model_of, solve
from streampca.solvers.spectrum import Options, fix_signs
from streampca.statistics import Scatter


def scatter_of(X: np.ndarray, precision: Any = "float64") -> Scatter:
    scatter = Scatter(X.shape[1], precision)
    scatter.update(X)
    return scatter


def rows(n: int = 200, d: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) + 7


# --- signs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([0.6, 0.8], [0.6, 0.8]),
        ([0.6, -0.8], [-0.6, 0.8]),
        ([-1.0, 0.0], [1.0, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([-0.7, 0.7], [0.7, -0.7]),  # of equal ones, the first
    ],
)
def test_the_largest_entry_becomes_positive(row: list[float], wanted: list[float]) -> None:
    np.testing.assert_array_equal(fix_signs(np.array([row])), [wanted])


def test_signs_do_not_depend_on_the_signs_given() -> None:
    components = np.random.default_rng(0).standard_normal((4, 7))
    flipped = components * np.array([1, -1, -1, 1])[:, None]
    np.testing.assert_array_equal(fix_signs(components), fix_signs(flipped))
    np.testing.assert_array_equal(np.abs(fix_signs(components)), np.abs(components))


# --- how many components ---------------------------------------------------------------------------------------


def count(variances: np.ndarray, wanted: Any, limit: int) -> int:
    d = len(variances)
    return count_components(known_spectrum(variances, d + 1, d + 1.0, d, float(variances.sum())), wanted, limit)


def scikit_learns_rule(variances: np.ndarray, fraction: float) -> int:
    """Return the number as in sklearn.decomposition.PCA._fit_full."""
    ratio_cumsum = np.cumsum(variances / variances.sum())
    return int(np.searchsorted(ratio_cumsum, fraction, side="right")) + 1


@given(
    variances=st.lists(st.integers(1, 64), min_size=1, max_size=30).map(lambda values: np.sort(np.array(values, float))[::-1]),
    fraction=st.floats(0.001, 0.999),
)
def test_a_fraction_follows_scikit_learns_rule(variances: np.ndarray, fraction: float) -> None:
    edge = np.abs(np.cumsum(variances) / variances.sum() - fraction).min() < 1e-12  # there, rounding decides
    if not edge:
        assert count(variances, fraction, len(variances)) == min(scikit_learns_rule(variances, fraction), len(variances))


def test_exact_ties_need_more_than_the_fraction() -> None:
    assert [count(np.ones(4), part, 4) for part in (0.2, 0.25, 0.3, 0.5, 0.75, 0.99)] == [1, 2, 2, 3, 4, 4]


def test_numbers_are_taken_as_they_are() -> None:
    variances = np.array([3.0, 0.0])
    assert count(variances, None, 2) == 2
    assert count(variances, 1, 2) == 1
    assert count(variances, 0.999999, 2) == 1
    assert count(np.zeros(2), 0.5, 2) == 1


# --- eigenpairs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 7, 40])
def test_all_eigenpairs_are_numpys(d: int) -> None:
    X = rows(100, d)
    spectrum = eigenpairs(scatter_of(X), np.ones(d), d)
    covariance = np.atleast_2d(np.cov(X.T))
    np.testing.assert_allclose(spectrum.variances, np.linalg.eigvalsh(covariance)[::-1], rtol=1e-11)
    np.testing.assert_allclose(covariance @ spectrum.vectors.T, spectrum.vectors.T * spectrum.variances, atol=1e-10 * spectrum.variances[0])
    assert spectrum.trace == pytest.approx(covariance.trace(), rel=1e-13)


def test_a_scale_divides_the_columns() -> None:
    X = rows()
    scatter = scatter_of(X)
    scale = column_scales(scatter)
    np.testing.assert_allclose(scale, X.std(axis=0), rtol=1e-12)
    spectrum = eigenpairs(scatter, scale, 6)
    np.testing.assert_allclose(spectrum.variances, np.linalg.eigvalsh(np.cov((X / scale).T))[::-1], rtol=1e-11)
    np.testing.assert_array_equal(scatter.scatter, scatter_of(X).scatter)  # the sums are left alone


def test_a_constant_column_has_scale_one() -> None:
    assert column_scales(scatter_of(np.c_[rows(), np.full(200, 3.0)]))[-1] == 1


@pytest.mark.parametrize("k", [1, 5])
def test_the_leading_eigenpairs_of_a_wide_matrix_are_numpys(k: int) -> None:
    d = FULL_SPECTRUM_LIMIT + 50
    assert kept_vectors(d, k) == k
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, d)) + rng.standard_normal((60, 5)) @ (rng.standard_normal((5, d)) * np.array([5, 4, 3, 2, 1])[:, None])
    model = model_of(scatter_of(X), Options(k))
    centred = X - X.mean(axis=0)
    _, singular, vectors = np.linalg.svd(centred, full_matrices=False)
    variances = singular**2 / 59
    np.testing.assert_allclose(model.explained_variance, variances[:k], rtol=1e-10)
    np.testing.assert_allclose(model.components, fix_signs(vectors[:k]), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio, variances[:k] / variances.sum(), rtol=1e-10)
    np.testing.assert_allclose(model.noise_variance, variances[k:].sum() / (60 - k), rtol=1e-9)
    assert model.total_variance == pytest.approx(variances.sum(), rel=1e-11)


@pytest.mark.parametrize(
    ("d", "n_components", "kept"), [(2000, 5, 2000), (2001, 5, 5), (2001, 1500, 2001), (2001, None, 2001), (2001, 0.9, 2001)]
)
def test_only_few_of_a_wide_matrix_are_computed(d: int, n_components: Any, kept: int) -> None:
    assert kept_vectors(d, n_components) == kept


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_sums_that_overflowed_are_refused(value: float) -> None:
    scatter = scatter_of(rows())
    scatter.scatter[2, 2] = value
    with pytest.raises(DataError, match="overflow float64: rescale"):
        eigenpairs(scatter, np.ones(6), 6)


# --- the solver, on an in-memory loop ---------------------------------------------------------------------------


class Loop:
    """Runs passes over an array, and remembers their names."""

    def __init__(self, X: np.ndarray) -> None:
        self.X = X
        self.passes: list[tuple[str, str]] = []

    def __call__(self, name: str, statistic: Scatter) -> Scatter:
        self.passes.append((name, statistic.precision))
        for start in range(0, len(self.X), 50):
            statistic.update(self.X[start : start + 50])
        return statistic


def test_one_pass_gives_the_model_and_its_sums() -> None:
    run = Loop(rows())
    model, scatter = solve(6, Options(3), run, precision="float64", repeat=True)
    assert run.passes == [("scatter", "float64")]
    assert scatter.count == model.n_samples == 200
    np.testing.assert_allclose(model.explained_variance, np.linalg.eigvalsh(np.cov(rows().T))[::-1][:3], rtol=1e-11)


@pytest.mark.parametrize(("repeat", "passes"), [(True, 2), (False, 1)])
def test_a_steep_spectrum_is_repeated_in_float64(repeat: bool, passes: int) -> None:
    X = (np.random.default_rng(0).standard_normal((500, 3)) * [1000, 1, 0.1]).astype(np.float32)
    run = Loop(X)
    model, _ = solve(3, Options(), run, precision="float32", repeat=repeat)
    assert run.passes == [("scatter", "float32"), ("scatter-float64", "float64")][:passes]
    if repeat:
        np.testing.assert_allclose(model.explained_variance, np.linalg.eigvalsh(np.cov(X.astype(float).T))[::-1], rtol=1e-8)


@pytest.mark.parametrize("n_components", [None, 1, 3, 0.5])
def test_noise_is_the_mean_of_the_rest(n_components: Any) -> None:
    model = model_of(scatter_of(rows()), Options(n_components))
    variances = np.linalg.eigvalsh(np.cov(rows().T))[::-1]
    rest = variances[model.n_components :]
    assert model.noise_variance == pytest.approx(rest.mean() if len(rest) else 0.0, rel=1e-11)


# --- weights ---------------------------------------------------------------------------------------------------


def weighted(X: np.ndarray, weights: np.ndarray, precision: Any = "float64") -> Scatter:
    scatter = Scatter(X.shape[1], precision)
    scatter.update(X, weights)
    return scatter


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("n_components", [None, 2, 0.8])
def test_a_whole_weight_is_so_many_rows(n_components: Any, standardize: bool) -> None:
    X, weights = rows(), np.arange(200) % 4
    options = Options(n_components, standardize=standardize)
    model, expected = model_of(weighted(X, weights * 1.0), options), model_of(scatter_of(np.repeat(X, weights, axis=0)), options)
    for name in ("components", "mean", "scale", "explained_variance", "explained_variance_ratio", "singular_values", "noise_variance"):
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-11, atol=1e-12, err_msg=name)
    assert model.total_variance == pytest.approx(expected.total_variance, rel=1e-12)
    assert (model.n_samples, expected.n_samples) == (150, 300)
    assert isinstance(model.n_samples, int)


@pytest.mark.parametrize("whole", [True, False])
def test_variances_are_those_of_numpys_weighted_covariance(whole: bool) -> None:
    X, rng = rows(), np.random.default_rng(0)
    counts, others = rng.integers(0, 5, 200), rng.uniform(0.1, 5, 200)
    weights = counts * 1.0 if whole else others
    model, total = model_of(weighted(X, weights), Options()), weights.sum()
    # NumPy takes weights that are not whole for precisions, with another divisor
    covariance = np.cov(X.T, fweights=counts) if whole else np.cov(X.T, aweights=others, ddof=0) * total / (total - 1)
    np.testing.assert_allclose(model.explained_variance, np.linalg.eigvalsh(covariance)[::-1], rtol=1e-12)
    np.testing.assert_allclose(model.mean, np.average(X, axis=0, weights=weights), rtol=1e-14)
    np.testing.assert_allclose(model.singular_values, np.sqrt(model.explained_variance * (total - 1)), rtol=1e-13)


def test_as_many_components_as_rows_that_count() -> None:
    X, weights = rows(20, 6), np.zeros(20)
    weights[:4] = 0.5
    model = model_of(weighted(X, weights), Options())
    assert (model.n_components, model.n_samples) == (4, 4)
    assert model.explained_variance[3] < 1e-13 * model.explained_variance[0]
    model = model_of(weighted(X, 20 * weights), Options())  # as 40 rows
    assert (model.n_components, model.n_samples) == (6, 4)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(200, 0.004), r"200 rows add up to 0\.8, .* above 0: weights count rows .* \(250 makes them 1 on average\)"),
        (np.full(200, 0.005), "add up to 1, "),
        (np.zeros(200), r"weights of all rows are zero"),
    ],
)
def test_a_sum_of_weights_that_leaves_no_divisor(weights: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        model_of(weighted(rows(), weights), Options())


def test_one_row_has_no_variance() -> None:
    with pytest.raises(DataError, match="at least 2"):
        model_of(scatter_of(rows(1)), Options())
