"""TensorBoard: a curve for every number, against env steps."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from algorithms.loggers.base import LoggedRun, Logger, needed_package, numbers_of


class TensorBoardLogger(Logger):
    """Writes an event file, ``events.out.tfevents…``: a scalar per number, tagged by its path; the settings as text.

    A resumed run writes a file of its own, which purges what an earlier one holds of steps that it has not seen.
    """

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        with needed_package("tensorboard", "Install it: pip install tensorboard."):
            from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.folder, purge_step=run.env_steps + 1 if run.env_steps else None)
        settings = json.dumps(dict(run.config), indent=1, default=str)
        self._writer.add_text("config", textwrap.indent(settings, "    "), run.env_steps)  # Markdown: as it is

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """See :meth:`Logger.log`; the events are in the file when this returns."""
        for path, value in numbers_of(values).items():
            self._writer.add_scalar(path, value, env_steps)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
