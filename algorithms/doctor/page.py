"""The report of an examination, as text and as a page with a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from algorithms.doctor.examination import Examination
from algorithms.doctor.findings import REMEDIES, Finding
from algorithms.doctor.random_play import returns_of
from algorithms.loggers.base import replace_file
from catalog_rl import printable

PICTURE = "doctor.png"
"""Name of the picture next to the page."""


def report_text(title: str, findings: Sequence[Finding]) -> str:
    """Return the findings as text that is also Markdown."""
    counts = [f"{name}s: {sum(finding.severity == name for finding in findings)}" for name in REMEDIES]
    lines = [f"{title}. {', '.join(counts)}", ""]
    for finding in findings:
        lines += [f"- {finding.severity}, {finding.name}: {printable(finding.found)}", f"  → {finding.remedy}"]
    return "\n".join(lines)


def write_page(folder: Path, text: str) -> None:
    """Write ``text`` as doctor.md to ``folder``, with the picture if there is one."""
    picture = f"\n![returns, and the time of a step]({PICTURE})\n" if (folder / PICTURE).exists() else ""
    replace_file(folder / "doctor.md", f"# {text}\n{picture}")


def draw(examination: Examination, out: Path) -> None:
    """Draw the returns of random play and of the training, and how long steps take."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    returns, times = figure.subplots(1, 2)
    if examination.curve:
        returns.plot(*zip(*examination.curve, strict=True), "o-", markersize=4, label="training")
    if ended := returns_of(examination.play):
        returns.axhline(fmean(ended), color="grey", linestyle=":", label="random play, mean")
        returns.legend(frameon=False)
    returns.set(title="returns", xlabel="env steps", ylabel="mean episode return")
    times.hist([moment.seconds * 1e3 for moment in examination.play if moment.is_step], bins=50, log=True)
    times.set(title="time of a step of the env", xlabel="ms", ylabel="steps")
    figure.savefig(out, dpi=120)
