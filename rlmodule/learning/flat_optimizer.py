"""Store the parameters of a module in one flat tensor with named parts, so that zeroing gradients, clipping and
optimizer steps take few calls."""

import copy
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from catalog.checks import Schedule
from rlmodule.collective import Collective
from rlmodule.learning.schedules import scaled


@dataclass(frozen=True)
class Part:
    """A set of a module's parameters that has its own optimizer, such as the parameters of an actor.

    Attributes:
        prefixes: Names of submodules or parameters. The part consists of these parameters and of all parameters in
            these submodules. ``""`` names the whole module.
        lr: Learning rate: a number, or a schedule over env steps.
        grad_clip: Upper bound on the part's gradients, in the sense of the setting ``grad_clip_by``; None does not
            clip.
    """

    prefixes: tuple[str, ...]
    lr: Schedule
    grad_clip: float | None

    def covers(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` of the module belongs to this part."""
        return any(not prefix or f"{name}.".startswith(f"{prefix}.") for prefix in self.prefixes)


def parameters_by_part(module: nn.Module, parts: Mapping[str, Part], where: str) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters of each part of ``module`` by the part's name, in the order of ``parts``.
    ``where`` begins error messages.

    Raises:
        ValueError: If a trainable parameter is not in exactly one part, or if there are several parts and one of them
            has no trainable parameter.
    """
    found: dict[str, list[nn.Parameter]] = {part: [] for part in parts}
    seen: dict[int, set[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):  # one that two submodules share has two names
        if not p.requires_grad:
            continue
        names = {part for part, one in parts.items() if one.covers(name)} | seen.get(id(p), set())
        if len(names) != 1:
            got = f"it in {' and '.join(sorted(names))}" if names else "it in none"
            raise ValueError(
                f"{where}: expected each trainable parameter in exactly one of {', '.join(parts)}, got {got}: {name}. "
                "Change the prefixes of the parts, or freeze the parameter with requires_grad_(False)."
            )
        if id(p) not in seen:
            found[names.copy().pop()].append(p)
        seen[id(p)] = names
    if len(parts) > 1 and (empty := [part for part, parameters in found.items() if not parameters]):
        raise ValueError(
            f"{where}: expected trainable parameters in each part, got none in {', '.join(empty)}, of the prefixes "
            f"{', '.join(repr(prefix) for part in empty for prefix in parts[part].prefixes)}. Leave out that part, or "
            "name a submodule that has some. To freeze it, set its learning rate to 0."
        )
    return found


class FlatPart:
    """The parameters of one part, which are a slice of the flat tensor.

    Attributes:
        views: The parameters, which are views of ``tensor``.
        tensor: The slice as a single parameter, for an optimizer.
        grad: The gradient of ``tensor``, a slice of the flat gradient.
    """

    def __init__(self, views: list[nn.Parameter], data: Tensor, grad: Tensor) -> None:
        self.views, self.tensor, self.grad = views, nn.Parameter(data), grad
        self.tensor.grad = grad


class FlatParameters:
    """Copies parameters into one contiguous tensor, makes the parameters views of that tensor, and makes their
    gradients views of a second tensor.

    For a dozen small tensors, the overhead of an optimizer step takes as long as the backward pass. An elementwise
    optimizer does the same arithmetic on one long tensor.

    Args:
        by_part: The parameters of each part, by the part's name. Frozen parameters are left out.

    Attributes:
        views: The parameters of all parts, which are now views of ``tensor``.
        tensor: The flat tensor, part after part.
        grad: The flat gradient, of which each parameter's ``grad`` is a view.
        parts: The slice of ``tensor`` and ``grad`` of each part, by the part's name.

    Raises:
        ValueError: If no parameter is trainable, or the trainable parameters differ in dtype or device.
    """

    def __init__(self, by_part: Mapping[str, Iterable[nn.Parameter]]) -> None:
        views = {name: [p for p in parameters if p.requires_grad] for name, parameters in by_part.items()}
        self.views = [p for of_part in views.values() for p in of_part]
        if len({(p.dtype, p.device) for p in self.views}) != 1:
            got = sorted({f"{p.dtype} on {p.device}" for p in self.views}) or "none"
            raise ValueError(
                "parameters of a module: expected trainable parameters of one dtype on one "
                f"device, got {got}. Give the module at least one parameter, and convert it as a "
                "whole with module.to(...)."
            )
        self.tensor = torch.cat([p.detach().flatten() for p in self.views])
        # two more numbers, so that one all-reduce takes the rows and the loss along with the gradient
        self._pooled = self.tensor.new_zeros(self.tensor.numel() + 2)
        self.grad = self._pooled[:-2]
        self._grads: list[tuple[nn.Parameter, Tensor]] = []
        sizes = [p.numel() for p in self.views]
        for p, data, grad in zip(self.views, self.tensor.split(sizes), self.grad.split(sizes), strict=True):
            p.data = data.view_as(p)
            p.grad = grad.view_as(p)
            self._grads.append((p, p.grad))
        self.parts: dict[str, FlatPart] = {}
        start = 0
        for name, of_part in views.items():
            stop = start + sum(p.numel() for p in of_part)
            self.parts[name] = part = FlatPart(of_part, self.tensor[start:stop], self.grad[start:stop])
            self._grads.append((part.tensor, part.grad))
            start = stop

    def zero_grad(self) -> None:
        """Set all gradients to zero in place, so that the backward pass adds to the flat gradient."""
        self.grad.zero_()
        for p, grad in self._grads:
            p.grad = grad  # zero_grad() of a module or an optimizer may have removed it

    def pool(self, collective: Collective, loss: Tensor | float, rows: int) -> Tensor:
        """Replace ``grad``, the gradient of the mean loss over this learner's rows, with the gradient of the mean loss
        over the rows of all learners.

        Args:
            collective: The learners that train together.
            loss: The mean loss over the rows of this learner, a scalar.
            rows: Number of this learner's rows, which may be 0 on some learners but not on all.

        Returns:
            The mean loss over the rows of all learners, a scalar.
        """
        self.grad.mul_(rows)
        self._pooled[-2], self._pooled[-1] = rows, loss * rows
        self._pooled.div_(collective.all_reduce(self._pooled)[-2].clone())
        return self._pooled[-1].clone()


# Moments of weights without a gradient, as of dead ReLUs, decay to denormal numbers, which CPUs handle slowly.
_DENORMAL = 1e-310


class FlatAdam(torch.optim.Adam):
    """Adam (Kingma and Ba 2015, Algorithm 1) for a single flat tensor, in one call of torch's fused kernel.

    :meth:`step_unless` has the arithmetic, settings and state of ``torch.optim.Adam(..., fused=True)``, whose ``step``
    takes ten times as long as the kernel for small nets. :meth:`step_unless` calls no step hooks, and treats denormal
    numbers as zero.

    Args:
        parameters: The flat tensor.
        lr: Initial learning rate. Set later learning rates in the param group.
        eps: Number added to the square root of the second moment.
    """

    # torch keeps its compiler out of these methods, but imports it to do so, which takes as long as importing torch
    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)

    def __init__(self, parameters: nn.Parameter, lr: float, eps: float) -> None:
        super().__init__([parameters], lr=lr, eps=eps, fused=True)
        moments = {"exp_avg": torch.zeros_like(parameters), "exp_avg_sq": torch.zeros_like(parameters)}
        self.state[parameters] = {"step": torch.zeros((), device=parameters.device)} | moments

    def step_unless(self, skip: Tensor) -> None:
        """Take a step if ``skip``, a scalar float tensor, is 0, and none if it is 1. Do not wait for its value."""
        (group,) = self.param_groups
        (parameters,) = group["params"]
        state, (beta1, beta2) = self.state[parameters], group["betas"]
        state["step"].add_(1.0).sub_(skip)
        weights, grad = parameters.detach(), parameters.grad  # detach() takes less time than no_grad()
        tensors = [weights], [grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]
        settings = {name: group[name] for name in ("lr", "eps", "weight_decay", "maximize")}
        settings |= {"beta1": beta1, "beta2": beta2, "amsgrad": False, "found_inf": skip}
        flushes = _DENORMAL * 2.0 == 0.0
        torch.set_flush_denormal(True)
        try:
            torch._fused_adam_(*tensors, **settings)  # pyright: ignore[reportPrivateImportUsage]
        finally:
            torch.set_flush_denormal(flushes)


@dataclass(frozen=True, eq=False)
class TrainedPart:
    """One part of a module in training (see :class:`Part`), with its flattened parameters and its optimizer.

    Attributes:
        clip_by: What the part's ``grad_clip`` bounds: ``"global_norm"`` all gradients together, ``"norm"`` the gradient
            of each parameter, ``"value"`` each element.
    """

    part: Part
    flat: FlatPart
    optimizer: torch.optim.Optimizer
    clip_by: str

    @property
    def learning_rate(self) -> float:
        """The optimizer's current learning rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def schedule(self, env_steps: int) -> None:
        """If the learning rate follows a schedule, set it to its value after ``env_steps`` env steps."""
        if isinstance(self.part.lr, int | float):
            return
        for group in self.optimizer.param_groups:
            group["lr"] = scaled(group["initial_lr"], self.part.lr, env_steps)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the optimizer; see :func:`optimizer_state`."""
        return optimizer_state(self.optimizer, is_scheduled=not isinstance(self.part.lr, int | float))

    def clip(self) -> Tensor:
        """Clip the part's gradients in place; a ``grad_clip`` of None does not clip. Return their global norm before
        that."""
        limit, grad = self.part.grad_clip, self.flat.grad
        norm = torch.linalg.vector_norm(grad)
        if limit is None:
            return norm
        if self.clip_by == "global_norm":
            grad.div_(norm.clamp_min(limit).div_(limit))
        elif self.clip_by == "value":
            grad.clamp_(-limit, limit)
        else:
            for p in self.flat.views:
                nn.utils.clip_grad_norm_([p], limit)
        return norm

    def step_unless(self, skip: Tensor) -> None:
        """Take an optimizer step if ``skip``, a scalar float tensor, is 0, and none if it is 1. Only an optimizer other
        than :class:`FlatAdam` waits for its value."""
        if isinstance(self.optimizer, FlatAdam):
            self.optimizer.step_unless(skip)
        elif not skip:
            self.optimizer.step()


def where_not_finite(values: Tensor) -> Tensor:
    """Return 1.0 for each of ``values`` that is infinite or NaN, and 0.0 for the others, without waiting for the
    device."""
    # x - x is 0 if x is finite, else NaN
    return values.sub(values).ne_(0).float()


def optimizer_state(optimizer: torch.optim.Optimizer, *, is_scheduled: bool = False) -> dict[str, Any]:
    """Return ``optimizer.state_dict()`` with string keys, as a tree of tensors and values that JSON can represent.

    If ``is_scheduled``, store each group's ``initial_lr`` as its ``lr``, because the schedule computes the current
    learning rate from the initial one.
    """
    state = optimizer.state_dict()
    groups = [group | {"lr": group["initial_lr"]} if is_scheduled else group for group in state["param_groups"]]
    return {"state": {str(k): v for k, v in state["state"].items()}, "param_groups": groups}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore a state from :func:`optimizer_state`. If the initial learning rate of a param group differs between
    ``state`` and ``optimizer``, keep that of ``optimizer`` and make it the current learning rate."""
    initial = [group.get("initial_lr") for group in optimizer.param_groups]
    # copy, since torch would keep the tensors of `state` and update them
    moments = {int(key): copy.deepcopy(of) for key, of in state["state"].items()}
    mine = optimizer.state_dict()["param_groups"]  # which may have keys that are new in this version of torch
    saved = state["param_groups"]
    groups = [own | one | {"params": own["params"]} for own, one in zip(mine, saved, strict=True)]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for group, one, lr in zip(optimizer.param_groups, saved, initial, strict=True):
        if lr != one.get("initial_lr"):
            group["lr"] = group["initial_lr"] = lr
