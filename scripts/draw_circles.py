#!/usr/bin/env python3
"""Draw docs/kernel_circles.svg: two circles that no line separates, and the first component of kernel PCA, which does."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.datasets import make_circles

import streampca as sp
from streampca.plotting.theme import THEMES

ROWS, LANDMARKS, GAMMA = 2400, 60, 3.0
SHOWN = 16  # one row in so many is drawn


def main(path: Path) -> None:
    """Fit, and write the picture."""
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "circles", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
    from matplotlib import pyplot as plt

    X, inner = make_circles(ROWS, noise=0.05, factor=0.3, random_state=0)
    pca = sp.PCA(1).fit_transform(X)[:, 0]
    kernel = sp.KernelPCA(1, kernel="rbf", gamma=GAMMA, n_landmarks=LANDMARKS).fit_transform(X)[:, 0]
    theme = THEMES["light"]
    _, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
    for group, colour, name in ((0, theme.main, "outer circle"), (1, theme.accent, "inner circle")):
        rows = inner == group
        axes[0].plot(*X[rows][::SHOWN].T, ".", color=colour, markersize=4, label=name)
        for axis, scores in zip(axes[1:], (pca, kernel), strict=True):
            bins = np.linspace(scores.min(), scores.max(), 41)
            axis.hist(scores[rows], bins, histtype="stepfilled", color=colour, alpha=0.7)
    axes[0].set(title="two circles", aspect="equal")
    axes[0].legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, handletextpad=0)
    axes[1].set(title="PCA, component 1", xlabel="score", ylabel="rows")
    axes[2].set(title="kernel PCA, component 1", xlabel="score")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    plt.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/kernel_circles.svg"))
