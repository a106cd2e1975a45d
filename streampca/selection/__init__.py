"""How many components: criteria that read the spectrum of a finished pass, and shrinkage of singular values. NumPy and SciPy only."""

from streampca.selection.criteria import CRITERIA, select_components
from streampca.selection.result import Selection
from streampca.selection.shrinkage import shrink
from streampca.selection.spectrum import Spectrum, as_spectrum

__all__ = ["CRITERIA", "Selection", "Spectrum", "as_spectrum", "select_components", "shrink"]
