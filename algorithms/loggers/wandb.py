"""WandbLogger: log to Weights & Biases, on its server or offline until ``wandb sync``."""

from collections.abc import Mapping
from typing import Any, Literal

from algorithms.loggers.base import CLOCK, STEPS, LoggedRun, Logger, ServiceRun, needed_package, numbers_of

VIDEOS = "evaluation/videos"
"""Path at which a result lists the videos of an evaluation."""


class WandbLogger(Logger):
    """Logs to a new W&B run: numbers against env steps, settings, and videos of evaluations. In a run that learns from
    data, the numbers are against its clock.

    A run that resumes from a checkpoint in its folder continues its W&B run. That run keeps everything that was logged
    before.

    Args:
        run: The run to log.
        project: Name of the W&B project. None uses ``WANDB_PROJECT``.
        mode: ``"online"`` sends, ``"offline"`` writes files to send later, and ``"disabled"`` does nothing. None uses
            ``WANDB_MODE``.
        **options: Additional arguments of ``wandb.init``, such as ``group="tuning"``.
    """

    def __init__(
        self,
        run: LoggedRun,
        *,
        project: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run)
        with needed_package("loggers: 'wandb'", "wandb", 'Install it: pip install "catalog-rl[wandb]".'):
            import wandb

        self._wandb = wandb
        earlier = ServiceRun(run, "wandb")
        # create_new, so that two algorithms in one process are two runs
        ours: dict[str, Any] = {"name": f"{run.name}, seed {run.seed}", "reinit": "create_new"}
        if earlier.known is not None:
            ours |= {"id": earlier.known, "resume": "allow"}
        ours |= {"config": dict(run.config)} | options
        self._run = wandb.init(project=project, mode=mode, **ours)
        try:
            self._run.define_metric("*", step_metric=STEPS)
            earlier.keep(self._run.id)
        except BaseException:
            self._run.finish(exit_code=1)
            raise

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Log the numbers at ``env_steps``, and the videos if the iteration recorded any."""
        axis = STEPS
        if CLOCK in values:
            axis = CLOCK
            self._run.define_metric("*", step_metric=axis)
        videos = [
            self._wandb.Video(video["path"], caption=f"return {video['episode_return']:g}", format="mp4")
            for video in values.get(VIDEOS) or ()
        ]
        self._run.log(numbers_of(values) | {axis: env_steps} | ({VIDEOS: videos} if videos else {}))

    def close(self) -> None:
        self._run.finish()
