"""The elbow: the number of components that is best for the widest range of prices."""

from __future__ import annotations

import numpy as np

from streampca.errors import UsageError
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Floats, Spectrum


def elbow(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the most stable minimiser of a L_{r+1}^2 + b r, over all weights a : b = cos t : sin t, t from 0 to 90 degrees.

    L^2 is measured in units of its mean, which the trace gives. Each corner of the lower convex hull of the points (r, L_{r+1}^2) is the
    best for an interval of t; the widest is chosen. The values are the shares of the 90 degrees. No components at all are best
    whenever they are dear enough, which says nothing of a bend: 0 is chosen only if the spectrum is flat. Of a truncated spectrum, the
    answer is given only if no values of the others could change it.
    """
    if spectrum.complete and spectrum.known < 3:
        return _too_short(spectrum)
    heights = spectrum.variances / spectrum.total_variance * spectrum.limit
    corners = lower_hull(heights)
    slopes = -np.diff(heights[corners]) / np.diff(corners)
    angles = np.concatenate([[np.pi / 2], np.arctan(slopes), [0.0]]) / (np.pi / 2)
    values = np.zeros(heights.size)
    values[corners] = -np.diff(angles)
    k = 1 + int(np.argmax(values[1:])) if values[0] < 1 else 0
    if not spectrum.complete:
        _refuse_unsettled(spectrum, heights, values, angles, corners.index(k))
    reason = (
        f"{k} components are the best for {values[k]:.1%} of the weights of residual against number, more than any other number of them"
    )
    if k == 0:
        reason = f"the spectrum has no elbow: all {spectrum.known} variances are equal"
    return Selection(k, "elbow", values, np.arange(heights.size), reason)


def lower_hull(heights: Floats) -> list[int]:
    """Return the corners of the lower convex hull of the points (r, height), from left to right.

    >>> lower_hull(np.array([9.0, 8.0, 1.0, 0.9, 0.8]))
    [0, 2, 4]
    """
    corners: list[int] = []
    for r, height in enumerate(heights):
        while len(corners) > 1:
            first, last = corners[-2], corners[-1]
            if (heights[last] - heights[first]) * (r - last) < (height - heights[last]) * (last - first):
                break
            corners.pop()
        corners.append(r)
    return corners


def _refuse_unsettled(spectrum: Spectrum, heights: Floats, values: Floats, angles: Floats, corner: int) -> None:
    """Raise unless k wins whatever the unknown points are: at r >= m and height >= 0, they can be best only at small t."""
    m = heights.size
    reach = float(np.arctan((heights / (m - np.arange(m))).min()) / (np.pi / 2))
    sure = angles[corner] - max(angles[corner + 1], reach)
    rival = np.sort(values[1:])[-2] if m > 2 else 1.0
    if corner == 0 or sure <= max(reach, rival):
        raise UsageError(
            f"the {m} components known of {spectrum.limit} do not settle where the elbow is: the others could move it. Keep more, "
            "or use 'bic', which needs only the sum of the others"
        )


def _too_short(spectrum: Spectrum) -> Selection:
    k = spectrum.rank
    reason = f"{spectrum.known} singular value{'s have' if spectrum.known > 1 else ' has'} no elbow: all with variance are kept"
    values = np.zeros(k + 1)
    values[k] = 1.0
    return Selection(k, "elbow", values, np.arange(k + 1), reason)
