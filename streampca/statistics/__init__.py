"""What one pass accumulates: sums that can be split and merged at will. NumPy only."""

from streampca.statistics.base import Statistic
from streampca.statistics.moments import Moments
from streampca.statistics.rfactor import RFactor
from streampca.statistics.scatter import Scatter

__all__ = ["Moments", "RFactor", "Scatter", "Statistic"]
