"""Configured runs: what the command line does, callable from Python."""

from streampca.jobs.config import InputConfig, JobConfig, SchedulerConfig, load_config, make_config
from streampca.jobs.look import describe
from streampca.jobs.run import Summary, plan_job, run_job, transform_job
from streampca.jobs.update import Change, merge_job, subtract_job, update_job

__all__ = [
    "Change",
    "InputConfig",
    "JobConfig",
    "SchedulerConfig",
    "Summary",
    "describe",
    "load_config",
    "make_config",
    "merge_job",
    "plan_job",
    "run_job",
    "subtract_job",
    "transform_job",
    "update_job",
]
