"""Programs in MLflow's model registry: a real sqlite database, loaded by processes that have nothing of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch import nn

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.cli.run_program import run_program
from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking import registry, signature
from lowerdeck.tracking.store import find_or_create_run, opened
from tests.conftest import Lowered
from tests.handmade_build import write_build
from tests.marks import quick_first
from tests.runtime.lowering import lower

TARGETS = ("ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu")
TRACKING = TrackingConfig(name="local")
KEY = "b" * 64
LOADING = """
import json, os, sys

class NotInstalled:
    blocked = set(os.environ["NOT_INSTALLED"].split())

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.blocked:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotInstalled)
import mlflow, numpy as np
given = np.load("input.npy")
given.setflags(write=False)
loaded, answers = {}, {}
for target in sys.argv[1:]:
    loaded[target] = mlflow.pyfunc.load_model(f"models:/small {target}@candidate")
    answers[target] = loaded[target].predict(given)
    (name,) = answers[target]
    np.save(f"{target}.npy", answers[target][name])
    several = loaded[target].predict(np.concatenate([given, -given] * 5))[name]
    np.save(f"{target}_several.npy", several)
import lowerdeck
runs = {name: model.metadata.run_id for name, model in loaded.items()}
print(json.dumps({"lowerdeck": lowerdeck.__file__, "runs": runs}))
"""


@dataclass(frozen=True)
class Loaded:
    """Programs as another process loaded them."""

    folder: Path
    runs: dict[str, str]
    """The run of each target's program."""
    messages: dict[str, Any]
    """What that process printed."""


def comes_with(requirements: set[str]) -> set[str]:
    """Distributions that installing `requirements` brings, all names in one spelling."""
    found: set[str] = set()
    open_ends = [Requirement(text) for text in requirements]
    while open_ends:
        name = canonicalize_name(open_ends.pop().name)
        if name not in found:
            found.add(name)
            with suppress(metadata.PackageNotFoundError):  # needed on other systems
                needs = map(Requirement, metadata.requires(name) or ())
                open_ends += [need for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def not_among(distributions: set[str]) -> set[str]:
    """Installed modules of other distributions than these, and than the project's own."""
    installed = metadata.packages_distributions()
    return {
        module
        for module, owners in installed.items()
        if module != "lowerdeck" and not {canonicalize_name(owner) for owner in owners} & distributions
    }


@pytest.fixture(scope="module")
def loaded(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The small network for each target, registered, loaded and executed."""
    folder = tmp_path_factory.mktemp("registry")
    runs, required = {}, set()
    for target in TARGETS:
        (folder / "build").unlink(missing_ok=True)
        (folder / "build").symlink_to(lowered(target).folder / "build")
        with chdir(folder):
            required |= set(registry.requirements(read_json(paths.MANIFEST)))
            with opened(TRACKING) as store:
                runs[target] = find_or_create_run(store, TRACKING, target, target, {})[0].info.run_id
            registered = registry.register(TRACKING, f"small {target}", runs[target], KEY, "candidate")
        assert registered == registry.Registered(version="1", new=True)
    (folder / "build").unlink()
    np.save(folder / "input.npy", lowered(TARGETS[0]).samples[3][0].numpy())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    blocked = not_among(comes_with(required))
    assert {"dvc", "hydra", "omegaconf", "sklearn"} & blocked
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOADING, *TARGETS],
        cwd=folder,
        env=environment
        | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow/mlflow.db", "NOT_INSTALLED": " ".join(sorted(blocked))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Loaded(folder, runs, json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_a_loaded_program_answers_as_lowerdeck_run_does(
    target: str, loaded: Loaded, lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    run_program(lowered(target).folder / paths.PROGRAM, [loaded.folder / "input.npy"], tmp_path)
    expected = np.load(tmp_path / "output_0.npy")
    assert expected.std() > 0
    np.testing.assert_array_equal(np.load(loaded.folder / f"{target}.npy"), expected, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_several_samples_at_once_are_answered_as_one_by_one(target: str, loaded: Loaded) -> None:
    several, one = (np.load(loaded.folder / f"{target}{which}.npy") for which in ("_several", ""))
    assert several.shape == (10, *one.shape[1:])
    for row in range(0, 10, 2):
        np.testing.assert_array_equal(several[row : row + 1], one, strict=True)
    assert not np.array_equal(several[:1], several[1:2])


@pytest.mark.slow
def test_it_is_executed_by_the_code_that_it_was_registered_with(loaded: Loaded) -> None:
    assert Path(loaded.messages["lowerdeck"]).is_relative_to(loaded.folder / "mlflow" / "artifacts")
    assert loaded.messages["runs"] == loaded.runs


@pytest.mark.slow
def test_a_version_refers_to_its_run(loaded: Loaded) -> None:
    client = MlflowClient(f"sqlite:///{loaded.folder}/mlflow/mlflow.db")
    for target, run_id in loaded.runs.items():
        version = client.get_model_version_by_alias(f"small {target}", "candidate")
        assert version.run_id == run_id
        assert version.source is not None
        outputs = client.get_run(run_id).outputs
        assert outputs is not None
        (output,) = outputs.model_outputs
        model = client.get_logged_model(output.model_id)
        assert version.source == model.artifact_location
        assert {"name": f"small {target}", "version": "1"} in json.loads(model.tags["mlflow.modelVersions"])
        assert version.tags["lowerdeck.build_key"] == KEY
        assert ("runs on the host only" in (version.description or "")) == target.startswith("neutron")


def test_requirements_name_what_executes_each_delegate(lowered: Callable[[str], Lowered]) -> None:
    """That they suffice is shown by loading: the process can import nothing else."""
    needed = {}
    for target in TARGETS:
        with chdir(lowered(target).folder):
            texts = registry.requirements(read_json(paths.MANIFEST))
        assert all(metadata.version(name).startswith(version) for name, version in (text.split("==") for text in texts))
        needed[target] = {text.partition("==")[0] for text in texts}
    common = {"executorch", "mlflow", "numpy", "torch"}
    assert needed["xnnpack_cpu"] == common
    assert needed["ethos_u55_128"] == common | {"tosa-tools"}
    assert needed["neutron_imxrt700"] == common | {"ai-edge-litert", "flatbuffers"}


@pytest.mark.slow
def test_nothing_is_pickled(loaded: Loaded) -> None:
    files = [path.name for path in (loaded.folder / "mlflow" / "artifacts").rglob("*") if path.is_file()]
    assert "program.pte" in files
    assert [name for name in files if name.endswith((".pkl", ".pickle"))] == []


@pytest.mark.slow
def test_the_same_build_is_registered_once(loaded: Loaded, lowered: Callable[[str], Lowered]) -> None:
    target = "xnnpack_cpu"
    client = MlflowClient(f"sqlite:///{loaded.folder}/mlflow/mlflow.db")
    (loaded.folder / "build").symlink_to(lowered(target).folder / "build")
    with chdir(loaded.folder):
        again = registry.register(TRACKING, "twice", loaded.runs[target], KEY)
        same = registry.register(TRACKING, "twice", loaded.runs[target], KEY, "candidate")
        other = registry.register(TRACKING, "twice", loaded.runs[target], "c" * 64, "candidate")
    (loaded.folder / "build").unlink()
    assert (again.new, same.new, other.new) == (True, False, True)
    assert (again.version, same.version, other.version) == ("1", "1", "2")
    assert str(client.get_model_version_by_alias("twice", "candidate").version) == "2"
    assert len(client.search_model_versions("name = 'twice'")) == 2


@pytest.mark.parametrize("name", ["it's", 'an "inch"', "a%b_"])
def test_a_name_with_quotes_is_registered_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_build()
    with opened(TRACKING) as store:
        run, _ = find_or_create_run(store, TRACKING, KEY, "x", {})
    for new in (True, False):
        assert registry.register(config.tracking, name, run.info.run_id, KEY).new == new


def test_another_program_of_the_same_build_key_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an edit of code that the key does not cover, the alias was given to the version with the old `.pte`."""
    monkeypatch.chdir(tmp_path)
    found = []
    for program in (b"one", b"two", b"two", b"one"):
        config = write_build(program=program)
        with opened(TRACKING) as store:
            run, _ = find_or_create_run(store, TRACKING, KEY, "x", {})
        registered = registry.register(config.tracking, "edited", run.info.run_id, KEY, "candidate")
        with opened(TRACKING) as store:
            version = store.client.get_model_version_by_alias("edited", "candidate")
        assert version.tags["lowerdeck.program_sha256"] == read_json(paths.MANIFEST)["program"]["sha256"]
        found.append((registered.version, registered.new))
    assert found == [("1", True), ("2", True), ("2", False), ("1", False)]


def test_the_input_example_is_the_test_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.models import Model

    monkeypatch.chdir(tmp_path)
    write_build()
    manifest = read_json(paths.MANIFEST)
    registry.save(tmp_path / "without", "0" * 32, "m-0", manifest)
    assert Model.load(str(tmp_path / "without")).saved_input_example_info is None
    sample = np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8)
    paths.FIRMWARE.mkdir(exist_ok=True)
    np.save(paths.FIRMWARE / "input_0.npy", sample)
    other = {**manifest, "program": {**manifest["program"], "sha256": "0" * 64}}
    (paths.FIRMWARE / "manifest.json").write_text(json.dumps(other))
    registry.save(tmp_path / "other", "0" * 32, "m-0", manifest)
    assert Model.load(str(tmp_path / "other")).saved_input_example_info is None  # the bundle is of another build
    (paths.FIRMWARE / "manifest.json").write_text(json.dumps(manifest))
    registry.save(tmp_path / "with", "0" * 32, "m-0", manifest)
    saved = Model.load(str(tmp_path / "with"))
    example: Any = saved.load_input_example(str(tmp_path / "with"))
    np.testing.assert_array_equal(example, sample)
    assert saved.signature is not None
    assert saved.signature.inputs.inputs[0].shape == (-1, 3, 8, 8)


class Level(nn.Module):
    """A decaying sum of its inputs: float32 [1 x 4] -> [1 x 4]."""

    level: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("level", torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level.copy_(0.5 * self.level + x)
        level: torch.Tensor = self.layer(self.level)
        return level


def test_several_samples_are_consecutive_calls_of_a_program_with_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each started from the initial state, and left it to the calls after them."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    values = torch.randn(10, 4)
    built = lower(Level(), [(row[None],) for row in values], "xnnpack", tmp_path / "built")
    with chdir(built.folder):
        registry.save(tmp_path / "saved", "0" * 32, "m-0", read_json(paths.MANIFEST))
    at_once, one_by_one = (mlflow.pyfunc.load_model(str(tmp_path / "saved")) for _ in range(2))
    (expected,) = zip(*(one_by_one.predict(row[None].numpy()).values() for row in values), strict=True)
    (found,) = at_once.predict(values.numpy()).values()
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert len({float(row[0, 0]) for row in expected}) > 5
    following = [loaded.predict(values[:1].numpy()) for loaded in (at_once, one_by_one)]
    np.testing.assert_array_equal(*(next(iter(answer.values())) for answer in following))


def described(name: str, dtype: str = "float32", *, is_dynamic: bool = False) -> dict[str, object]:
    return {"name": name, "dtype": dtype, "shape": [1, 4], "is_dynamic": is_dynamic}


def test_the_signature_has_element_types_and_shapes() -> None:
    manifest = {
        "inputs": [described("x", "int8"), described("y", is_dynamic=True)],
        "outputs": [described("same"), described("same", "int64")],
    }
    made = signature.signature(manifest)
    assert [(spec.name, str(spec.type), spec.shape) for spec in made.inputs.inputs] == [
        ("x", "int8", (1, 4)),
        ("y", "float32", (-1, -1)),
    ]
    assert [(spec.name, str(spec.type)) for spec in made.outputs.inputs] == [
        ("output_0", "float32"),
        ("output_1", "int64"),
    ]


def test_several_samples_fit_where_every_tensor_is_of_one() -> None:
    made = signature.signature({"inputs": [described("x", "int8")], "outputs": [described("y")]})
    assert [spec.shape for spec in (*made.inputs.inputs, *made.outputs.inputs)] == [(-1, 4), (-1, 4)]


def test_an_element_type_that_numpy_lacks_is_refused() -> None:
    with pytest.raises(LowerdeckError, match="the input x of the program is bfloat16"):
        signature.signature({"inputs": [described("x", "bfloat16")], "outputs": [described("y")]})


def test_a_program_without_inputs_is_refused() -> None:
    with pytest.raises(LowerdeckError, match="the program has no inputs"):
        signature.signature({"inputs": [], "outputs": [described("y")]})
