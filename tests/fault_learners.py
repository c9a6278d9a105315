"""Learners that go wrong on schedule, for code that has to survive them.

What happens is written into a file of a common folder, which all learners look at with every loss. A fault strikes as
often as it is planned to, also those that were restarted.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from catalog.base import Tree
from rlmodule import Rollout
from tests.rlmodule.toys import Regression, Reinforce, Settings


class FaultSettings(Settings):
    """Attributes:
    folder: Where the plan stands, and who is who.
    """

    folder: str = ""
    minibatch_size = 8
    num_learners = 1


class Plan:
    """What happens to which learner of those that share ``folder``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def write(self, kind: str, rank: int = 0, step: int = 0, times: int = 1) -> None:
        """Let ``kind`` strike the learner ``rank`` in the loss of gradient step ``step`` of an update.

        Args:
            kind: ``die``, ``exit``, ``stop``, ``raise``, ``nan``, ``sleep``; ``kill peer`` kills another that waits
                for this one.
            rank: Whom.
            step: Which minibatch of an update from episodes; of one from a batch, the number of updates before it.
            times: How often.
        """
        content = json.dumps({"kind": kind, "rank": rank, "step": step, "times": times})
        self._replace(content)

    def clear(self) -> None:
        (self.folder / "plan").unlink(missing_ok=True)

    @property
    def times_left(self) -> int:
        return json.loads((self.folder / "plan").read_text())["times"]

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def strike(self, rank: int, step: int) -> str | None:
        """Suffer what is planned; returns what is left to the learner itself to do."""
        (self.folder / f"pid-{rank}").write_text(str(os.getpid()))
        try:
            plan = json.loads((self.folder / "plan").read_text())
        except FileNotFoundError:
            return None
        if (plan["rank"], plan["step"]) != (rank, step) or not plan["times"]:
            return None
        kind = plan["kind"]
        self._replace(json.dumps(plan | {"times": plan["times"] - 1}))
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(0)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "raise":
            raise ArithmeticError("the loss of your own")
        if kind == "kill peer":
            time.sleep(0.1)  # by now it waits
            os.kill(self.pid(1 - rank), signal.SIGKILL)
        if kind == "sleep":
            time.sleep(1.5)
        return kind

    def _replace(self, content: str) -> None:
        staged = self.folder / f"plan-{os.getpid()}"
        staged.write_text(content)
        staged.rename(self.folder / "plan")


class FaultReinforce(Reinforce):
    """Suffers what is planned in the minibatches of an update."""

    settings: Any
    _minibatch = 0

    def num_threads(self) -> int:
        return torch.get_num_threads()

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[dict[str, Tree], dict[str, float]]:
        self._minibatch = 0
        return super().make_train_batch(module_id, rollout)

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        struck = Plan(self.settings.folder).strike(self.collective.rank, self._minibatch)
        self._minibatch += 1
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        return loss * torch.nan if struck == "nan" else loss, metrics


class FaultRegression(Regression):
    """Suffers what is planned in an update."""

    settings: Any

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        struck = Plan(self.settings.folder).strike(self.collective.rank, self.num_updates)
        loss, _ = super().compute_loss_for_module(module_id, batch, fwd_out)
        loss = loss * torch.nan if struck == "nan" else loss
        errors = (fwd_out["action_dist_inputs"] - batch["target"]).detach().abs().mean(-1)
        rows_of_all = len(errors) if self.num_in_batch is None else self.num_in_batch
        return loss, {"error_of_row": errors, "rows_of_all": torch.tensor(float(rows_of_all))}
