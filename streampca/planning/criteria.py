"""The criteria that may stand for a number of components, by name, as far as a plan must know them."""

from __future__ import annotations

CRITERIA = ("mle", "bic", "aic", "gaic", "elbow", "gavish-donoho", "parallel", "held-out")
WHOLE = ("mle",)  # those that need every variance, not only the leading ones and the sum of the others
HELD_OUT = "held-out"  # needs a pass that keeps the sums of some rows apart
WHITE = ("gaic", "gavish-donoho", "parallel")  # those that estimate the variance of the noise first
