"""What is measured on: a table of known size, stored in several formats in one folder, with its exact answer beside it.

Imports nothing heavy: every measured process imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 8 * 2**20  # of the floor's blocks
CHUNK_BYTES = 2**20
SUFFIXES = {"hdf5-none": ".h5", "hdf5-gzip": ".h5", "hdf5-blosc": ".h5", "zarr3-zstd": ".zarr", "zarr2-blosc": ".zarr"}
FORMATS = tuple(SUFFIXES)
LOW_RANK = "low-rank"  # the kind of most cases
SPECTRA = ("power-0.3", "power-0.5", "power-1", "clusters", "equal")


@dataclass(frozen=True)
class Shape:
    """A table and how many of its components are asked for."""

    n_rows: int
    n_features: int
    k: int


@dataclass(frozen=True)
class Size:
    """How large the tables are, and how many components are asked for."""

    n_rows: int
    n_features: int
    k: int
    growth: tuple[int, ...]  # rows of the tables of the growth case
    wide: tuple[Shape, ...]
    spectrum: Shape
    spectra: tuple[str, ...]  # kinds of the spectrum case
    missing: tuple[Shape, ...]
    kernel: Shape
    n_landmarks: int
    night: int  # rows that come in a night
    sparse: Shape
    latent: Shape  # of probabilistic PCA without missing entries
    selection: tuple[Shape, ...]  # k is the true rank
    trials: int


SIZES = {
    "tiny": Size(  # for the tests
        *(3_000, 32, 5, (1_000, 2_000, 4_000)),
        wide=(Shape(400, 300, 8), Shape(60, 900, 5)),
        spectrum=Shape(600, 200, 8),
        spectra=("power-0.5",),
        missing=(Shape(500, 20, 3),),
        kernel=Shape(2_000, 5, 4),
        n_landmarks=50,
        night=100,
        sparse=Shape(500, 40, 3),
        latent=Shape(800, 20, 3),
        selection=(Shape(100, 10, 2), Shape(20, 40, 2)),
        trials=3,
    ),
    "small": Size(
        *(60_000, 128, 20, (30_000, 60_000, 120_000)),
        wide=(Shape(4_000, 2_000, 40), Shape(500, 20_000, 20)),
        spectrum=Shape(4_000, 1_000, 40),
        spectra=SPECTRA,
        missing=(Shape(5_000, 200, 10), Shape(20_000, 200, 10)),
        kernel=Shape(50_000, 50, 20),
        n_landmarks=300,
        night=1_000,
        sparse=Shape(5_000, 200, 5),
        latent=Shape(20_000, 100, 10),
        selection=(Shape(1_000, 50, 5), Shape(500, 200, 5), Shape(100, 400, 5)),
        trials=20,
    ),
    "full": Size(
        *(1_000_000, 512, 20, (500_000, 1_000_000, 2_000_000)),
        wide=(Shape(40_000, 20_000, 40), Shape(5_000, 200_000, 20)),
        spectrum=Shape(20_000, 4_000, 40),
        spectra=SPECTRA,
        missing=(Shape(50_000, 200, 10), Shape(500_000, 200, 10)),
        kernel=Shape(1_000_000, 50, 20),
        n_landmarks=1_000,
        night=10_000,
        sparse=Shape(100_000, 500, 10),
        latent=Shape(100_000, 200, 10),
        selection=(Shape(1_000, 50, 5), Shape(10_000, 50, 5), Shape(1_000, 500, 5), Shape(200, 1_000, 5)),
        trials=50,
    ),
}


@dataclass(frozen=True)
class Dataset:
    """A table of float32 rows of a kind (``benchmarks.rows``).

    ``bits`` of each mantissa are kept: fewer compress better, as measured data does.
    """

    root: str
    n_rows: int
    n_features: int
    k: int
    bits: int = 23
    kind: str = LOW_RANK

    @property
    def folder(self) -> Path:
        kind = "" if self.kind == LOW_RANK else f"{self.kind}-"
        return Path(self.root, f"{kind}{self.n_rows}x{self.n_features}-{self.bits}bit")

    @property
    def exact(self) -> Path:
        return self.folder / f"exact-{self.k}.npz"

    def path(self, name: str) -> Path:
        """Return where the table lies in a format."""
        return self.folder / f"{name}{SUFFIXES[name]}"

    @property
    def row_bytes(self) -> int:
        return 4 * self.n_features

    @property
    def chunk_rows(self) -> int:
        return min(max(CHUNK_BYTES // self.row_bytes, 1), self.n_rows)

    @property
    def block_rows(self) -> int:
        return min(max(BLOCK_BYTES // self.row_bytes, 1), self.n_rows)

    def block_heights(self) -> list[int]:
        """Return the rows of each block; the last one may be lower."""
        return [min(self.block_rows, self.n_rows - start) for start in range(0, self.n_rows, self.block_rows)]


def stored_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size
