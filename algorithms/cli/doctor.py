"""``rlmodule doctor``: examine an env, in another process, which it may hang or end."""

import faulthandler
import io
import json
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from algorithms.cli.exits import FAILED, OK, UsageError
from algorithms.cli.flags import CommandFlags, algorithm_config, changed_settings, parse, parse_early, settings_in
from algorithms.cli.train import preset_of
from algorithms.cli.values import environment
from algorithms.doctor.examination import Examination
from algorithms.doctor.findings import Finding
from algorithms.doctor.page import report_text, write_page
from algorithms.run.jobs import Jobs
from algorithms.run.progress import display
from catalog.settings import setting, settings_of

_MARK = "doctor> "  # before each message of the process that examines; other lines are those of the env


class DoctorFlags(CommandFlags):
    """Examine ENV before you train on it, and print findings with remedies. ENV is a Gymnasium id, a PettingZoo env, or
    your own class or factory, written my_module:name. Settings of the algorithm can be given as flags."""

    algo: str = setting("ppo", "The algorithm to train with for a moment.")
    run_dir: str | None = setting(None, "Folder for doctor.md and doctor.png; None only prints.")
    json: bool = setting(False, "Print the findings as JSON.")
    seconds: float = setting(40.0, "Time to play and train, in addition to the start of two processes.", gt=0)
    timeout: float = setting(20.0, "Seconds without an answer of the env after which it counts as hanging.", gt=0)
    in_process: bool = setting(False, "Examine in this process, for a debugger, and print messages as JSON.")


def doctor(args: Sequence[str]) -> int:
    """Examine ENV, and say what is wrong with it."""
    algo = algorithm_config(parse_early(DoctorFlags, args).algo)
    known = {name: item for name, item in settings_of(algo).items() if name != "run_dir"}
    flags, (env,), typed = parse(DoctorFlags, "rlmodule doctor", "ENV", args, settings=settings_in(algo(), known))
    if flags.in_process:
        preset, _ = preset_of(algo, env, "auto")
        config = algo(seed=1, torch_num_threads=1, **(preset.settings if preset else {}))
        _examine(config.update(changed_settings(typed, config)), env, flags)
        return OK

    findings, measured = _examined(args, flags)
    title = f"{env} with {algo().algo_class.__name__}"
    text = report_text(title, findings)
    if flags.run_dir is not None:
        write_page(Path(flags.run_dir), text, measured)
    if flags.json:
        shown = [{"severity": item.severity, **item._asdict(), "remedy": item.remedy} for item in findings]
        text = json.dumps({"env": env, "algo": flags.algo, "findings": shown, "measured": measured}, indent=2)
    print(text)
    return FAILED if any(finding.severity == "fault" for finding in findings) else OK


def _examine(config: Any, env: str, flags: DoctorFlags) -> None:
    """Examine ``env`` in this process, and print messages. If one is late, print where Python is, and exit."""
    out = sys.stdout  # the env's prints go elsewhere

    def send(kind: str, *content: Any) -> None:
        print(_MARK + json.dumps([kind, *content]), file=out, flush=True)

    def say(what: str, seconds: float) -> None:
        faulthandler.dump_traceback_later(flags.timeout + seconds, exit=True)
        send("doing", what)

    sys.stdin = io.StringIO()  # an env that asks gets no answer
    say("importing the env", 0)
    try:
        source = environment(env)
    except UsageError as error:
        send("finding", "import", str(error))
        return
    examination = Examination(
        config.update({"env": source}), flags.seconds, lambda finding: send("finding", *finding), say
    )
    examination.run()
    faulthandler.cancel_dump_traceback_later()
    send("measured", examination.measured)


def _examined(args: Sequence[str], flags: DoctorFlags) -> tuple[list[Finding], dict[str, Any]]:
    """Let another process examine the env. Return the findings, and what was measured."""
    findings, measured, doing = list[Finding](), dict[str, Any](), ""
    others, start = deque[str](maxlen=100), perf_counter()

    def on_line(name: str, line: str) -> None:
        nonlocal doing
        _, mark, message = line.partition(_MARK)
        match json.loads(message) if mark else None:
            case ["doing", doing]:
                show(int(perf_counter() - start), doing)
            case ["finding", *content]:
                findings.append(Finding(*content))
            case ["measured", content]:
                measured.update(content)
            case _:
                others.append(line)

    with display(int(flags.seconds), enabled=not flags.json) as show, Jobs(2, on_line) as jobs:
        job = jobs.start("doctor", ["doctor", "--in-process", *args])
        jobs.wait()
    last = "\n".join(others)
    if "Timeout (" in last:
        place = last.rpartition("(most recent call first):")[2].strip().partition("\n")[0]
        findings.append(Finding("hang", f"no answer for {flags.timeout:g} s while {doing}: {place}"))
    elif job.exit_code:
        text = f"the process ended with code {job.exit_code} while {doing}. Its last line: {job.last_line}"
        findings.append(Finding("crash", text))
    return findings, measured
