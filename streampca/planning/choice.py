"""Which solver: what is exact and fits, the cheapest first."""

from __future__ import annotations

from dataclasses import replace

from streampca.errors import MemoryBudgetError, UsageError
from streampca.planning.covariance import FULL_SPECTRUM_LIMIT, Request, plan_covariance
from streampca.planning.criteria import HELD_OUT, WHOLE
from streampca.planning.dual import plan_dual
from streampca.planning.layout import chunk_reads
from streampca.planning.plans import Plan
from streampca.planning.projection import Limits
from streampca.planning.sketch import plan_sketch, ranks
from streampca.planning.tsqr import plan_tsqr
from streampca.sources.base import SourceInfo

SOLVERS = ("auto", "covariance", "tsqr", "sketch", "dual")
_DUAL_ROWS = 48  # rows per direction of a sketch: n x n products then cost four times as much as a sketch's
WIDE = 10_000  # columns, from which on the d x d eigenproblem takes longer than more passes


def plan_with(solver: str, info: SourceInfo, turned: SourceInfo | None, request: Request, limits: Limits) -> Plan:
    """Return the plan of a solver; ``turned`` is the transposed table, where there is one."""
    if request.n_components == HELD_OUT and solver not in ("auto", "covariance"):
        raise UsageError(f"n_components='held-out' needs two sets of sums, which solver={solver!r} does not keep: use 'covariance'")
    if solver == "covariance" or request.n_components == HELD_OUT:
        return plan_covariance(info, request, limits)
    if solver == "tsqr":
        return plan_tsqr(info, request, limits)
    if solver == "sketch":
        return plan_sketch(info, request, limits)
    if solver == "dual":
        return plan_dual(info, turned, request, limits)
    return choose(info, turned, request, limits)


def may_be_dual(info: SourceInfo, solver: str) -> bool:
    """Return whether it is worth asking a source for its columns."""
    few_long_rows = info.n_features > FULL_SPECTRUM_LIMIT and 2 * info.n_rows <= info.n_features
    return solver == "dual" or (solver == "auto" and few_long_rows)


def choose(info: SourceInfo, turned: SourceInfo | None, request: Request, limits: Limits) -> Plan:
    """Return the plan of the best solver: the dual for few long rows, the covariance where it fits, else the sketch."""
    dual = _dual(info, turned, request, limits)
    if dual is not None:
        return dual
    try:
        covariance = plan_covariance(info, request, limits)
    except MemoryBudgetError as refusal:
        return _sketch_instead(info, request, limits, refusal)
    if info.n_features <= WIDE or not isinstance(request.n_components, int) or 20 * request.n_components > info.n_features:
        return covariance
    plan = plan_sketch(info, request, limits)
    return replace(
        plan, reasons=(f"the eigenvectors of a {info.n_features:,}-column covariance take longer than a few passes", *plan.reasons)
    )


def _dual(info: SourceInfo, turned: SourceInfo | None, request: Request, limits: Limits) -> Plan | None:
    """Return the dual's plan where it is exact, cheaper than the covariance, and reads each chunk once."""
    if turned is None or not may_be_dual(info, "auto"):
        return None
    try:
        plan = plan_dual(info, turned, request, limits)
    except (MemoryBudgetError, UsageError):
        return None
    return plan if chunk_reads(turned, plan.block_rows) == 1 and not _sketch_is_cheaper(info, request) else None


def _sketch_is_cheaper(info: SourceInfo, request: Request) -> bool:
    """Return whether n x n products cost several times those of a sketch."""
    return isinstance(request.n_components, int) and info.n_rows > _DUAL_ROWS * ranks(info, request)[0]


def _sketch_instead(info: SourceInfo, request: Request, limits: Limits, refusal: MemoryBudgetError) -> Plan:
    """Return the sketch's plan when the d x d sums do not fit; if it fits neither, say so for both."""
    if request.n_components is None:
        raise MemoryBudgetError(f"{refusal}; with n_components given, a sketch needs less") from None
    if request.n_components in WHOLE:
        raise MemoryBudgetError(f"{refusal}; n_components='bic' needs only the leading variances, which a sketch finds in less") from None
    try:
        plan = plan_sketch(info, request, limits)
    except MemoryBudgetError as error:
        raise MemoryBudgetError(f"{refusal}. A sketch does not fit either: {error}") from None
    d = info.n_features
    return replace(plan, reasons=(f"the {d:,} x {d:,} sums of a covariance do not fit the budget", *plan.reasons))
