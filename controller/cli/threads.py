"""How many CPU threads each model of a local trio gets.

Two torch processes that have more threads than there are cores, and whose threads wait by spinning, slow each other
down by an order of magnitude: so threads wait passively, and are divided where there are enough. On two cores the
verifier gets both all the same: the models of one request take turns, and its rounds took three quarters of the time
that they took with one thread each.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_CORES_PER_DRAFT_THREAD = 4
_SHARED_CORES = 2


@dataclass(frozen=True, slots=True)
class ThreadSplit:
    """Threads of each model."""

    verifier: int
    draft: int


def usable_cores(cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """CPU cores that this process may use: those it may run on, within the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup_limit.read_text("utf-8").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, max(1, int(quota) // int(period)))


def split(cores: int, *, with_draft: bool = True) -> ThreadSplit:
    """A quarter of the cores, at least one, for the draft; the rest, on two cores both, for the verifier."""
    draft = max(1, cores // _CORES_PER_DRAFT_THREAD) if with_draft else 0
    return ThreadSplit(cores if cores <= _SHARED_CORES else cores - draft, draft)


def environment(threads: int) -> dict[str, str]:
    """Variables for a process with so many threads."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
