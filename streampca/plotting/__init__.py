"""Pictures of fitted models as matplotlib axes, public as ``streampca.plot``; matplotlib is imported when one is drawn."""

from streampca.plotting.pictures import biplot, loadings, loglike, outliers, scree

__all__ = ["biplot", "loadings", "loglike", "outliers", "scree"]
