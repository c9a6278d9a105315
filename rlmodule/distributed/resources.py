"""Resources: what workers ask for and what machines have, as numbers by name (``CPU``, ``GPU``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]


def check_asked(
    asked: Resources, settings: str, each: Sequence[Resources], *, present: Resources, nodes: Sequence[Resources]
) -> None:
    """Whether there is what is asked for at all.

    Args:
        asked: In all.
        settings: Which settings ask for it, for the error.
        each: What one worker asks for, of each kind: it must find it on one node.
        present: What all nodes have.
        nodes: What each has.

    Raises:
        ValueError: If not; names what is asked and what there is.
    """
    for name, number in asked.items():
        if not _covers(present, {name: number}):
            remedy = "Take fewer learners, or num_gpus_per_learner=0. `ray status` tells which GPUs Ray has found."
            if name == "CPU":
                fractions = "fractions, num_cpus_per_env_runner=0.5 and num_cpus_per_learner=0.5"
                remedy = f"Ask for fewer processes or for {fractions}, or begin with ray.init(num_cpus={number:g}), "
                remedy += "as if there were so many."
            raise ValueError(
                f"{settings}: expected at most the {present.get(name, 0.0):g} {name}s of the "
                f"cluster, got {number:g} {name}s. {remedy}"
            )
    for one in each:
        if not _fits_a_node(one, nodes):
            there = "; ".join(sorted({_listed(node, one) for node in nodes}))
            raise ValueError(
                f"{settings}: expected workers that each fit on one node: {there}, got one with "
                f"{_listed(one, one)}. Ask for less for each, or add a larger node."
            )


def _fits_a_node(asked: Resources, nodes: Sequence[Resources]) -> bool:
    """Whether one node, if all of it were free, had room."""
    return any(_covers(node, asked) for node in nodes)


def _listed(numbers: Resources, asked: Resources) -> str:
    """Of ``numbers`` those that are asked for, as text."""
    return ", ".join(f"{numbers.get(name, 0.0):g} {name}s" for name, number in asked.items() if number)


def no_room(asked: Resources, *, free: Resources, present: Resources) -> str:
    """What to tell of a worker that found none."""
    named = [name for name, number in asked.items() if number]
    there = ", ".join(f"{free.get(name, 0.0):g} of {present.get(name, 0.0):g} {name}s" for name in named)
    return f"no room in time: it asks for {_listed(asked, asked)}, and {there} are free"


def room_remedy(name: str) -> str:
    """What to do if others hold what workers called ``name`` ask for."""
    name = name.replace(" ", "_")
    fraction = f"a fraction of a CPU, num_cpus_per_{name}=0.5"
    return f"Wait until what holds them has ended, lower num_{name}s, or ask for {fraction}."


def no_cluster(address: str, error: Exception) -> str:
    """What to tell where ``RAY_ADDRESS`` is ``address``, and connecting raised ``error``."""
    where, expected = f"RAY_ADDRESS={address}", "a Ray cluster that lets this process in"
    if "authentication" in f"{error} {error.__cause__}".lower():
        return (
            f"{where}: expected {expected}, got one that asks for its token. In the shell of the "
            "script: export RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token. "
            "`ray start` asks for tokens wherever it finds that file; a script has to be told."
        )
    got = (str(error).splitlines() or ["(no message)"])[0].rstrip(".")
    return (
        f"{where}: expected {expected}, got {got}. `ray status` tells whether it runs; without "
        "RAY_ADDRESS, a Ray of its own starts on this machine."
    )


def _covers(present: Resources, asked: Resources) -> bool:
    return all(number <= present.get(name, 0.0) + 1e-9 for name, number in asked.items())
