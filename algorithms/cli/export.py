"""``rlmodule export``: write the policy of a run as a file for other programs, or as a folder."""

from collections.abc import Sequence
from pathlib import Path

from algorithms.cli.checkpoints import PolicyFlags, load_policy
from algorithms.cli.exits import OK
from algorithms.cli.flags import parse
from catalog.settings import setting


class ExportFlags(PolicyFlags):
    """Write the policy of CKPT as FILE: x.onnx for onnxruntime, x.pt2 for torch.export, or a folder for Policy.load()
    if the name has no ending. CKPT is a run, a checkpoint, such a folder, or one with the runs of several seeds, which
    stands for the best run."""

    explore: bool = setting(False, "Sample the actions from an additional input, noise.")


def export(args: Sequence[str]) -> int:
    """Run ``rlmodule export``; return its exit code."""
    flags, (path, file), _ = parse(ExportFlags, "rlmodule export", "CKPT FILE", args, count=range(2, 3))
    policy = load_policy(path, flags)
    written = policy.export(file, explore=flags.explore) if Path(file).suffix else policy.save(file)
    size = sum(part.stat().st_size for part in ([*written.iterdir()] if written.is_dir() else [written]))
    print(f"{file}, {size / 1e6:,.2f} MB" + (", which acts as the policy does" if Path(file).suffix else ""))
    return OK
