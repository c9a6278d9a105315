"""The report of an examination, as text and as a page with a picture."""

from pathlib import Path

from algorithms.doctor.examination import Examination
from algorithms.doctor.findings import Finding
from algorithms.loggers.base import replace_file
from catalog_rl import printable


def report_text(title: str, findings: list[Finding]) -> str:
    """Return the findings as text that is also Markdown."""
    lines = [title, ""]
    for finding in findings:
        lines += [f"- {finding.severity}, {finding.name}: {printable(finding.found)}", f"  → {finding.remedy}"]
    return "\n".join(lines)


def write_page(folder: Path, text: str, examination: Examination) -> None:
    """Write ``text`` to ``folder`` as doctor.md, with the picture doctor.png if the env was played."""
    folder.mkdir(parents=True, exist_ok=True)
    if examination.curve:
        draw(examination, folder / "doctor.png")
        text += "\n\n![returns, and the time of a step](doctor.png)"
    replace_file(folder / "doctor.md", f"# {text}\n")


def draw(examination: Examination, out: Path) -> None:
    """Draw the mean return of random play and then of the training, and how long steps of random play took."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    returns, times = figure.subplots(1, 2)
    returns.plot(*zip(*examination.curve, strict=True), "o-")
    returns.set(xlabel="env steps of the training", ylabel="mean episode return, first at random")
    if examination.play:
        times.hist([moment.seconds * 1e3 for moment in examination.play if moment.step], bins=50, log=True)
        times.set(xlabel="time of a step of the env (ms)", ylabel="steps")
    else:  # the envs of a ready vector env are not played one by one
        times.remove()
    figure.savefig(out)
