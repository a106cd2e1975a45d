from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.engine import choose_scheduler
from streampca.engine.threads import Threads
from streampca.errors import DataError, MissingExtraError, NonFiniteError, OutputError, UsageError
from streampca.report.criteria import WANTED, verdicts
from streampca.report.document import render, report_of_run
from streampca.report.drift import Drift, drift_between
from streampca.report.rows import frame_of, spe_limit
from streampca.statistics.gathered import Gathered
from streampca.statistics.row_summary import RowSummary
from tests.statistics.conformance import bits

NAMES = [f"sensor {i}" for i in range(8)]


def rows(n: int = 2000, d: int = 8, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n, 3)) @ rng.normal(size=(3, d)) * 3 + 0.5 * rng.normal(size=(n, d)) + 10
    table[7, 2] += 50
    return table


@pytest.fixture(scope="module")
def source() -> Any:
    return sp.open_source(rows(), feature_names=NAMES)


@pytest.fixture(scope="module")
def model(source: Any) -> Any:
    return sp.PCA(3).fit(source)


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects the sections' texts."""

    void = frozenset({"meta", "link", "input", "br", "path", "rect", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.section = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.section = str(dict(attrs)["id"])
        if tag not in self.void or tag in ("path", "rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        self.sections[self.section] = self.sections.get(self.section, "") + data


class TestPage:
    def test_all_there_is_to_tell(self, model: Any, source: Any, tmp_path: Path) -> None:
        manifest = {
            "input": "night.h5",
            "rows": 2000,
            "bytes_decoded": 10**9,
            "passes": 2,
            "seconds": {"fit": 4.0, "total": 5.0},
            "peak_memory": 2**30,
            "projected_memory": 2**31,
            "memory_budget": 2**32,
            "warnings": ["3 stored chunk(s) of night.h5 are absent and read as the fill value"],
            "drift": {"subspace_angle": 0.01},
        }
        summary = sp.summarize_rows(model, source)
        sp.write_report(model, tmp_path / "r.html", summary=summary, manifest=manifest)
        text = (tmp_path / "r.html").read_text()
        page = Page(text).sections
        assert [name for name in page if name] == ["facts", "variance", "biplot", "loadings", "outliers", "drift", "quality", "manifest"]
        for words in ("2,000", "0.50 GB/s", "1.00 GiB", "of a budget of 4.00 GiB", "covariance", "subspace error", "3 stored chunk"):
            assert words in page["facts"], words
        for name in WANTED:
            assert name in page["variance"]
        assert "sensor 2" in page["outliers"]
        assert "subspace angle" in page["drift"]
        assert json.dumps(manifest, indent=2) in page["manifest"]

    def test_nothing_is_fetched_and_all_is_escaped(self) -> None:
        bad = '<img src="http://example.org/x.png">"\'&'
        model = sp.PCA(2).fit(sp.open_source(rows(50, 3), feature_names=[bad, "b", "c"]))
        text = render(
            model, sp.summarize_rows(model, sp.open_source(rows(50, 3), feature_names=[bad, "b", "c"])), {"input": bad, "warnings": [bad]}
        )
        Page(text)
        assert "<img" not in text
        assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
        assert "url(" not in text
        assert "@import" not in text

    def test_a_manifest_of_a_run(self, model: Any) -> None:
        one = {"name": "scatter", "rows": 2000, "bytes_decoded": 3 * 10**9, "seconds": 2.0}
        manifest = {
            "host": "node7",
            "missing_chunks": 4,
            "passes": [one],
            "summary": {"seconds": {"fit": 2.0, "total": 3.0}, "input": "x.h5"},
        }
        page = Page(render(model, None, manifest)).sections
        assert "2,000 rows in 2 s, 1.50 GB/s" in page["manifest"]
        assert "node7" in page["manifest"]
        assert "missing chunks4" in page["quality"]
        assert "3 s" in page["facts"]

    def test_without_rows_or_manifest(self, model: Any) -> None:
        page = Page(render(model, None, {})).sections
        assert "one more pass tells which rows are outlying" in page["outliers"]
        assert "no data was given" in page["biplot"]
        assert "No manifest" in page["manifest"]

    def test_an_existing_file_stays(self, model: Any, tmp_path: Path) -> None:
        file = tmp_path / "r.html"
        file.write_text("mine")
        with pytest.raises(OutputError, match="exists already"):
            sp.write_report(model, file)
        assert file.read_text() == "mine"
        sp.write_report(model, file, overwrite=True)
        assert "<svg" in file.read_text()
        assert [each.name for each in tmp_path.iterdir()] == ["r.html"]

    def test_without_jinja2(self, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "jinja2", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'streampca\[report\]'"):
            sp.write_report(model, tmp_path / "r.html")

    def test_a_huge_manifest_and_wide_data_stay_small(self) -> None:
        wide = np.random.default_rng(0).normal(size=(300, 5000))
        model = sp.PCA(60).fit(wide)
        manifest = {"inputs": [{"input": "x" * 100, "fingerprint": str(i)} for i in range(20_000)]}
        text = render(model, sp.summarize_rows(model, wide), manifest)
        assert len(text.encode()) < 3 * 2**20
        assert "letters more" in text

    @pytest.mark.parametrize("kind", ["constant", "one component", "all components", "two rows", "integers"])
    def test_odd_data(self, kind: str) -> None:
        X = {"constant": np.full((20, 3), 7.0), "two rows": rows(9, 4)[7:], "integers": np.arange(60).reshape(20, 3) % 7}.get(
            kind, rows(40, 4)
        )
        model = sp.PCA({"one component": 1, "two rows": 1}.get(kind)).fit(X)
        page = Page(render(model, sp.summarize_rows(model, X), {})).sections
        assert page["facts"]
        if kind == "constant":
            assert "3 of 3 columns are constant: x0, x1, x2" in page["facts"]
        if kind == "all components":
            assert "SPE is nothing but rounding" in page["outliers"]

    @pytest.mark.parametrize("name", ["ProbabilisticPCA", "FactorAnalysis", "SparsePCA"])
    def test_other_methods(self, name: str) -> None:
        if not hasattr(sp, name):
            pytest.skip(f"no {name}")
        model = getattr(sp, name)(2, **({"alpha": 0.1} if name == "SparsePCA" else {})).fit(rows(300, 5))
        page = Page(render(model, None, {})).sections
        assert ("loglike" in page) == bool(np.size(getattr(model, "loglike_", ())))
        assert "loadings" in page

    def test_an_approximated_kernel(self) -> None:
        model = SimpleNamespace(components_=np.eye(3)[:2], explained_variance_=np.ones(2), approximation_error_={"relative_error": 0.012})
        assert "relative error0.012" in Page(render(model, None, {})).sections["kernel"]

    @pytest.mark.parametrize("method", ["exact", "nystrom", "fourier"])
    def test_a_kernel(self, method: str, tmp_path: Path) -> None:
        X = rows(400, 5)
        model = sp.KernelPCA(4, gamma=0.02, method=method).fit(X)
        page = Page(render(model, sp.summarize_rows(model, X), {})).sections
        assert [name for name in page if name] == ["facts", "variance", "biplot", "kernel", "quality", "manifest"]
        for words in ("rbf", "gamma0.02", method, "frobenius error", "uncaptured trace", "eigenvalues"):
            assert words in page["kernel"], words
        assert "density of 400 rows" in page["biplot"]
        assert "arrows" not in page["biplot"]
        assert "biplot" not in Page(render(model, None, {})).sections
        report_of_run(model, sp.open_source(X), tmp_path / "r.html", {})
        assert "density of 400 rows" in (tmp_path / "r.html").read_text()

    def test_a_kernel_of_many_rows_is_told_of_some(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streampca.report.rows.KERNEL_ROWS", 100)
        X = rows(400, 5)
        model = sp.KernelPCA(2).fit(X)
        found = sp.summarize_rows(model, X)
        assert found.rows == 100
        assert "density of 100 of 400 rows" in render(model, found, {})

    def test_mixed_sources(self) -> None:
        signals = np.random.default_rng(0).uniform(-1, 1, size=(3000, 2))
        X = signals @ [[6.0, 1.0, 0.0], [0.0, 0.5, 2.0]]
        model = sp.ICA(2, random_state=0).fit(sp.open_source(X, feature_names=["a", "b", "c"]))
        found = sp.summarize_rows(model, sp.open_source(X, feature_names=["a", "b", "c"]))
        page = Page(render(model, found, {})).sections
        assert [name for name in page if name] == ["facts", "variance", "biplot", "loadings", "quality", "manifest"]
        assert "The rotation converged" in page["facts"]
        assert "Mixing matrix" in page["loadings"]
        assert f"{model.mixing_[0, 0]:+.4g}" in page["loadings"]
        assert found.density.sum() == 3000
        sources = model._model.transform(X)
        expected, *_ = np.histogram2d(sources[:, 0], sources[:, 1], bins=found.edges)
        assert drift_between(model, model).angle == pytest.approx(0, abs=1e-5)
        np.testing.assert_array_equal(found.density, expected)


class TestDrift:
    def test_against_a_turned_and_shifted_copy(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(4000, 4)) * [4, 2, 1, 1]
        turn = np.radians(30.0)
        Y = X @ np.array([[np.cos(turn), 0, np.sin(turn), 0], [0, 1, 0, 0], [-np.sin(turn), 0, np.cos(turn), 0], [0, 0, 0, 1]]) * 2
        Y[:, 3] += X[:, 3].std(ddof=1) * 3 + X[:, 3].mean() - Y[:, 3].mean()
        found = drift_between(sp.PCA(2).fit(X), sp.PCA(2).fit(Y))
        assert found.angle == pytest.approx(30, abs=0.2)  # the model of X is not quite that of its axes
        np.testing.assert_allclose(found.changes, 3, rtol=1e-9)
        assert found.features()[0] == {"feature": "x3", "moved": pytest.approx(3)}
        again = Drift.from_plain(json.loads(json.dumps(found.to_plain())))
        assert again is not None
        assert (again.angle, again.features(), again.variances()) == (found.angle, found.features(), found.variances())

    @pytest.mark.parametrize("name", ["PCA", "ProbabilisticPCA", "FactorAnalysis"])
    def test_nothing_has_changed(self, name: str) -> None:
        model = getattr(sp, name)(2).fit(rows(300, 5))
        found = drift_between(model, model)
        assert found.angle == pytest.approx(0, abs=1e-5)
        assert not found.changes.any()
        assert not found.moved.any()

    def test_deviations_without_the_sums(self, tmp_path: Path) -> None:
        X = rows(3000)
        old, new = sp.PCA().fit(X), sp.PCA().fit(X + X.std(axis=0, ddof=1))
        old.save(tmp_path / "m.zarr", state=False)
        for model in (old, sp.load(tmp_path / "m.zarr")):
            np.testing.assert_allclose(drift_between(model, new).moved, 1, rtol=1e-6)

    def test_in_the_report(self, model: Any) -> None:
        old = sp.PCA(4).fit(sp.open_source(rows(500, seed=1), feature_names=NAMES))
        text = render(model, None, {}, since=old)
        page = Page(text).sections["drift"]
        for words in ("500 before, 2,000 now", "largest subspace angle", "°", "variance before", "sensor"):
            assert words in page, words
        stored = render(model, None, {"drift": drift_between(old, model).to_plain()})
        assert Page(stored).sections["drift"] == page
        assert text.count("<svg") == stored.count("<svg") == 6

    def test_constant_features(self) -> None:
        flat = drift_between(sp.PCA(1).fit(np.ones((9, 2))), sp.PCA(1).fit(np.array([[1.0, 2.0]] * 9)))
        assert flat.moved.tolist() == [0, np.inf]
        assert flat.changes.tolist() == [0]
        assert "+inf" in Page(render(sp.PCA(1).fit(np.ones((9, 2))), None, {"drift": flat.to_plain()})).sections["drift"]

    def test_what_cannot_be_compared(self, model: Any) -> None:
        with pytest.raises(UsageError, match="has 5 features, this one 8"):
            drift_between(sp.PCA(1).fit(rows(50, 5)), model)
        with pytest.raises(UsageError, match="'other' where this one has 'sensor 0'"):
            drift_between(sp.PCA(1).fit(sp.open_source(rows(50), feature_names=["other", *NAMES[1:]])), model)
        with pytest.raises(UsageError, match="KernelPCA has no components in the features"):
            drift_between(sp.KernelPCA(1).fit(rows(50)), model)


class TestCriteria:
    def test_a_complete_spectrum(self) -> None:
        found = {each.name: each for each in verdicts(sp.PCA(3).fit(rows()[8:]))}
        assert list(found) == list(WANTED)
        assert {found[name].k for name in ("BIC", "Gavish-Donoho threshold", "parallel analysis")} == {3}

    def test_a_truncated_spectrum_says_what_it_cannot_tell(self) -> None:
        wide = np.random.default_rng(0).normal(size=(400, 300))
        model = sp.PCA(3, solver="sketch").fit(wide)
        found = {each.name: each for each in verdicts(model)}
        assert found["Minka's evidence (mle)"].k is None
        assert found["Minka's evidence (mle)"].number == "–"
        assert found["99% of the variance"].number.startswith("≥")
        page = Page(render(model, None, {})).sections["variance"]
        assert "criteria that need all of them cannot tell" in page

    def test_other_models_have_none(self) -> None:
        assert verdicts(SimpleNamespace(W_=np.ones((3, 1)))) == []


class TestRows:
    def test_limits_hold_for_normal_rows(self) -> None:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(60_000, 10)) * np.linspace(5, 1, 10)
        model = sp.PCA(3).fit(X)
        found = sp.summarize_rows(model, X)
        assert found.beyond("t2") / 60_000 == pytest.approx(0.01, abs=0.002)
        assert found.beyond("spe") / 60_000 == pytest.approx(0.01, abs=0.003)

    def test_a_truncated_tail_counts_by_its_sum(self) -> None:
        X = np.random.default_rng(1).normal(size=(3000, 40))
        X[:, :2] *= 9
        exact, sketched = sp.PCA(2).fit(X), sp.PCA(2, solver="sketch", random_state=0).fit(X)
        assert spe_limit(sketched._model) == pytest.approx(spe_limit(exact._model), rel=0.02)
        assert spe_limit(sp.PCA().fit(X)._model) == np.inf

    @pytest.mark.usefixtures("small_shards")
    def test_the_same_bits_in_threads_and_many_shards(self) -> None:
        X = rows(6000)
        X[4321] += 99
        model = sp.PCA(2).fit(X[:4000])
        import dask

        with dask.config.set(scheduler="synchronous"):
            one = sp.summarize_rows(model, X)
        other = sp.summarize_rows(model, X)
        assert bits(one) == bits(other)
        assert one.rows == 6000
        assert one.outlying.row[0] == 4321
        scores = model.transform(X)
        np.testing.assert_allclose(one.sample.scores, scores[one.sample.row], atol=1e-9)

    def test_on_a_cluster(self, client: Any, tmp_path: Path, small_shards: None) -> None:
        X = rows(3000)
        np.save(tmp_path / "x.npy", X)
        model = sp.PCA(2).fit(X)
        found = sp.summarize_rows(model, tmp_path / "x.npy")
        assert found.outlying.row[0] == 7
        assert found.rows == 3000

    @pytest.mark.usefixtures("small_shards")
    @pytest.mark.parametrize("whiten", [False, True])
    def test_gathered_while_the_scores_are_written(self, whiten: bool, tmp_path: Path) -> None:
        X = rows(6000).astype(np.float32)
        X[4321] += 99
        model = sp.PCA(3, whiten=whiten).fit(X)
        gathered: Any = Gathered(RowSummary(frame_of(model)))
        model.transform_to(X, tmp_path / "z.npy", gathered=gathered)
        found, expected = gathered.complete(6000), sp.summarize_rows(model, X)
        np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), model.transform(X))
        assert (found.rows, found.outlying.row[0]) == (6000, 4321)
        np.testing.assert_array_equal(found.sample.keys, expected.sample.keys)
        np.testing.assert_array_equal(found.sample.row, expected.sample.row)
        for name in ("density", "t2", "spe"):  # a row on the edge of a bin may be counted on either side
            assert np.abs(getattr(found, name) - getattr(expected, name)).sum() <= 20

    def test_not_gathered_with_weights_or_on_a_cluster(self, client: Any, tmp_path: Path) -> None:
        X = rows(300)
        model = sp.PCA(2).fit(X)
        weighted = sp.open_source(X, weights=np.ones(300))
        for name, given, where in (("a", X, choose_scheduler(client)), ("b", weighted, Threads(2))):
            gathered = Gathered(RowSummary(frame_of(model)))
            model.transform_to(given, tmp_path / f"{name}.npy", scheduler=where, gathered=gathered)
            assert gathered.complete(300) is None
        assert np.load(tmp_path / "a.npy").shape == (300, 2)

    def test_what_it_refuses(self, model: Any) -> None:
        with pytest.raises(DataError, match="expecting 8 features"):
            sp.summarize_rows(model, sp.open_source(rows(10, 3)))
        X = rows(30)
        X[11, 4] = np.nan
        with pytest.raises(NonFiniteError, match="row 11, column 4"):
            sp.summarize_rows(model, sp.open_source(X, feature_names=NAMES))
        with pytest.raises(UsageError, match="needs a fitted PCA"):
            frame_of(SimpleNamespace())

    def test_after_a_run(self, model: Any, source: Any, tmp_path: Path) -> None:
        report_of_run(model, source, tmp_path / "r.html", {})
        assert "density of 2,000 rows" in (tmp_path / "r.html").read_text()
