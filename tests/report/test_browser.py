"""The report of a million rows, opened in a headless browser."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import streampca as sp
from streampca.events import Observer
from streampca.jobs.config import InputConfig, JobConfig, MethodConfig, OutputConfig, SchedulerConfig
from streampca.jobs.report import report_job
from streampca.jobs.run import run_job
from tests.report.browser import Browser, Visit, find_browser

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed (apt-get install chromium)")

SECTIONS = ["facts", "variance", "biplot", "loadings", "outliers", "quality", "manifest"]
NASTY = "<b onclick=\"alert('x')\">&amp;</b></script><script>throw 1</script>"  # a name of a feature, as bad as they come
OUTPUTS = {"model": "model.zarr", "scores": "scores.npy", "report": "report.html"}

ASKED = """
<script>
addEventListener("load", () => {
  const table = document.getElementById("features"), found = document.getElementById("found");
  const column = (n) => [...table.tBodies[0].rows].filter((r) => !r.hidden).map((r) => r.cells[n].textContent);
  const click = (n) => table.tHead.rows[0].cells[n].querySelector("button").click();
  const told = { sections: [...document.querySelectorAll("section")].map((s) => s.id), svgs: document.querySelectorAll("svg").length };
  click(3); told.up = column(3).map(Number); click(3); told.down = column(3).map(Number); told.sort = table.tHead.rows[0].cells[3].ariaSort;
  click(2); told.names = column(2);
  const search = document.getElementById("search");
  search.value = "speed_3"; search.dispatchEvent(new Event("input")); told.found = column(2); told.says = found.textContent;
  search.value = ""; search.dispatchEvent(new Event("input"));
  const bar = document.querySelector("#variance rect.kept");
  bar.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  told.tip = document.getElementById("tip").textContent;
  told.links = [...document.querySelectorAll("nav a")].every((a) => document.querySelector(a.getAttribute("href")));
  told.width = document.documentElement.scrollWidth; told.window = innerWidth;
  const text = JSON.stringify(told);
  if (parent !== window) parent.postMessage(text, "*");
  document.body.insertAdjacentHTML("beforeend", '<pre id="told"></pre>'); document.getElementById("told").textContent = text;
});
</script>
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """The report of a run on 1,000,000 rows that follows a smaller one, with what has changed since."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_000_000, 16), np.float32) * np.linspace(4, 0.5, 16, dtype=np.float32)
    X[:, 1] += X[:, 0]
    X[123_456, 7] += 90
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X"] = X
        file["X"].attrs["feature_names"] = [NASTY, *(f"speed_{i}" for i in range(15))]
    output = OutputConfig.model_validate({name: str(folder / file) for name, file in OUTPUTS.items()})
    method = MethodConfig.model_validate({"name": "pca", "n_components": 6})
    run_job(JobConfig(input=InputConfig(path=str(folder / "rows.h5")), method=method, output=output), Observer())
    old = sp.PCA(6).fit(sp.open_source(folder / "rows.h5", rows=(0, 5000)))
    old.save(folder / "old.zarr")
    where = SchedulerConfig()
    report_job(str(folder / "model.zarr"), str(folder / "drift.html"), since=str(folder / "old.zarr"), scheduler=where, observer=Observer())
    return folder / "report.html"


@pytest.fixture(scope="module")
def asking(report: Path) -> Path:
    """The same with a script that tries it and tells what happened."""
    page = report.with_name("asking.html")
    page.write_text(report.read_text().replace("</body>", ASKED + "</body>"))
    return page


@pytest.fixture(scope="module")
def browser(folder: Path) -> Browser:
    assert PROGRAM
    return Browser(PROGRAM, folder)


@pytest.fixture(scope="module")
def visit(browser: Browser, asking: Path) -> Visit:
    return browser.visit(asking)


def test_no_errors_and_no_network(browser: Browser, report: Path, visit: Visit) -> None:
    for each in (browser.visit(report), visit):
        assert each.console == []
        assert each.requests == []


def test_errors_and_requests_would_be_seen(browser: Browser, folder: Path) -> None:
    page = folder / "bad.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>throw new Error("wrong")</script>')
    visit = browser.visit(page)
    assert visit.requests == ["http://example.invalid/x.png"]
    assert any("wrong" in line for line in visit.console)


def test_every_section_is_there(visit: Visit) -> None:
    told = visit.told()
    assert told["sections"] == SECTIONS
    assert told["svgs"] == 5
    assert told["links"] is True


def test_the_table_sorts_and_is_searched(visit: Visit) -> None:
    told = visit.told()
    up, names, found = (np.array(told[name]) for name in ("up", "names", "found"))
    assert len(up) == 60
    np.testing.assert_array_equal(up, np.sort(up))
    np.testing.assert_array_equal(told["down"], np.sort(up)[::-1])
    assert told["sort"] == "descending"
    assert list(names) == sorted(names, key=lambda name: (name.startswith("speed"), int(name[6:]) if name.startswith("speed") else 0))
    assert set(found) == {"speed_3"}
    assert told["says"] == f"{len(found)} of 60"


def test_marks_tell_their_values(visit: Visit) -> None:
    assert str(visit.told()["tip"]).startswith("component 1: ")


def test_it_fits_a_phone(browser: Browser, asking: Path) -> None:
    frame = asking.with_name("phone.html")
    script = 'addEventListener("message", (e) => { document.getElementById("told").textContent = e.data; });'
    inside = f'<iframe src="{asking.name}" width="360" height="700"></iframe>'
    frame.write_text(f'<body style="margin:0"><pre id="told"></pre><script>{script}</script>{inside}')
    told = browser.visit(frame).told()
    assert told["window"] == told["width"] == 360


@pytest.mark.parametrize(("scheme", "expected"), [("light", (245, 247, 249)), ("dark", (13, 17, 23))])
def test_light_and_dark(browser: Browser, report: Path, scheme: str, expected: tuple[int, int, int]) -> None:
    from PIL import Image

    options = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    picture = Image.open(browser.shoot(report, scheme, 1200, 2000, *options)).convert("RGB")
    assert picture.getpixel((3, 3)) == expected
    colours = picture.getcolors(maxcolors=2**24)
    assert colours
    assert len(colours) > 50  # and something is drawn


def test_it_prints(browser: Browser, report: Path) -> None:
    paper = browser.print(report).read_bytes()
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page/") + paper.count(b"/Type/Page/") <= 10


def test_size(report: Path) -> None:
    assert report.stat().st_size < 2**20
    assert "density of 1,000,000 rows" in report.read_text()


def test_pages_with_other_sections(browser: Browser, report: Path) -> None:
    """What has changed, and a model without loadings, in one window of two frames."""
    kernel = sp.KernelPCA(2).fit(np.random.default_rng(0).normal(size=(60, 3)))
    sp.write_report(kernel, report.with_name("kernel.html"))
    frames = report.with_name("frames.html")
    frames.write_text('<iframe src="drift.html"></iframe><iframe src="kernel.html"></iframe>')
    visit = browser.visit(frames)
    assert visit.console == []
    assert visit.requests == []
    assert '<section id="drift">' in report.with_name("drift.html").read_text()
