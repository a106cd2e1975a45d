"""What a run tells while it runs. The engine calls an observer; fronts (progress bar, log) subclass it."""

from __future__ import annotations


class Observer:
    """Receives what happens, and may ask to stop. The base class ignores everything.

    ``advanced`` is called from several threads.
    """

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:
        """Tell that a pass over ``rows`` rows (``n_bytes`` decoded) begins."""

    def advanced(self, rows: int, n_bytes: int) -> None:
        """Tell that ``rows`` more rows have been folded."""

    def pass_finished(self, name: str) -> None:
        """Tell that the pass has ended."""

    def resumed(self, name: str, rows: int) -> None:
        """Tell that the first (or some) ``rows`` rows of a pass are known from an earlier run."""

    def warned(self, message: str) -> None:
        """Tell something that the user should know."""

    def stop_requested(self) -> bool:
        """Return True if the run shall stop at the next block."""
        return False
