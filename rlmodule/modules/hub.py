"""Push policies to repositories on the Hugging Face Hub, each with a model card, and load them by repository name.

Only the files of the policy are downloaded. They are verified as in any policy folder, and may name code to import; see
:mod:`rlmodule.modules.policy_files`.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, ClassVar

from rlmodule.modules.policy_files import FILM, KIND, SPEC, WEIGHTS
from rlmodule.sealed_folder import MANIFEST, StrPath, read_manifest

_FILES = (SPEC, WEIGHTS, MANIFEST)


@contextmanager
def downloaded(repo_id: str, revision: str | None, token: str | None, where: str) -> Iterator[Path]:
    """Yield a temporary folder with the policy files of a repository. It is deleted at the end of the block.

    Raises:
        ImportError: If ``huggingface_hub`` is missing.
        OSError: If the repository or the revision cannot be read. All error messages begin with ``where``.
    """
    download = _package(where).snapshot_download
    try:
        found = Path(download(repo_id, revision=revision, token=token, allow_patterns=[*_FILES]))
    except (OSError, ValueError) as error:
        raise _failed(where, "a repository that can be read", error) from error
    with TemporaryDirectory() as folder:
        copied = Path(folder, repo_id)  # the cache has links, which loading does not follow
        copied.mkdir(parents=True)
        for file in (found / name for name in _FILES):
            if file.is_file():
                shutil.copyfile(file, copied / file.name)
        yield copied


class OnHub(ABC):
    """Base class of policies that can be pushed to the Hugging Face Hub.

    Attributes:
        import_path: Import path of the class, for the code example in the model card.
    """

    import_path: ClassVar[str]

    @abstractmethod
    def save(self, path: StrPath) -> Path:
        """Write the policy's files as the folder ``path``, and return the path."""

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluation: Mapping[str, Any] | None = None,
        env: str | None = None,
        command: str | None = None,
        film: StrPath | None = None,
        private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Write the files of :meth:`save` and a model card to a repository on the Hugging Face Hub, in a single commit.
        Return the URL of the repository. This needs the extra ``hub`` of catalog-rl.

        Args:
            repo_id: The repository, ``"user/name"``. It is created if it does not exist.
            evaluation: Result of ``algo.evaluate()``. The card shows the mean and standard deviation of the returns.
            env: Name of the env, for the card.
            command: The command that trained the policy, for the card.
            film: A video of an episode, as the path of an mp4 file.
            private: Whether a new repository is private; None takes the default of the account.
            token: The access token; None takes the token of ``hf auth login``.

        Raises:
            OSError: If the repository cannot be written to.
            ImportError: If the package ``huggingface_hub`` is missing.
            ValueError: If ``evaluation`` has no returns.
            TypeError: See :meth:`save`.
        """
        where = f"{type(self).__name__}.push_to_hub({repo_id!r})"
        hub = _package(where)
        score, rows = None, dict[str, str]()
        if evaluation is not None:
            score, rows["Return"] = score_of(evaluation, where)
        if env is not None:
            rows["Env"] = f"`{env}`"
        if command is not None:
            rows["Made by"] = f"`{command}`"
        with TemporaryDirectory() as folder:
            path = self.save(Path(folder, "policy"))
            versions = read_manifest(path, KIND)["versions"]
            rows["Versions"] = ", ".join(f"{package} {number}" for package, number in versions.items())
            card = model_card(repo_id, f"{self.import_path}.from_pretrained", score, env, rows)
            if film is not None:
                shutil.copyfile(film, path / FILM)
                card += f"\n![An episode]({FILM})\n"
            (path / "README.md").write_text(card, encoding="utf-8")
            try:
                api = hub.HfApi(token=token)
                url = api.create_repo(repo_id, private=private, exist_ok=True)
                # In the same commit, delete the film of an earlier policy, which this one may not replace.
                api.upload_folder(
                    repo_id=repo_id, folder_path=path, commit_message="Add policy", delete_patterns=[FILM]
                )
            except Exception as error:  # without a network, the error of whichever HTTP client the package has
                raise _failed(where, "a repository that can be written to", error) from error
        return str(url)


def model_card(name: str, load: str, score: str | None, env: str | None, rows: Mapping[str, str]) -> str:
    """Return the text of a model card, including the metadata by which the Hub finds and ranks models.

    Args:
        name: What the policy is loaded by: a repository, ``"user/name"``, or a path.
        load: Import path of the class method that loads it.
        score: Mean and standard deviation of the returns, from :func:`score_of`; None if the policy was not evaluated.
        env: Name of the env; None if it is unknown.
        rows: The rows of the card's table, from label to text.

    Raises:
        ImportError: If the package ``huggingface_hub`` is missing.
    """
    hub = _package("model_card()")
    # The Hub asks for a data set, for which the env stands.
    task, env_name = "reinforcement-learning", env or "unknown"
    data = hub.ModelCardData(
        library_name="catalog-rl",
        tags=[task, "deep-reinforcement-learning", *([env] if env else [])],
        model_name=name,
        eval_results=[hub.EvalResult(task, env_name, env_name, "mean_reward", score, task_name=task)]
        if score
        else None,
    )
    path, _, method = load.rpartition(".")
    package, _, loader = path.rpartition(".")
    table = "".join(f"| {label} | {text} |\n" for label, text in rows.items())
    return (
        f"---\n{data.to_yaml()}\n---\n\n# {name}\n\n| | |\n| --- | --- |\n{table}\n"
        f'```python\nfrom {package} import {loader}\n\npolicy = {loader}.{method}("{name}")\n'
        "action, state = policy.act(obs)\n```\n"
    )


def score_of(evaluation: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return the mean and standard deviation of the returns as the string ``"mean +/- std"``, and the same with the
    number of episodes. Raise ValueError, with a message that begins with ``where``, if ``evaluation`` lacks them."""
    played = evaluation.get("env_runners")
    played = played if isinstance(played, Mapping) else {}
    if missing := {"episode_return_mean", "episode_return_std", "num_episodes"} - played.keys():
        raise ValueError(
            f"{where}: expected the result of algo.evaluate(), got one without {', '.join(sorted(missing))}. Pass "
            "evaluation=algo.evaluate(), or leave it out."
        )
    score = f"{played['episode_return_mean']:.2f} +/- {played['episode_return_std']:.2f}"
    return score, f"{score} over {played['num_episodes']} episodes"


def _package(where: str) -> ModuleType:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            f"{where}: expected the package huggingface_hub, got none. Run: pip install 'catalog-rl[hub]'."
        ) from error


def _failed(where: str, expected: str, error: Exception) -> OSError:
    got = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return OSError(f"{where}: expected {expected}, got {got}. Check the name, the revision, the network and the token.")
