"""streampca: principal component analysis of more data than memory, exact, on Dask."""

from streampca import errors
from streampca.estimators import PCA, load, plan
from streampca.planning import Plan
from streampca.sources import open_array, open_source

__version__ = "0.1.0"
__all__ = ["PCA", "Plan", "__version__", "errors", "load", "open_array", "open_source", "plan"]
