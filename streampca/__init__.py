"""streampca: principal component analysis of more data than memory, exact, on Dask."""

from streampca import errors
from streampca import plotting as plot
from streampca.estimators import ICA, PCA, FactorAnalysis, KernelPCA, ProbabilisticPCA, SparsePCA, load, plan
from streampca.planning import Plan
from streampca.report import summarize_rows, write_report
from streampca.selection import select_components
from streampca.sources import open_array, open_source
from streampca.sources.missing_view import masked

__version__ = "0.1.0"
__all__ = [
    "ICA",
    "PCA",
    "FactorAnalysis",
    "KernelPCA",
    "Plan",
    "ProbabilisticPCA",
    "SparsePCA",
    "__version__",
    "errors",
    "load",
    "masked",
    "open_array",
    "open_source",
    "plan",
    "plot",
    "select_components",
    "summarize_rows",
    "write_report",
]
