"""What a run found, for people to look at: one HTML file that needs nothing else."""

from streampca.report.document import check_report, report_of_run, write_report
from streampca.report.drift import Drift, drift_between
from streampca.report.rows import empty_summary, summarize_rows

__all__ = ["Drift", "check_report", "drift_between", "empty_summary", "report_of_run", "summarize_rows", "write_report"]
