"""RestartPolicy: when a worker that failed restarts, and when a run goes on without it. WorkerAccounts: what workers
have cost a run."""

from collections import Counter
from dataclasses import dataclass, field

# Seconds before the first restart in a row, and the longest delay. Each restart in a row triples the delay.
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0


@dataclass
class WorkerAccounts:
    """What the workers of one kind have cost a run, in this process or in others, also before a checkpoint that the run
    resumed from.

    Attributes:
        num_restarts: Restarts of workers in other processes.
        num_bytes_shared: Bytes of shared arguments, such as weights, summed over the workers that they were sent to.
        num_env_steps_lost: Env steps that were taken but are in no rollout, by cause.
    """

    num_restarts: int = 0
    num_bytes_shared: int = 0
    num_env_steps_lost: Counter[str] = field(default_factory=Counter)


@dataclass
class RestartPolicy:
    """Decides about workers that failed: whether and when they restart, and whether a run goes on without them.

    Workers that only restart together count as one.

    Attributes:
        max_in_a_row: Largest number of restarts of one worker in a row, without progress in between; 0 for none.
        may_lose: Whether a run goes on without a worker that does not restart, as long as another one is left.
        failures: Number of failures in a row of each worker that has failed since it last made progress.
    """

    max_in_a_row: int
    may_lose: bool = False
    failures: Counter[int] = field(default_factory=Counter)

    def delay_after_failure(self, worker: int = 0) -> float | None:
        """Count a failure of a worker. Return the seconds until its restart, or None if it does not restart."""
        self.failures[worker] += 1
        if self.failures[worker] > self.max_in_a_row:
            return None
        return min(MAX_DELAY_S, FIRST_DELAY_S * 3 ** (self.failures[worker] - 1))

    def forgive(self, worker: int = 0) -> None:
        """Do not count earlier failures of a worker, because it made progress."""
        del self.failures[worker]

    def goes_on_without_failed(self, num_left: int) -> bool:
        """Return whether a run goes on with the ``num_left`` workers that have not failed for good."""
        return self.may_lose and num_left > 0
