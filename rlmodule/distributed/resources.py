"""Compare the CPUs and GPUs that workers ask for with those of a cluster."""

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
"""Maps the name of a resource (``CPU``, ``GPU``) to its amount."""


def check_room(settings: str, workers: Sequence[tuple[int, Resources]], nodes: Sequence[Resources]) -> None:
    """Raise ValueError unless the ``nodes`` of a cluster have the resources of all ``workers`` together, and each
    worker fits on one node. The other arguments are those of :func:`check_resources`."""
    for name in ("CPU", "GPU"):
        asked = sum(number * demand.get(name, 0.0) for number, demand in workers)
        present = sum(node.get(name, 0.0) for node in nodes)
        if asked > present + 1e-9:
            remedy = "Take fewer learners, or num_gpus_per_learner=0. `ray status` shows which GPUs Ray has found."
            if name == "CPU":
                remedy = (
                    "Ask for fewer processes or for fractions, num_cpus_per_env_runner=0.5 and "
                    f"num_cpus_per_learner=0.5, or call ray.init(num_cpus={asked:g}) first, to share the CPUs."
                )
            raise ValueError(
                f"{settings}: expected at most the {present:g} {name}s of the cluster, got {asked:g} {name}s. {remedy}"
            )
    for _, demand in workers:
        if not any(all(node.get(name, 0.0) + 1e-9 >= number for name, number in demand.items()) for node in nodes):
            there = "; ".join(sorted({_listed(node, demand) for node in nodes}))
            raise ValueError(
                f"{settings}: expected workers that each fit on one node: {there}, got one with "
                f"{_listed(demand, demand)}. Ask for less for each, or add a larger node."
            )


def no_room(asked: Resources, *, free: Resources, present: Resources) -> str:
    """Return the message of the failure of a worker for which a cluster had no room. It says what the worker ``asked``
    for, and how much of that is ``free`` and ``present``."""
    named = [name for name, number in asked.items() if number]
    there = ", ".join(f"{free.get(name, 0.0):g} of {present.get(name, 0.0):g} {name}s" for name in named)
    return f"no room in time: it asks for {_listed(asked, asked)}, and {there} are free"


def room_remedy(name: str) -> str:
    """Return the sentence that says what to do if other programs hold the resources of the workers called ``name``."""
    name = name.replace(" ", "_")
    return (
        f"Wait until the programs that hold them have ended, lower num_{name}s, or ask for a fraction of a CPU, "
        f"num_cpus_per_{name}=0.5."
    )


def _listed(numbers: Resources, asked: Resources) -> str:
    """Return the ``numbers`` of the resources of which ``asked`` has more than 0, as text."""
    return ", ".join(f"{numbers.get(name, 0.0):g} {name}s" for name, number in asked.items() if number)
