"""What a run found, for people to look at: one HTML file that needs nothing else."""

from streampca.report.document import check_report, report_of_run, write_report
from streampca.report.rows import summarize_rows

__all__ = ["check_report", "report_of_run", "summarize_rows", "write_report"]
