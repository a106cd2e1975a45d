"""Kernels and their feature maps: kernel PCA out of core is the PCA of streamed kernel features. NumPy and SciPy only."""

from streampca.kernels.exact import ExactKernelPCA
from streampca.kernels.fourier import FourierMap
from streampca.kernels.functions import KERNELS, Kernel, make_kernel
from streampca.kernels.landmarks import choose_landmarks, sample_rows
from streampca.kernels.maps import FeatureMap, FeaturePass, Scores
from streampca.kernels.nystrom import KernelColumns, NystromMap
from streampca.kernels.preimage import RidgePreimage, fixed_point

__all__ = [
    "KERNELS",
    "ExactKernelPCA",
    "FeatureMap",
    "FeaturePass",
    "FourierMap",
    "Kernel",
    "KernelColumns",
    "NystromMap",
    "RidgePreimage",
    "Scores",
    "choose_landmarks",
    "fixed_point",
    "make_kernel",
    "sample_rows",
]
