"""Configured runs: what the command line does, callable from Python."""

from streampca.jobs.config import InputConfig, JobConfig, SchedulerConfig, load_config, make_config
from streampca.jobs.look import describe
from streampca.jobs.run import Summary, plan_job, run_job, transform_job

__all__ = [
    "InputConfig",
    "JobConfig",
    "SchedulerConfig",
    "Summary",
    "describe",
    "load_config",
    "make_config",
    "plan_job",
    "run_job",
    "transform_job",
]
