from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

import streampca as sp  # noqa: E402
from streampca.errors import MissingExtraError, UsageError  # noqa: E402
from streampca.plotting.theme import THEMES  # noqa: E402


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(800, 6)) @ rng.normal(size=(6, 6)) + 3
    table[5] += 60
    return table


@pytest.fixture(scope="module")
def model(X: np.ndarray) -> Any:
    return sp.PCA(3).fit(sp.open_source(X, feature_names=list("abcdef")))


@pytest.fixture(scope="module")
def summary(model: Any, X: np.ndarray) -> Any:
    return sp.summarize_rows(model, sp.open_source(X, feature_names=list("abcdef")))


def texts(ax: Any) -> set[str]:
    return {text.get_text() for text in ax.texts}


def test_scree(model: Any) -> None:
    ax = sp.plot.scree(model)
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_allclose(heights[:3], model.explained_variance_ratio_)
    assert len(heights) == 6
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.cumsum(heights))
    assert texts(ax) == {f"{model.explained_variance_ratio_.sum():.1%} with 3"}


def test_many_components_are_all_shown() -> None:
    model = sp.PCA(90).fit(np.random.default_rng(0).normal(size=(300, 100)))
    ax = sp.plot.scree(model)
    assert len(ax.patches) == 90
    assert texts(ax) == {f"{model.explained_variance_ratio_.sum():.1%} with 90"}


def test_biplot(model: Any, summary: Any, X: np.ndarray) -> None:
    for ax in (
        sp.plot.biplot(model, summary),
        sp.plot.biplot(model, scores=(X - X.mean(axis=0)) @ model.components_.T),
        sp.plot.biplot(model),
    ):
        assert set("abcdef") <= texts(ax)
        assert ax.get_xlabel() == f"component 1 ({model.explained_variance_ratio_[0]:.1%})"
    many = np.random.default_rng(0).normal(size=(5000, 2))
    assert type(sp.plot.biplot(model, scores=many).collections[0]).__name__ == "PolyCollection"
    assert len(texts(sp.plot.biplot(model, arrows=2)) - {""}) == 2


def test_whitened_scores_fill_the_picture(X: np.ndarray) -> None:
    model = sp.PCA(2, whiten=True).fit(X)
    assert sp.plot.biplot(model, scores=model.transform(X)).get_xlim()[1] == pytest.approx(4, rel=0.01)


def test_what_a_biplot_cannot_show(X: np.ndarray, model: Any, summary: Any) -> None:
    with pytest.raises(UsageError, match="needs two components, and this model has 1"):
        sp.plot.biplot(sp.PCA(1).fit(X))
    with pytest.raises(UsageError, match="not both"):
        sp.plot.biplot(model, summary, scores=X)
    with pytest.raises(UsageError, match="no two columns"):
        sp.plot.biplot(model, scores=X[:, :1])


def test_loadings(model: Any) -> None:
    ax = sp.plot.loadings(model, n_components=2, n_features=4)
    assert ax.images[0].get_array().shape == (4, 2)
    assert {label.get_text() for label in ax.get_yticklabels()} < set("abcdef")


def test_outliers(summary: Any) -> None:
    ax = sp.plot.outliers(summary)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert "row 5" in texts(ax)


def test_loglike(model: Any) -> None:
    ax = sp.plot.loglike(SimpleNamespace(W_=np.ones((3, 1)), loglike_=[-9.0, -5.0, -4.5]))
    assert ax.lines[0].get_ydata().tolist() == [-9, -5, -4.5]
    with pytest.raises(UsageError, match="PCA has no log-likelihood"):
        sp.plot.loglike(model)


def test_sources_and_kernels(X: np.ndarray) -> None:
    mixed, kernel = sp.ICA(2, random_state=0).fit(X), sp.KernelPCA(3, gamma=0.01).fit(X)
    assert sp.plot.loadings(mixed).get_title(loc="left") == "Mixing matrix"
    np.testing.assert_allclose(sp.plot.loadings(mixed).images[0].get_array(), mixed.mixing_)
    np.testing.assert_allclose([bar.get_height() for bar in sp.plot.scree(kernel).patches], kernel.explained_variance_ratio_)
    for model in (mixed, kernel):
        rows = sp.summarize_rows(model, X)
        ax = sp.plot.biplot(model, rows)
        assert ax.get_xlim()[1] == pytest.approx(4 * model.transform(X)[:, 0].std(), rel=0.01)
        with pytest.raises(UsageError, match="told of a PCA only"):
            sp.plot.outliers(rows)
    with pytest.raises(UsageError, match="KernelPCA has no components in the features, and so no loadings"):
        sp.plot.loadings(kernel)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_files_in_both_themes(model: Any, summary: Any, theme: str, kind: str) -> None:
    for ax in (sp.plot.scree(model, theme=theme), sp.plot.biplot(model, summary, theme=theme), sp.plot.outliers(summary, theme=theme)):
        file = io.BytesIO()
        ax.figure.savefig(file, format=kind, dpi=40)
        assert len(file.getvalue()) > 2000


def test_on_axes_of_the_user(model: Any, summary: Any) -> None:
    _, axes = pyplot.subplots(2, 2)
    assert sp.plot.scree(model, axes[0, 0]) is axes[0, 0]
    assert sp.plot.biplot(model, summary, ax=axes[0, 1]) is axes[0, 1]
    assert sp.plot.loadings(model, axes[1, 0]) is axes[1, 0]
    assert sp.plot.outliers(summary, axes[1, 1]) is axes[1, 1]
    assert len(pyplot.get_fignums()) == 1


def test_an_unknown_theme(model: Any) -> None:
    with pytest.raises(UsageError, match=r"choose one of light, dark\. Did you mean 'dark'"):
        sp.plot.scree(model, theme="drak")


def test_without_matplotlib(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streampca\[report\]'"):
        sp.plot.scree(model)


@pytest.mark.parametrize("model_kind", ["no variance", "one component", "all components"])
def test_odd_models(model_kind: str) -> None:
    X = np.ones((20, 3)) if model_kind == "no variance" else np.random.default_rng(0).normal(size=(20, 3))
    model = sp.PCA(1 if model_kind == "one component" else 3).fit(X)
    rows = sp.summarize_rows(model, X)
    sp.plot.scree(model)
    sp.plot.loadings(model)
    sp.plot.outliers(rows)
    if model.n_components_ > 1:
        sp.plot.biplot(model, rows).figure.canvas.draw()
