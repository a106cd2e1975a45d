from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

import streampca as sp


def test_a_plan_is_a_tidy_table_in_a_notebook() -> None:
    plan = sp.plan(np.zeros((1000, 20)), n_components=3, memory="1GiB")
    table = ElementTree.fromstring(plan._repr_html_())  # noqa: S314 - made here
    cells = {row[0].text: "".join(row[1].itertext()) for row in table.iter("tr")}
    assert cells["data"] == "1,000 rows × 20 features"
    assert cells["components"] == "3"
    assert cells["passes"].startswith("1, ")
    assert cells["peak memory"].endswith("of a budget of 1.00 GiB")
    assert {f"— {stage.name}" for stage in plan.stages} <= cells.keys()
