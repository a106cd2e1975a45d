"""Fitted results: frozen arrays that transform rows, and are saved and loaded."""

from streampca.models.pca import PCAModel

__all__ = ["PCAModel"]
