"""Worker of ``test_hostile_files.py``: puts a text into each field of each kind of file that we read, reads the file at
each entry point, and prints as JSON what an audit hook saw. It has a process of its own, since an audit hook cannot be
removed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from gymnasium import spaces
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars
from matplotlib.figure import Figure

from algorithms import Algorithm
from algorithms.cli import main
from algorithms.loggers.base import SECONDS, STEPS
from algorithms.ppo import PPOConfig
from algorithms.ppo.module import PPOCatalog, PPOModule
from algorithms.registry import ALGORITHMS, config_class
from algorithms.run.league import League
from algorithms.tuning.page import importance, study_table, winning_command
from algorithms.tuning.population import Member, Population, population_table
from algorithms.tuning.search import parse_search
from algorithms.tuning.study import SeedResult, Study
from catalog.settings import settings_of
from rlmodule import Dataset, Policy, RLModuleSpec, sealed_folder
from rlmodule.agents import MultiAgentPolicy
from rlmodule.agents.cartpoles import CartPoles
from tests.deploy.hub_double import TOKEN, HubDouble, hub_double

# --- the table --------------------------------------------------------------------------------------------------------

# What becomes of a text, by field:
#   data     it is kept or shown, and the file loads
#   refused  the file is refused
#   allow    the file is refused, and the error says what to allow; once it is allowed, it is imported
#   path     the file is refused for the path of a file, and the error says what to allow
_SETTINGS = """
    actor_lr adaptive_lr_kl alpha_lr bc_coeff beta burn_in_len callbacks_class checkpoint_interval clip_param
    clip_rewards cql_alpha cql_num_actions critic_bc_coeff critic_lr data_share double_q
    drop_quantiles dueling entropy_coeff env_config env_step_timeout_s epsilon evaluation_duration
    evaluation_duration_unit evaluation_env_config evaluation_explore evaluation_interval evaluation_num_envs
    evaluation_num_videos evaluation_policy_mapping_fn evaluation_policy_mapping_fn/* expectile exploration_noise
    frame_stack_axis
    gamma grad_clip grad_clip_by gym_env_vectorize_mode her_ratio her_reward_fn her_strategy ignore_env_runner_failures
    initial_alpha keep_best_checkpoint keep_checkpoints kl_coeff kl_target lambda_ league learner_class
    learner_timeout_s loggers loggers/* lr max_weight max_nonfinite_updates_in_a_row max_restarts_in_a_row
    metrics_num_episodes_for_smoothing minibatch_size model_config n_step noisy norm_rate normalize_q normalize_rewards
    num_atoms num_cpus_per_env_runner num_cpus_per_learner num_critics num_env_runners num_env_steps_per_iteration
    num_envs_per_env_runner num_epochs
    num_gpus_per_learner num_learners num_offline_updates num_quantiles num_steps_sampled_before_learning_starts
    num_updates_per_iteration on_checkpoint
    on_environment_created on_episode_end on_evaluate_end on_sample_end on_train_result policies policies_to_train
    policies_to_train/* policy_delay policy_mapping_fn policy_mapping_fn/* policy_overrides policy_value
    prioritized_replay prioritized_replay_alpha prioritized_replay_beta prioritized_replay_eps replay_capacity
    replay_in_checkpoints restart_failed_env_runners restart_failed_learners restart_failed_sub_environments
    rl_module_spec rnd_coeff rnd_dim rollout_fragment_length sample_ahead seed shared_parts sigma0 target_critics
    target_entropy target_kl target_network_update_freq target_noise target_noise_clip tau td_error_loss_fn
    torch_autocast torch_compile_learner torch_cuda_graphs torch_num_threads train_batch_size_per_learner
    training_intensity use_kl_loss v_max v_min vf_clip_param vf_huber_delta vf_loss_coeff vtrace_clip_pg_rho_threshold
    vtrace_clip_rho_threshold
"""
_NETS = """
    action_embeddings_key action_mask_key attention_bias_initializer attention_bias_initializer_kwargs attention_dim
    attention_head_dim attention_init_gru_gate_bias attention_kernel_initializer attention_kernel_initializer_kwargs
    attention_memory attention_num_heads attention_num_transformer_units attention_position_wise_mlp_dim
    autoregressive_actions autoregressive_context_dim autoregressive_hiddens conv_activation conv_bias_initializer
    conv_bias_initializer_kwargs conv_channels conv_dense_dim conv_filters conv_kernel_initializer
    conv_kernel_initializer_kwargs conv_padding conv_use_layernorm critic_only_keys custom_model_config
    discrete_embedding_dim dueling fcnet_activation fcnet_bias_initializer fcnet_bias_initializer_kwargs fcnet_blocks
    fcnet_dropout fcnet_hiddens fcnet_kernel_initializer fcnet_kernel_initializer_kwargs fcnet_norm fcnet_use_layernorm
    fields flatten_observations free_log_std functions fusionnet_activation fusionnet_hiddens head_fcnet_activation
    head_fcnet_bias_initializer head_fcnet_bias_initializer_kwargs head_fcnet_hiddens head_fcnet_kernel_initializer
    head_fcnet_kernel_initializer_kwargs head_fcnet_use_layernorm initial_alpha leaf_overrides
    leaf_overrides/*/conv_activation log_std_clip_param lstm_bias_initializer lstm_bias_initializer_kwargs
    lstm_cell_size lstm_kernel_initializer lstm_kernel_initializer_kwargs lstm_num_layers lstm_use_prev_action
    lstm_use_prev_reward matrix_observations max_seq_len noisy normalize_actions normalize_observations normalize_values
    num_atoms num_critics num_quantiles sigma0 use_attention use_gru use_lstm v_max v_min vf_share_layers
"""
_SPEC = {
    "allow": """__dataclass__ fields/module_class/__import__ fields/catalog_class/__import__
        fields/model_config/__dataclass__""",
    "refused": """fields/module_class fields/catalog_class fields/observation_space fields/action_space
        fields/model_config space/__space__ space/__float__ space/dtype""",
}


def _below(path: str, names: str) -> str:
    return " ".join(f"{path}/{name}" for name in names.split())


_NETS_AND_SPEC = {
    "allow": _below("spec", _SPEC["allow"]) + " model_config/custom_model model_config/custom_action_dist"
    " model_config/custom_action_dist/fcnet_activation",
    "refused": f"{_below('spec', _SPEC['refused'])} {_below('model_config', _NETS)} __tensor__",
}
TABLE: dict[str, dict[str, str]] = {
    "checkpoint": {
        "data": """config_module config/data config/run_dir modules/*/class modules/*/spec
            state/env_runners/*/episode/in_play/*
            state/env_runners/*/episode/policies/*/* state/env_runners/*/episode/rows/*/*
            state/metrics/steps_of/agent/*/* state/metrics/steps_of/module/*/* agents/* policy_mapping/*
            state/held_rollouts/rollouts/*/stats/agent_steps/*/*
            state/held_rollouts/rollouts/*/stats/module_steps/*/*""",
        "refused": f"""{_NETS_AND_SPEC["refused"]} {_below("config", _SETTINGS)} algorithm spec/fields/inference_only
            modules/*/parameters/* state/env_runners/*/generator/draws state/policies/added/*/of
            state/env_runners/*/noise/block_start/bit_generator state/env_runners/*/noise/*/block_start/bit_generator
            {_below("league", "every win_rate max_snapshots power self_play newest")}""",
        "allow": f"{_NETS_AND_SPEC['allow']} config/env config/env/__import__ config_class",
        "path": "config/env_config/*",
    },
    "policy": {
        "data": "spec/fields/inference_only",
        "refused": f"spec/space/* {_NETS_AND_SPEC['refused']} agents/* policy_mapping_fn/*",
        "allow": _NETS_AND_SPEC["allow"],
    },
    "manifest": {"data": "sha256 about/algorithm versions/*", "refused": "kind files/*/sha256"},
    "tensors": {"refused": "dtype"},
    "run.json": {
        "data": f"algorithm name config/env config/run_dir config/env_config/* model_config/fcnet_hiddens"
        f" model_config/fcnet_activation {_below('config', _SETTINGS)}",
    },
    "progress.jsonl": {"data": "*/metric"},
    "study.json": {
        "data": "config/run_dir",
        "refused": f"algorithm search/* sampler prune flags/* budget config/env config/env_config/*"
        f" model_config/fcnet_hiddens model_config/fcnet_activation {_below('config', _SETTINGS)}",
    },
    "trials": {"data": "*/metric"},
    "dataset": {"data": "env space/*", "refused": "space/__space__ space/__float__ space/dtype"},
}

# Fields that the same code reads have the same row: the pattern of their paths, and the row.
_SAME_ROW = (
    ("^.*/__tensor__$", "__tensor__"),
    ("^modules/[*]/spec/.*", "modules/*/spec"),
    ("^state/policies/added/[*]/spec/|^config/policies/[*]/", "spec/"),
    ("^(config|spec/fields)/model_config/(fields/)?(?=[a-z])", "model_config/"),
    ("^spec/fields/(observation|action)_space/.*(__space__|__float__|dtype|[*])$", r"spec/space/\2"),
    ("^(observation|action)_space/.*(__space__|__float__|dtype|[*])$", r"space/\2"),
    ("^(state/.*|[*]|rewards|offsets|terminated|truncated)/dtype$", "dtype"),
    ("^[*]/.*", "*/metric"),
    ("^versions/.*", "versions/*"),
)
# Names that differ between files.
_NAMES = {"default_policy", "a", "b", "c", "d", "cart_0", "cart_1", "image", "vector", "map_name"}

Place = tuple[Any, ...]


def pattern_of(place: Place) -> str:
    """Return the path of the field at ``place``, with ``*`` for each index, and for each name that differs."""
    return "/".join(
        "*" if isinstance(key, int) or key in _NAMES or re.search(r"^\d+$|[./]", key) else key for key in place
    )


def row_of(table: str, path: str) -> str:
    """Return the row of the field with the path ``path``, a result of :func:`pattern_of`."""
    row = path.removeprefix("modules/*/") if table == "policy" else path
    for pattern, same in _SAME_ROW:
        row = re.sub(pattern, same, row)
    return row


# --- what is planted, and seen ----------------------------------------------------------------------------------------

MARK = "zplantz"
"""Part of each text that is planted, and of nothing else."""

# What a text names. All of it exists, and the module of the function is loaded.
TEXTS = {
    "module": f"{MARK}.deep.module",
    "class": f"{MARK}.deep.module:Thing",
    "dotted class": f"{MARK}.deep.module.Thing",
    "function": f"{MARK}_loaded:call",
    "file": f"{MARK}/file",
    "path": "",  # the absolute path of the file
    "URL": f"http://127.0.0.1:9/{MARK}",
}
FORMS = (
    {"__import__": TEXTS["class"]},
    {"__import__": TEXTS["function"]},
    {"__dataclass__": TEXTS["class"], "fields": {}},
)
# Events that no file may cause.
_NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")


class Watch:
    """Notes audit events while a file is read: those with a planted text, programs, and connections to other hosts."""

    def __init__(self) -> None:
        self.is_on, self.seen, self.hub_port, self.folder = False, list[str](), 0, Path()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open" and isinstance(arguments[0], str) and Path(arguments[0]).parent == self.folder:
            return  # a file that the folder lists
        is_foreign = event == "socket.connect" and self.hub_port not in arguments[1]
        if is_foreign or event in _NEVER or MARK in event or any(MARK in text for text in _texts(arguments)):
            self.seen.append(f"{event} {arguments!r:.200}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, CodeType):
        yield value.co_filename
    elif isinstance(value, str | bytes | os.PathLike):
        yield os.fsdecode(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def plant(home: Path) -> None:
    """Write what the texts name into ``home``, and let modules be imported from there."""
    code = f"import sys\nclass Thing:\n    def __init__(self, *_, **__):\n        sys.audit('{MARK}.called')\n"
    function = f"import sys\ndef call(*_, **__):\n    sys.audit('{MARK}.called')\n"
    planted = {f"{MARK}/__init__.py": "", f"{MARK}/deep/__init__.py": "", f"{MARK}/deep/module.py": code}
    for name, text in {**planted, f"{MARK}/file": "", f"{MARK}_loaded.py": function}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    TEXTS["path"] = str(home / MARK / "file")
    sys.path.insert(0, str(home))
    sys.dont_write_bytecode = True
    importlib.import_module(f"{MARK}_loaded")


# --- files ------------------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "num_envs_per_env_runner": 1,
    "train_batch_size_per_learner": 4,
    "minibatch_size": 4,
    "num_epochs": 1,
    "seed": 1,
    "model_config": {"fcnet_hiddens": [4], "fcnet_activation": "tanh"},
}
LAKE = {"env": "FrozenLake-v1", "env_config": {"map_name": "4x4"}}


def make_folders() -> None:
    """Write a folder of each kind below the working directory, with texts in as many fields as possible."""
    logged: dict[str, Any] = {"run_dir": "runs/lake", "loggers": ["jsonl"], "checkpoint_interval": 1}
    with PPOConfig(**LAKE, **logged, **TINY).build() as algorithm:
        algorithm.learn(num_env_steps=8)
        algorithm.policy.save("lake")
        make_studies(PPOConfig(**LAKE, **logged, **TINY))
    for service in ("wandb", "mlflow"):
        Path("runs/lake", f"{service}_run_id").write_text(TEXTS["file"])
    by_agent = {"cart_0": "a", "cart_1": "b"}
    maps = {"policy_mapping_fn": by_agent, "evaluation_policy_mapping_fn": by_agent, "policies_to_train": ["a"]}
    specs = {"a": RLModuleSpec(), "b": RLModuleSpec()}
    team = PPOConfig(env=CartPoles, env_config={"num_agents": 2}, policies=specs, **maps, sample_ahead=1, **TINY)
    with team.build() as algorithm:
        algorithm.train()
        algorithm.add_policy("c", copy_of="a")
        algorithm.add_policy("d", spec=RLModuleSpec.of(algorithm.learner_group.module["a"]))
        algorithm.save("team")
        algorithm.policies.save("policies")
    image, vector = spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Box(-1, 1, (3,))
    nets = {"conv_filters": [[2, 4, 2]], "leaf_overrides": {"image": {"conv_activation": "relu"}}}
    spec = RLModuleSpec(
        module_class=PPOModule,
        catalog_class=PPOCatalog,
        observation_space=spaces.Dict({"image": image, "vector": vector}),
        action_space=spaces.Dict({"fcnet_activation": spaces.Box(-1, 1, (2,)), "vector": spaces.Discrete(2)}),
        model_config={**TINY["model_config"], **nets, "custom_action_dist": {"fcnet_activation": "Beta"}},
    )
    Policy(spec.build()).save("policy")
    choices = spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
    named = spaces.Dict({"image": image, "vector": spaces.Box(-np.inf, np.inf, (3,))})
    observations = {"image": np.zeros((2, 12, 12, 3), np.uint8), "vector": np.zeros((2, 3))}
    actions = (np.zeros(2, int), np.zeros((2, 2), int), np.zeros((2, 2), int))
    seen = {"observation_space": named, "action_space": choices, "env": LAKE["env"]}
    Dataset.from_arrays(observations, actions, [0, 1], terminals=[0, 1], timeouts=None, **seen).save("steps")


def fields_of(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each text in a JSON value, and of each setting, since many of them may be a text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if place and place[-1] in ("config", "fields", "model_config") and not isinstance(item, str):
                yield (*place, key)
            yield from fields_of(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from fields_of(item, (*place, index))
    elif isinstance(value, str):
        yield place


def dicts_of(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each dict in a JSON value that is not empty."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, list) else ())
    if isinstance(value, Mapping) and value:
        yield place
    for key, item in items:
        yield from dicts_of(item, (*place, key))


def at(content: Any, place: Place) -> Any:
    """Return the value at ``place``."""
    for key in place:
        content = content[key]
    return content


def contents_of(folder: str) -> dict[str, bytes]:
    """Return what the files of a folder hold, by path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


class Source:
    """A folder that we read, and one of its files, in which texts are put.

    Args:
        folder: The folder.
        file: The JSON file.
        table: The rows of its fields.
    """

    def __init__(self, folder: str, file: str, table: str) -> None:
        self.folder, self.file, self.table = folder, file, table
        self.files = contents_of(folder)
        data = self.files[file]
        self.content: Any
        if file.endswith(".safetensors"):
            self.content = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        else:
            self.content = [json.loads(line) for line in data.splitlines()] if "jsonl" in file else json.loads(data)
        self.text = json.dumps(self.content)

    def write(self, changes: Mapping[Place, Any]) -> None:
        """Write the folder with other values at some places of the file, and with digests that fit."""
        content = json.loads(self.text)
        for place, value in changes.items():
            at(content, place[:-1])[place[-1]] = value
        data, manifest = self._bytes_of(content), str(Path(self.file).with_name("manifest.json"))
        changed = {self.file: data}
        if manifest in self.files:
            body = content if self.file == manifest else json.loads(self.files[manifest])
            if self.file != manifest:
                body["files"][Path(self.file).name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            body = {key: value for key, value in body.items() if key != "sha256"}
            changed[manifest] = sealed_folder._sealed(body)
        wanted, found = {**self.files, **changed}, contents_of(self.folder)
        if found.keys() - wanted.keys():  # a training run has added to it
            shutil.rmtree(self.folder)
            found = {}
        for name, data in wanted.items():
            if found.get(name) != data:
                Path(self.folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(self.folder, name).write_bytes(data)

    def _bytes_of(self, content: Any) -> bytes:
        if "jsonl" in self.file:
            return "".join(f"{json.dumps(row)}\n" for row in content).encode()
        text = json.dumps(content).encode()
        if self.file.endswith(".safetensors"):
            data = self.files[self.file]
            return len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]
        return text


# --- entry points -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An entry point.

    Attributes:
        name: Its name.
        read: Reads a folder. Takes ``allow``, if an error of it may say what to allow.
        shows: Pattern of the paths of fields that are data to it, whatever the table says.
        reads: Pattern of the paths of fields that are not, although they are data to others.
        all_texts: Whether to try all texts in each field; False tries one, and all where a text may be acted on.
    """

    name: str
    read: Callable[..., object]
    shows: str = "$"
    reads: str = "$"
    all_texts: bool = False


def command(*words: str) -> None:
    """Run an ``rlmodule`` command. Raise RuntimeError with what it printed unless its exit code is 0."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    if code:
        raise RuntimeError(out.getvalue())


def load(path: str, **options: Any) -> None:
    Algorithm.from_checkpoint(path, **options).stop()


def from_hub(hub: HubDouble, **options: Any) -> None:
    """Put the files of the folder ``lake`` on the double of the Hub, with code and a model card, and load them."""
    files = {path.name: path.read_bytes() for path in Path("lake").iterdir()}
    card = "\n".join(f"{name}: {text}" for name in ("tags", "base_model", "auto_map") for text in TEXTS.values())
    extra = {"README.md": f"---\n{card}\n---\n", f"{MARK}.py": "", "config.json": f'{{"auto_map": "{MARK}"}}'}
    hub.commit("user/lake", files | {name: text.encode() for name, text in extra.items()})
    Policy.from_pretrained("user/lake", token=TOKEN, **options)


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What was found, as texts."""

    seen: list[str] = field(default_factory=list)
    fields_without_a_row: list[str] = field(default_factory=list)
    rows_without_a_field: list[str] = field(default_factory=list)
    against_the_table: list[str] = field(default_factory=list)
    not_seen_though_allowed: list[str] = field(default_factory=list)
    num_read: int = 0


class Trials:
    """Reads files with planted texts, and reports what happens."""

    def __init__(self) -> None:
        self.report, self._watch = Report(), Watch()
        self.tried = {table: set[str]() for table in TABLE}

    def watch_hub(self, hub: HubDouble) -> None:
        """Let the entry points connect to the double of the Hub."""
        self._watch.hub_port = hub.server_port

    def read(self, what: str, read: Callable[[], object]) -> str:
        """Read a file. Return the text of the error that it ends with, or an empty text."""
        error, seen = self._observed(read)
        self.report.seen += [f"{what}: {event}" for event in seen]
        return error

    def _observed(self, read: Callable[[], object]) -> tuple[str, list[str]]:
        """Return the error that ``read()`` ends with, and the audit events."""
        self.report.num_read += 1
        self._watch.seen, self._watch.is_on = [], True
        try:
            read()
            error = ""
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        self._watch.is_on = False
        return error, self._watch.seen

    def row(self, table: str, row: str) -> str:
        """Return what becomes of a text in a field with this row; an empty text if the table lacks it."""
        self.tried[table].add(row)
        kind = next((kind for kind, rows in TABLE[table].items() if row in rows.split()), "")
        if not kind:
            self.report.fields_without_a_row += [f"{table}: {row}"]
        return kind

    def run(self, source: Source, *entries: Entry, also: Sequence[Place] = ()) -> None:
        """Put texts into the fields of a file, and read it at all ``entries``. What the first does has to be what the
        table says.

        All texts that are data are in the file together, and it has to load. Any other text is in it alone, because the
        file is refused before anything else in it is used.
        """
        self._watch.folder = Path(source.folder, source.file).parent
        places: dict[str, list[Place]] = {}
        for place in dict.fromkeys([*fields_of(source.content), *also]):
            places.setdefault(pattern_of(place), []).append(place)
        kinds = {path: self.row(source.table, row_of(source.table, path)) for path in places}
        texts = [*TEXTS.values()]
        for number, entry in enumerate(entries):
            is_data = {path: self._is_data(entry, path, kind) for path, kind in kinds.items()}
            data = [place for path, found in places.items() for place in found if is_data[path]]
            alone = [(path, found[0]) for path, found in places.items() if not is_data[path]]
            outer = {place[:length] for place in data for length in range(len(place))}
            for turn in range(len(texts)) if entry.all_texts else (number,):
                text_of = {place: texts[(turn + index) % len(texts)] for index, place in enumerate(data)}
                source.write({place: text for place, text in text_of.items() if place not in outer})
                if error := self.read(f"{entry.name} of {source.file}", entry.read):
                    self.report.against_the_table.append(f"{entry.name} of {source.file} with data: {error:.300}")
            for index, (path, place) in enumerate(alone):
                is_acted_on = entry.all_texts or kinds[path] in ("allow", "path")
                some = TEXTS if is_acted_on else dict([[*TEXTS.items()][(number + index) % len(texts)]])
                self._alone(source, entry, place, some, kinds[path] if entry is entries[0] else "")
        dicts = {row_of(source.table, pattern_of((*place, ""))): place for place in dicts_of(source.content)}
        for index, row in enumerate(dicts.keys() - self.tried[source.table]):
            place = dicts[row]
            source.write({(*place, texts[index % len(texts)]): next(iter(at(source.content, place).values()))})
            self.read(f"{entries[0].name} of a key in {source.file}, {place}", entries[0].read)
        self.tried[source.table].update(dicts)
        source.write({})

    def _is_data(self, entry: Entry, path: str, kind: str) -> bool:
        if re.match(entry.reads, path) or path.endswith("__tensor__"):
            return False
        return kind == "data" or bool(re.match(entry.shows, path))

    def _alone(self, source: Source, entry: Entry, place: Place, texts: Mapping[str, str], kind: str) -> None:
        """Put each of ``texts`` into one field, and read it. ``kind`` says what has to become of them."""
        where, errors = f"{entry.name} of {source.file}, {'/'.join(map(str, place))}", dict[str, str]()
        for name, text in texts.items():
            source.write({place: text})
            errors[name] = self.read(f"{where} = {text}", entry.read)
        if not kind:
            return
        for form in FORMS if entry.all_texts else ():
            source.write({place: form})
            self.read(f"{where} = {form}", entry.read)
        asks = {name for name, error in errors.items() if "allow=['" in error}
        must_ask = {"allow": {"class"}, "path": {"file", "path", "URL"}}.get(kind, set()) & errors.keys()
        if not all(errors.values()) or must_ask - asks:
            self.report.against_the_table.append(f"{where}: expected {kind}, got {errors}")
        if kind == "allow":
            source.write({place: TEXTS["class"]})
            if not self._observed(lambda: entry.read(allow=[MARK]))[1]:
                self.report.not_seen_though_allowed.append(where)
            for name in [name for name in sys.modules if name.partition(".")[0] == MARK]:
                del sys.modules[name]  # so that the next import runs it

    def settings(self) -> None:
        """Put texts into the settings that the files here do not have: of other algorithms, and of leagues."""
        for algorithm in ALGORITHMS:
            config = config_class(algorithm)
            for name in settings_of(config):
                row = f"config/{name}"
                if row not in self.tried["checkpoint"] and self.row("checkpoint", row) not in ("", "data"):
                    self._setting(config, {name: None}, name)
        for name in settings_of(League):
            self.row("checkpoint", f"league/{name}")
            self._setting(PPOConfig, {"league": {name: None}}, name)

    def _setting(self, config: type[Any], data: dict[str, Any], name: str) -> None:
        for value in (*TEXTS.values(), *FORMS):
            filled = {key: {name: value} if isinstance(inner, dict) else value for key, inner in data.items()}
            if not self.read(f"{data} = {value}", lambda filled=filled: config.from_dict(filled, allow=[]).validate()):
                self.report.against_the_table.append(f"{data}: expected refused, got {value!r} accepted")


def read_runs(trials: Trials) -> None:
    """Read a run folder: its checkpoint, and its logs."""
    config, spec = "config|algorithm|state|modules/[*]/(class|parameters)", "modules/[*]/spec"
    from_run = Entry("from_checkpoint", lambda **allow: load("runs/lake/checkpoint", **allow), all_texts=True)
    inspect = Entry("inspect", lambda: command("inspect", "runs/lake"), f"{config}|{spec}")
    train = Entry("train --load", lambda: command("train", "--load", "runs/lake", "--num-env-steps", "4"))
    words = ("train", "ppo", "FrozenLake-v1", "--run-dir", "runs/lake", "--resume", "auto", "--num-env-steps", "12")
    others = (
        Entry("Policy.load", lambda: Policy.load("runs/lake"), config, spec),
        Entry("export", lambda: command("export", "runs/lake", "exported"), config, spec),
        Entry("evaluate", lambda: command("evaluate", "runs/lake", "--episodes", "1")),
        inspect,
        train,
        Entry("train --resume auto", lambda: command(*words)),
    )
    class_of_others = [("config_class",)]
    trials.run(Source("runs/lake", "checkpoint/checkpoint.json", "checkpoint"), from_run, *others, also=class_of_others)
    trials.run(Source("runs/lake", "checkpoint/manifest.json", "manifest"), from_run, train, inspect)
    trials.run(Source("runs/lake", "checkpoint/tensors.safetensors", "tensors"), from_run)
    plot = Entry("plot", lambda: command("plot", "runs/lake", "--out", "curves.png"))
    runs = Entry("inspect", lambda: command("inspect", "runs"))

    def compare_with_copy() -> Any:
        ignored = shutil.ignore_patterns("checkpoint*")
        shutil.copytree("runs/lake", "copied", dirs_exist_ok=True, ignore=ignored)
        return command("compare", "runs/lake", "copied")

    compare = Entry("compare", compare_with_copy)
    again, number = ("train", "--config", "runs/lake/run.json", "--num-env-steps", "4", "--run-dir"), itertools.count()
    trials.run(
        Source("runs/lake", "run.json", "run.json"),
        runs,
        plot,
        compare,
        Entry(
            "train --config", lambda: command(*again, f"again/{next(number)}"), reads="algorithm|config|model_config"
        ),
    )
    rows = Source("runs/lake", "progress.jsonl", "progress.jsonl")
    trials.run(
        rows, runs, plot, compare, train, also=[(0, name) for name in sorted(rows.content[0].keys() - {STEPS, SECONDS})]
    )


STUDY = parse_search(["model_config.fcnet_activation=relu|tanh"])
ABOUT: dict[str, Any] = {"search": ["model_config.fcnet_activation=relu|tanh"], "sampler": "tpe", "prune": "median"}
POINT = {"model_config.fcnet_activation": "tanh"}
ABOUT |= {"algorithm": "PPO", "budget": "num_env_steps", "flags": ["--num-env-steps=8"]}


def make_studies(config: PPOConfig) -> None:
    """Write the folders of a study and of a population, with a trial and a generation that have ended."""
    about = ABOUT | {"config": config.to_dict()}
    with closing(Study(Path("study"), about, STUDY)) as study:
        trial = study.ask({"model_config.fcnet_activation": 0.5})
        trial.results[1] = SeedResult([1.0], 2.0, 8, "digest")
        study.tell(trial, "finished", "error")
        study.tell(study.ask({"model_config.fcnet_activation": 0.5}), "failed", "error")
    member = Member(0, trial.shares, trial.point, 1.0, "digest")
    with closing(Population(Path("population"), about, STUDY)) as population:
        population.append({"members": [asdict(member)] * 4})


def read_studies(trials: Trials) -> None:
    """Read the folders of studies and populations. What goes on with them has the values of the search."""
    about = json.loads(Path("study/study.json").read_text())

    def read_study() -> None:
        with closing(Study(Path("study"), about, STUDY)) as study:
            for shown in (study_table(study), winning_command(study)):
                assert shown
            importance(study.trials, study.search)
            assert all(trial.point == POINT for trial in study.trials)

    def read_population() -> None:
        with closing(Population(Path("population"), about, STUDY)) as population:
            assert population_table(population)
            members = population.next_members(4, np.random.default_rng(0))
            assert [member.point for member in members].count(POINT) >= 3

    of_study = Entry("Study", read_study)
    trials.run(Source("study", "study.json", "study.json"), of_study)
    trials.run(Source("study", "trials.jsonl", "trials"), of_study)
    trials.run(Source("population", "generations.jsonl", "trials"), Entry("Population", read_population))


def read_teams(trials: Trials) -> None:
    """Read a checkpoint of several agents."""
    config, spec = "config|algorithm|state|modules/[*]/(class|parameters)", "modules/[*]/spec"
    trials.run(
        Source("team", "checkpoint.json", "checkpoint"),
        Entry("from_checkpoint", lambda **allow: load("team", **allow)),
        Entry("MultiAgentPolicy.load", lambda: MultiAgentPolicy.load("team"), config, f"{spec}|agents|policy_mapping"),
        Entry("inspect", lambda: command("inspect", "team"), f"{config}|{spec}"),
    )


def read_policies(trials: Trials) -> None:
    """Read the folders of policies, also from the Hub."""
    nets = [config_class(name)().model_config_class for name in ALGORITHMS]
    settings = [("spec", "fields", "model_config", "fields", name) for net in nets for name in settings_of(net)]
    of_one = Entry("Policy.load", lambda **allow: Policy.load("policy", **allow), all_texts=True)
    trials.run(Source("policy", "policy.json", "policy"), of_one)
    trials.run(Source("policy", "policy.json", "policy"), replace(of_one, all_texts=False), also=settings)
    trials.run(Source("policy", "manifest.json", "manifest"), of_one)
    trials.run(
        Source("policies", "policy.json", "policy"),
        Entry("MultiAgentPolicy.load", lambda **allow: MultiAgentPolicy.load("policies", **allow)),
    )
    words = ("--env", "FrozenLake-v1", "--env-config", json.dumps(LAKE["env_config"]), "--episodes", "1")
    with hub_double() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        constants.HUGGINGFACE_CO_URL_TEMPLATE, constants.ENDPOINT = template, hub.url
        constants.HF_HUB_CACHE = str(Path("cache").resolve())
        trials.watch_hub(hub)
        trials.run(
            Source("lake", "policy.json", "policy"),
            Entry("from_pretrained", lambda **allow: from_hub(hub, **allow)),
            Entry("evaluate", lambda: command("evaluate", "lake", *words)),
            Entry("export", lambda: command("export", "lake", "exported")),
        )


SAVE_FIGURE = Figure.savefig


def save_unless_of_a_training_run(figure: Figure, out: Path, **options: Any) -> None:
    """Render the pictures of ``rlmodule plot``. Leave those of training empty, which show the same texts, for time."""
    if Path(out).name == "learning_curve.png":
        Path(out).write_bytes(b"")
    else:
        SAVE_FIGURE(figure, out, **options)


def read_datasets(trials: Trials) -> None:
    """Read the folder of a data set."""
    of_steps = Entry("Dataset.load", lambda: Dataset.load("steps").describe(), all_texts=True)
    for file, table in (("data.json", "dataset"), ("manifest.json", "manifest"), ("data.safetensors", "tensors")):
        trials.run(Source("steps", file, table), of_steps)


def main_of_tests() -> None:
    """Read all kinds of files, and print the report."""
    os.fsync = lambda fd: None  # the folders need not last
    Figure.savefig = save_unless_of_a_training_run
    logging.disable()
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        os.chdir(home)
        plant(home)
        make_folders()
        before = {str(path.relative_to(home)) for path in home.rglob("*") if MARK in str(path)}
        trials = Trials()
        read_runs(trials)
        read_teams(trials)
        read_policies(trials)
        read_datasets(trials)
        read_studies(trials)
        trials.settings()
        after = {str(path.relative_to(home)) for path in home.rglob("*") if MARK in str(path)}
        trials.report.seen += [f"made: {path}" for path in after ^ before]
        rows = {row for kinds in TABLE.values() for names in kinds.values() for row in names.split()}
        trials.report.rows_without_a_field = sorted(rows.difference(*trials.tried.values()))
        print(json.dumps(asdict(trials.report)))
        os.chdir("/")


if __name__ == "__main__":
    main_of_tests()
