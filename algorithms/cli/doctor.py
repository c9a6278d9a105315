"""``rlmodule doctor``: examine an env, in another process, which it may hang or end."""

import json
import os
import signal
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from algorithms.cli.exits import FAILED, OK, on_flags
from algorithms.cli.flags import CommandFlags, algorithm_config, changed_settings, parse, parse_early, settings_in
from algorithms.cli.values import environment
from algorithms.config import AlgorithmConfig
from algorithms.doctor.examination import PATIENCE, Examination
from algorithms.doctor.findings import findings_in
from algorithms.doctor.page import report_text, write_page
from catalog.settings import setting, settings_of


class DoctorFlags(CommandFlags):
    """Examine ENV before you train on it, and print findings with remedies. ENV is a Gymnasium id, a PettingZoo env, or
    your own class or factory, written my_module:name. Settings of the algorithm can be given as flags."""

    algo: str = setting("ppo", "The algorithm to train with for a moment.")
    run_dir: str | None = setting(None, "Folder for doctor.md and doctor.png; None only prints.")
    json: bool = setting(False, "Print the findings as JSON.")
    seconds: float = setting(
        35.0, "Time to play and train, in addition to the start of Python. A slow simulator needs more.", gt=0
    )


def doctor(args: Sequence[str]) -> int:
    """Examine the env that ``args`` name. Return the exit code, 1 if a fault was found."""
    algo = algorithm_config(parse_early(DoctorFlags, args).algo)
    known = {**settings_of(algo)}
    del known["run_dir"]  # the command has its own
    flags, (env,), typed = parse(DoctorFlags, "rlmodule doctor", "ENV", args, settings=settings_in(algo(), known))
    config = algo(seed=1, torch_num_threads=1)
    config.update(changed_settings(typed, config))
    examination = _examined(env, config, Examination(flags.seconds))
    findings = [*findings_in([(name, on_flags(found)) for name, found in examination.found])]
    text = report_text(f"{env} with {flags.algo}", findings)
    as_json = {"env": env, "algo": flags.algo, "findings": [finding._asdict() for finding in findings]}
    print(json.dumps(as_json) if flags.json else text)
    if flags.run_dir is not None:
        write_page(Path(flags.run_dir), text, examination)
    return FAILED if findings[0].severity == "fault" else OK  # the most serious comes first


def _examined(env: str, config: AlgorithmConfig, examination: Examination) -> Examination:
    """Run ``examination`` in another process, and return it. That the process ends is a finding, too."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe(False)  # from the other process to this one
    process = spawn.Process(target=_examine, args=(there, env, config, examination))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the process inherits, until it has imported all
    process.start()
    signal.signal(signal.SIGINT, before)
    there.close()
    began = perf_counter()
    try:
        return here.recv()
    except KeyboardInterrupt:
        process.kill()
        raise
    except EOFError:
        process.join()
    found = "crash", f"the process ended with code {process.exitcode}; stderr shows in which step"
    # With this code, faulthandler ends it after the time limit. The env may do so, too, but earlier.
    if process.exitcode == FAILED and perf_counter() - began > PATIENCE:
        found = "hang", f"no answer for {PATIENCE:g} s; stderr shows in which step"
    examination.found.append(found)
    return examination


def _examine(out: Connection, env: str, config: AlgorithmConfig, examination: Examination) -> None:
    """Run ``examination``, and send it to ``out``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback
    os.dup2(2, 1)  # what the env prints, also from compiled code, must not get into the report
    examination.run(lambda: config.update({"env": environment(env)}))
    out.send(examination)
