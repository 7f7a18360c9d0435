"""lowerdeck.config.compose: what composes, and that everything else is refused with a message that can be acted on."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from lowerdeck import backends
from lowerdeck.config.choices import Chosen
from lowerdeck.config.compose import compose, render
from lowerdeck.config.flavor import check_installed
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import ConfigurationError
from tests.conftest import TARGETS
from tests.marks import quick_first
from tests.project import CONFIG, REPOSITORY, SELECTION, Project

Compose = Callable[..., Config]
CHOSEN: Chosen = {}
"""Compositions of the project's own conf/, which no test here changes."""


@pytest.fixture
def conf(project: Project, tmp_path: Path) -> Path:
    """A copy of conf/ to damage."""
    return Path(shutil.copytree(project.root / "conf", tmp_path / "conf"))


@pytest.fixture
def composed(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """(text of params.yaml, or its values in place of the defaults) -> configuration."""
    monkeypatch.chdir(project.root)

    def get(text: str | None = None, conf: Path = Path("conf"), **values: Any) -> Config:
        params = tmp_path / "params.yaml"
        if text is None:
            YAML(typ="safe", pure=True).dump(SELECTION | values, params)
        else:
            params.write_text(text)
        return compose(params, conf, CHOSEN if conf == Path("conf") else None)

    return get


@pytest.fixture
def refusal(composed: Compose) -> Callable[..., str]:
    """The message with which a configuration is refused."""

    def get(*arguments: Any, **values: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            composed(*arguments, **values)
        return str(caught.value)

    return get


def override(dotted: str, value: Any) -> dict[str, Any]:
    """`a.b.c`, value -> {"overrides": {"a": {"b": {"c": value}}}}."""
    values: Any = value
    for part in reversed(dotted.split(".")):
        values = {part: values}
    return {"overrides": values}


def test_the_default_composes(composed: Compose) -> None:
    config = composed()
    assert (config.model.name, config.dataset.name, config.target.name) == ("resnet8", "digits", "neutron_imxrt700")
    assert config.flavor.name == "reference"
    for fingerprint in (config.model.fingerprint, config.dataset.fingerprint):
        assert fingerprint is not None
        assert len(fingerprint) == 64


def test_a_group_that_params_leaves_out_has_the_default_of_conf(composed: Compose) -> None:
    defaults = {
        group: option
        for entry in yaml.safe_load(Path("conf/config.yaml").read_text())["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
    }
    assert composed("{}") == composed(**defaults)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_its_flavor_and_all_its_options(composed: Compose, target: str) -> None:
    config = composed(target=target)
    stored = yaml.safe_load(Path(f"conf/target/{target}.yaml").read_text())
    assert config.target.name == target
    assert config.flavor.name == stored["default_flavor"]
    assert config.flavor.backend == config.target.backend == stored["backend"]
    assert stored["options"].items() <= config.target.options.items()
    # Completed with the defaults of the backend, so that the file says all that a build depends on.
    assert composed(target=target, overrides={"target": {"options": config.target.options}}) == config


def test_defaults_of_options_are_written_out(composed: Compose) -> None:
    assert composed().target.options == {
        "operators_not_to_delegate": [],
        "modules_not_to_delegate": [],
        "nodes_not_to_delegate": [],
        "use_neutron_for_format_conversion": True,
        "allow_no_op_partitions": False,
        "preserve_ops": ["aten::prelu", "aten::pad", "aten::hardswish"],
        "check_op_support": None,
        "quantized_inputs": False,
        "quantized_outputs": False,
        "fetch_constants_to_sram": False,
        "dump_kernel_selection_code": False,
        "use_profiling": False,
        "extra_flags": {},
    }


def test_a_flavor_in_another_environment_keeps_its_path_as_it_was_written(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interpreter = tmp_path / "home" / "envs" / "sdk" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for written, opened in (
        ("~/envs/sdk/bin/python", "~/envs"),
        ("~/envs/sdk/bin/python", str(tmp_path / "home")),
        (str(interpreter), str(interpreter)),
    ):
        overrides = {"flavor": {"options": {"python": written}, "version": "3.1.3"}}
        flavor = composed(flavor="eiq_neutron_sdk_venv", overrides=overrides, plugins=[opened]).flavor
        assert flavor.options == {"module": None, "python": written, "sys_path": []}
        assert flavor.version == "3.1.3"


@pytest.mark.parametrize("plugins", [[], ["torch"], ["/usr/lib"], ["~/envs"]])
def test_programs_and_code_of_a_flavor_have_to_be_opened_in_params(composed: Compose, plugins: list[str]) -> None:
    options = {"python": sys.executable, "sys_path": [str(REPOSITORY / "tests")], "module": "os.path"}
    with pytest.raises(ConfigurationError) as caught:
        composed(flavor="eiq_neutron_sdk_venv", overrides={"flavor": {"options": options}}, plugins=plugins)
    for key, opened in (("python", sys.executable), ("sys_path", options["sys_path"][0]), ("module", "os.path")):
        assert f"flavor.options.{key}: " in str(caught.value)
        assert f"let params.yaml say `plugins: [{', '.join([*plugins, str(opened)])}]`" in str(caught.value)


@pytest.mark.parametrize("text", ["${oc.env:SECRET}", "${oc.${build.part}:SECRET}", "a ${oc.env:SECRET,default} b"])
def test_environment_variables_do_not_reach_the_records(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    with pytest.raises(ConfigurationError) as caught:
        composed(overrides={"model": {"name": text}, "build": {"part": "env"}})
    assert "hunter2" not in str(caught.value)
    assert "model.name: " in str(caught.value)


def test_what_is_opened_may_be_run(composed: Compose) -> None:
    options = {"python": sys.executable, "sys_path": [str(REPOSITORY / "tests")], "module": "own_converter.inner"}
    plugins = [str(Path(sys.executable).parent), str(REPOSITORY), "own_converter"]
    flavor = composed(flavor="eiq_neutron_sdk_venv", overrides={"flavor": {"options": options}}, plugins=plugins).flavor
    assert flavor.options == options


@pytest.mark.parametrize("path", ["../sdk/bin/python", "bin/python"])
def test_a_path_that_is_opened_is_absolute(composed: Compose, path: str) -> None:
    with pytest.raises(ConfigurationError, match="plugins: a path in it must be absolute or begin with ~"):
        composed(plugins=[path])


def test_a_flavor_that_a_user_adds_is_found_by_its_file(composed: Compose, conf: Path) -> None:
    (conf / "flavor" / "mine.yaml").write_text(
        "name: mine\nbackend: neutron\nconverter: neutron_converter\noptions: {module: neutron_converter_SDK_26_03}\n"
    )
    assert composed(conf=conf, flavor="mine").flavor.options["module"] == "neutron_converter_SDK_26_03"


def flavor(option: str, **options: Any) -> dict[str, Any]:
    """Choice of a conf/flavor option with other options."""
    return {"flavor": option, "overrides": {"flavor": {"options": options}}}


FLAVORS = {
    "no such interpreter": (
        flavor("eiq_neutron_sdk_venv", python="~/no/such/python"),
        ("flavor.options.python: there is no file /", "/no/such/python; name the interpreter", '"~/no/such/python"'),
    ),
    "a folder for an interpreter": (
        flavor("eiq_neutron_sdk_venv", python="/usr"),
        ("flavor.options.python: /usr is a folder; name the interpreter in it, /usr/bin/python",),
    ),
    "a relative interpreter": (
        flavor("eiq_neutron_sdk_venv", python="conf/../bin/python"),
        ("flavor.options.python: conf/../bin/python is relative; write the interpreter's path from / or ~",),
    ),
    "a file that is no program": (
        flavor("eiq_neutron_sdk", python=str(REPOSITORY / "params.yaml")),
        ("flavor.options.python: /", "params.yaml is not executable for you"),
    ),
    "an interpreter to be given": (
        {"flavor": "eiq_neutron_sdk_venv"},
        ("flavor.options.python: must be set by you",),
    ),
    "no such folder": (
        flavor("eiq_neutron_sdk", sys_path=["/no/such/folder"]),
        ("flavor.options.sys_path: there is no folder /no/such/folder", '["/no/such/folder"]'),
    ),
    "a relative folder": (
        flavor("eiq_neutron_sdk", sys_path=["no/such/folder"]),
        ("flavor.options.sys_path: no/such/folder is relative; write it from / or ~",),
    ),
    "an older module without its name": (
        {"flavor": "eiq_neutron_sdk", "overrides": {"flavor": {"converter": "neutron_converter"}}},
        ("flavor.options.module: name the package of the release, e.g. neutron_converter_SDK_25_09",),
    ),
    "no name of a module": (
        flavor("neutron_converter_SDK_25_09", module="neutron-converter"),
        ("flavor.options.module: is not a module name", '"neutron-converter"'),
    ),
    "an interpreter for the reference flavor": (
        flavor("reference", python="/usr/bin/python3"),
        (
            "flavor.options.python: cannot be set: the converter `reference` is part of",
            '"/usr/bin/python3"',
        ),
    ),
    "an interpreter for Vela": (
        {"target": "ethos_u55_128"} | flavor("vela", python="/usr/bin/python3"),
        ("flavor.options.python: starts this program", "plugins: [/usr/bin/python3]", '"/usr/bin/python3"'),
    ),
    "a module for XNNPACK's serializer": (
        {"target": "xnnpack_cpu"} | flavor("xnnpack_serializer", module="xnnpack"),
        ("flavor.options.module: nothing can be set here",),
    ),
    "a misspelt option": (
        flavor("eiq_neutron_sdk", pyhton="python"),
        ("flavor.options.pyhton: there is no such key", "did you mean 'python'?"),
    ),
    "a version that is a number": (
        {"flavor": "eiq_neutron_sdk", "overrides": {"flavor": {"version": 3.2}}},
        ("flavor.version: ", "received: 3.2", "string"),
    ),
}


@pytest.mark.parametrize("case", FLAVORS)
def test_a_flavor_that_cannot_be_reached_is_refused(refusal: Callable[..., str], case: str) -> None:
    values, expected = FLAVORS[case]
    message = refusal(**values)
    assert message.startswith("1 problem in the configuration")
    assert [part for part in expected if part not in message] == [], message


@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"])
def test_every_backend_can_be_trained_for(composed: Compose, target: str) -> None:
    overrides = {"quantization": {"training": {"epochs": 5}, "keep_float": ["classifier"]}}
    training = composed(target=target, quantization="int8_qat", overrides=overrides).quantization.training
    assert training is not None
    assert (training.epochs, training.batch_size, training.seed) == (5, 32, 0)


def test_training_names_the_output_that_the_task_judges(composed: Compose) -> None:
    """The first one was trained, so that the one that was judged got worse."""

    def trained(task_output: str | None = "scores", **quantization: Any) -> str | None:
        overrides = {"task": {"options": {"output": task_output}}, "quantization": quantization}
        training = composed(task="classification", quantization="int8_qat", overrides=overrides).quantization.training
        assert training is not None
        return training.output

    assert trained() == "scores"
    assert trained(training={"output": "others"}) == "others"
    assert trained(task_output=None) is None


@pytest.mark.parametrize("declared", ["output: int = 0", "output: str = ''", "output: tuple[str, ...] = ('a', 'b')"])
def test_an_option_that_is_no_name_of_an_output_does_not_hinder_training(
    declared: str, composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quantization.training.output: has to be a valid string, received: 0`, of a key that nobody had set."""
    name = "own_task_" + hashlib.sha256(declared.encode()).hexdigest()[:8]
    (tmp_path / name).mkdir()
    (tmp_path / name / "task.py").write_text(
        "from dataclasses import dataclass\n\nTARGETS = ()\n\n\n"
        f"@dataclass(frozen=True, kw_only=True)\nclass Options:\n    {declared}\n\n\n"
        "def metrics(options): ...\ndef record(options, outputs, target): ...\ndef measure(options, records): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    overrides = {"task": {"source": f"{name}.task"}}
    training = composed(
        plugins=[name], task="fidelity", quantization="int8_qat", overrides=overrides
    ).quantization.training
    assert training is not None
    assert training.output is None


def test_a_flavor_can_be_chosen_by_name_or_by_the_target(composed: Compose) -> None:
    assert composed(flavor="eiq_neutron_sdk").flavor.converter == "eiq_neutron_sdk"
    assert composed(**override("target.default_flavor", "eiq_neutron_sdk")).flavor.converter == "eiq_neutron_sdk"


def test_overrides_are_merged_key_by_key(composed: Compose) -> None:
    """`overrides: {model: {options: {kwargs: {in_channels: 3}}}}` took num_classes away, and built another network."""
    config = composed(
        overrides={
            "quantization": {"num_calibration_samples": 64},
            "model": {"options": {"kwargs": {"in_channels": 3}}},
            "dataset": {"options": {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}},
            "gates": {"min_delegated_share": 0.5},
        }
    )
    assert config.quantization.num_calibration_samples == 64
    assert config.quantization.scheme == "int8"
    assert config.model.options["kwargs"] == {"num_classes": 10, "in_channels": 3}
    assert config.model.options["factory"] == "lowerdeck.models.networks.resnet8:ResNet8"
    assert config.dataset.options["mean"] == [0.1, 0.2, 0.3]
    assert config.gates.min_delegated_share == 0.5


def test_arguments_of_one_factory_are_none_of_another(composed: Compose) -> None:
    own = {"factory": "lowerdeck.models.networks.resnet8:ResNet8", "kwargs": {"in_channels": 3}}
    config = composed(overrides={"model": {"options": own}})
    assert config.model.options["kwargs"] == {"in_channels": 3}


def test_an_integer_may_stand_for_a_float(composed: Compose) -> None:
    assert composed(**override("flavor.timeout_s", 60)).flavor.timeout_s == 60.0


@pytest.mark.parametrize("target", TARGETS)
def test_a_process_that_composed_can_create_what_was_composed(composed: Compose, target: str) -> None:
    config = composed(target=target)
    backend = backends.source(config.target.backend)
    assert type(TypeAdapter(backend.device_type).validate_python(config.target.device)) is backend.device_type
    assert type(TypeAdapter(backend.options_type).validate_python(config.target.options)) is backend.options_type


def test_values_may_refer_to_others(composed: Compose) -> None:
    assert composed(**override("model.name", "${target.name}_net")).model.name == "neutron_imxrt700_net"


def test_plugins_open_modules_of_the_user(
    composed: Compose, refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_nets.py").write_text("class Net:\n    def __init__(self, width: int) -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = {"options": {"factory": "my_own_nets:Net", "kwargs": {"width": 8}}, "weights": None}
    assert "plugins: [my_own_nets]" in refusal(overrides={"model": model})
    assert "  task.source is my_own.task, but" in refusal(**override("task.source", "my_own.task"))
    config = composed(plugins=["my_own_nets"], overrides={"model": model})
    assert config.build.plugins == ["my_own_nets"]
    before = config.model.fingerprint
    (tmp_path / "my_own_nets.py").write_text("class Net:\n    def __init__(self, width: int) -> None: pass\n")
    assert composed(plugins=["my_own_nets"], overrides={"model": model}).model.fingerprint != before


def test_code_that_a_factory_imports_is_part_of_the_fingerprint(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks shared a build key, and so a run and a registered version."""
    monkeypatch.syspath_prepend(tmp_path)
    nets, own_layers = tmp_path / "compose_nets.py", tmp_path / "compose_layers.py"
    nets.write_text("def net(num_classes): ...\n")
    own_layers.write_text("DEPTH = 1\n")
    model = {"options": {"factory": "compose_nets:net"}, "weights": None}

    def fingerprint() -> str | None:
        return composed(plugins=["compose_nets"], overrides={"model": model}).model.fingerprint

    assert fingerprint() == hashlib.sha256(nets.read_bytes()).hexdigest()  # alone, as before this counted
    nets.write_text("import compose_layers\ndef net(num_classes): ...\n")
    before = fingerprint()
    own_layers.write_text("DEPTH = 2\n")
    assert fingerprint() != before


@pytest.mark.parametrize(
    ("kind", "value"), [("int", 3), ("str", "nets.small"), ("str", "nets.small:v2"), ("str", "compose_made:Net")]
)
def test_a_source_of_the_user_may_call_anything_a_factory(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, value: object
) -> None:
    """compose took it for an import path: a number was an unforeseen AttributeError, a name was not importable.

    What is one counts, though `plugins` does not list it: an edit of what this source imports by it rebuilt nothing.
    """
    monkeypatch.syspath_prepend(tmp_path)
    package = f"compose_{kind}_source"
    (tmp_path / package).mkdir()
    (tmp_path / package / "own.py").write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True, kw_only=True)\nclass Options:\n"
        f"    factory: {kind}\n    kwargs: dict\n"
        "def check(options, weights, plugins): ...\ndef build(options, weights): ...\n"
    )
    made = tmp_path / "compose_made.py"
    made.write_text("class Net: ...\n")
    model = {"source": f"{package}.own", "options": {"factory": value}, "input_shapes": [[1, 3, 32, 32]]}

    def fingerprint() -> str | None:
        return composed(model="custom", plugins=[package], overrides={"model": model}).model.fingerprint

    before = fingerprint()
    made.write_text("class Net: wide = True\n")
    assert (fingerprint() != before) == (value == "compose_made:Net")


def test_other_weights_are_another_fingerprint(composed: Compose, tmp_path: Path) -> None:
    weights = tmp_path / "own.safetensors"
    weights.write_bytes(b"one")
    first = composed(**override("model.weights", str(weights))).model.fingerprint
    weights.write_bytes(b"two")
    assert composed(**override("model.weights", str(weights))).model.fingerprint != first


AMBIGUOUS = (
    "on", "no", "yes", "Off", "y", "~", "null", "017", "0o17", "0x1F", "12:30", "1e3", "1_000", ".5", "1.", "-", "=",
    "<<", "2024-01-01", "# no comment", "a: b", "größe ✓", "two\nlines", 'a "quoted" \\ word', " spaces ", "@x", "5",
    "!a",
)  # fmt: skip


def test_the_resolved_file_means_the_same_in_yaml_1_1_and_1_2(composed: Compose) -> None:
    config = composed(plugins=list(AMBIGUOUS), **override("gates.min_delegated_share", 1e-07))
    written = render(config)
    old, new = yaml.safe_load(written), YAML(typ="safe", pure=True).load(written)
    assert old == new
    assert old["build"]["plugins"] == list(AMBIGUOUS)
    assert old["gates"]["min_delegated_share"] == 1e-07
    assert old["gates"]["max_program_bytes"] is None


def test_the_same_selection_renders_the_same_bytes(composed: Compose) -> None:
    assert render(composed()) == render(composed(yaml.safe_dump(dict(reversed(SELECTION.items())), sort_keys=False)))


# What params.yaml says, and what the message has to hold: the full key, the value as received, what is allowed.
INVALID: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown top key": ({"colour": "red"}, ("colour: ", '"red"', "allowed: model, dataset")),
    "misspelt top key": ({"targt": "xnnpack_cpu"}, ("targt: ", '"xnnpack_cpu"', "did you mean 'target'?")),
    "option of model": ({"model": "resnet88"}, ("model: ", '"resnet88"', "mobilenet_v2", "did you mean 'resnet8'?")),
    "option of dataset": ({"dataset": "digit"}, ("dataset: ", '"digit"', "cifar10", "did you mean 'digits'?")),
    "option of quantization": ({"quantization": "int4"}, ("quantization: ", '"int4"', "did you mean 'int8x4'?")),
    "option of target": ({"target": "ethos_u55_12"}, ("target: ", '"ethos_u55_12"', "did you mean 'ethos_u55_128'?")),
    "option of flavor": ({"flavor": "velo"}, ("flavor: ", '"velo"', "did you mean 'vela'?")),
    "option of evaluation": ({"evaluation": "defaults"}, ("evaluation: ", '"defaults"', "did you mean 'default'?")),
    "training for ranges found at run time": (
        {
            "quantization": "int8_dynamic",
            "target": "xnnpack_cpu",
            "overrides": {"quantization": {"training": {"epochs": 1, "learning_rate": 0.1}}},
        },
        ("quantization.scheme: ", "cannot be trained for it", '"int8_dynamic"', "allowed: int8"),
    ),
    "training for nothing": (
        {
            "quantization": "float32",
            "target": "xnnpack_cpu",
            "overrides": {"quantization": {"training": {"epochs": 1, "learning_rate": 0.1}}},
        },
        ("quantization.scheme: ", "cannot be trained for it", '"float32"', "remove quantization.training"),
    ),
    "training for 16-bit activations": (
        {
            "quantization": "int16x8",
            "target": "ethos_u55_128",
            "overrides": {"quantization": {"training": {"epochs": 1, "learning_rate": 0.1}}},
        },
        ("quantization.scheme: ", "cannot be trained for it on the backend ethos_u", "allowed: int8"),
    ),
    "training beside a rule that cannot be trained": (
        {
            "quantization": "int8_qat",
            "target": "xnnpack_cpu",
            "overrides": {"quantization": {"rules": [{"modules": ["classifier"], "scheme": "int8_dynamic"}]}},
        },
        ("quantization.rules.0.scheme: ", "cannot be trained for it", '"int8_dynamic"'),
    ),
    "training with a rate that no optimizer takes": (
        override("quantization.training", {"epochs": 1, "learning_rate": 1e300}),
        ("quantization.training.learning_rate: ", "received: 1e+300", "less than or equal to 1"),
    ),
    "training for a task that is not judged by class scores": (
        {"quantization": "int8_qat", "task": "embedding"},
        ("quantization.training: trains class scores, which task embedding does not judge", "training.output"),
    ),
    "training without a rate": (
        override("quantization.training", {"epochs": 1}),
        ("quantization.training.learning_rate: ", "is missing"),
    ),
    "alignment between powers of two": (
        override("firmware.alignment_bytes", 24),
        ("firmware.alignment_bytes: ", "received: 24", "a power of two from 16"),
    ),
    "alignment that the runtime refuses": (
        override("firmware.alignment_bytes", 8),
        ("firmware.alignment_bytes: ", "received: 8", "which ExecuTorch's runtime requires"),
    ),
    "array that C cannot name": (
        override("firmware.array_name", "2nd-model"),
        ("firmware.array_name: ", 'received: "2nd-model"', "not a valid name in C"),
    ),
    "array named like a keyword": (
        override("firmware.array_name", "const"),
        ("firmware.array_name: ", 'received: "const"', "is a keyword or macro of C"),
    ),
    "array named like a file of the bundle": (
        override("firmware.array_name", "model"),
        ("firmware.array_name: ", 'received: "model"', "the firmware bundle has already", "e.g. model_pte"),
    ),
    "section that no linker knows": (
        override("firmware.section", 'a") b'),
        ("firmware.section: ", "is not a section name", "null for none"),
    ),
    "option of gates": ({"gates": "releases"}, ("gates: ", '"releases"', "did you mean 'release'?")),
    "option of device": ({"device": "host_nativ"}, ("device: ", '"host_nativ"', "did you mean 'host_native'?")),
    "device whose runtime lacks the delegate": (
        {"device": "emulated_cortex_m55"},
        ("device: its runtime has no NeutronBackend, which programs for neutron_imxrt700 need", "no delegates"),
    ),
    "unknown kind of device": (
        override("device.kind", "hostnative"),
        ("device.kind: ", '"hostnative"', "did you mean 'host_native'?"),
    ),
    "device that plugins do not allow": (
        override("device.kind", "boards.mine"),
        ("device.kind", "plugins: [boards]"),
    ),
    "options without a device": (
        override("device.options", {"num_threads": 1}),
        ("there is no device that has options",),
    ),
    "option of a device": (
        {"device": "host_native", **override("device.options", {"num_threads": 0})},
        ("device.options", "num_threads is 0; it must be 1 to 1024"),
    ),
    "option of tracking": ({"tracking": "lokal"}, ("tracking: ", '"lokal"', "did you mean 'local'?")),
    "null for an option": ({"target": None}, ("target: ", "null", "allowed: cortex_m0")),
    "list for an option": ({"target": ["xnnpack_cpu"]}, ("target: ", '["xnnpack_cpu"]', "allowed: cortex_m0")),
    "path for an option": ({"target": "../flavor/vela"}, ("target: ", '"../flavor/vela"', "allowed: cortex_m0")),
    "quoted number": (
        override("quantization.num_calibration_samples", "64"),
        ("quantization.num_calibration_samples: ", 'received: "64"', "integer"),
    ),
    "float for int": (
        override("quantization.num_calibration_samples", 64.0),
        ("quantization.num_calibration_samples: ", "received: 64.0", "integer"),
    ),
    "bool for int": (
        override("quantization.num_calibration_samples", True),
        ("quantization.num_calibration_samples: ", "received: true", "integer"),
    ),
    "bool for float": (override("flavor.timeout_s", True), ("flavor.timeout_s: ", "received: true", "number")),
    "string for float": (
        override("gates.min_delegated_share", "0.9"),
        ("gates.min_delegated_share: ", 'received: "0.9"', "number"),
    ),
    "int for bool": (override("tracking.enabled", 1), ("tracking.enabled: ", "received: 1", "boolean")),
    "string for bool": (
        override("target.options.fetch_constants_to_sram", "yes"),
        ("target.options.fetch_constants_to_sram: ", 'received: "yes"', "boolean"),
    ),
    "int for string": (override("model.name", 8), ("model.name: ", "received: 8", "string")),
    "int for list": (override("evaluation.metrics", 1), ("evaluation.metrics: ", "received: 1", "a list")),
    "string for list": (override("evaluation.metrics", "top1"), ("evaluation.metrics: ", '"top1"', "a list")),
    "null for list": (override("evaluation.metrics", None), ("evaluation.metrics: ", "received: null", "a list")),
    "flat shape": (override("model.input_shapes", [1, 3]), ("model.input_shapes.1: ", "received: 3", "a list")),
    "null for literal": (override("quantization.scheme", None), ("quantization.scheme: ", "null", "int8, int8x4")),
    "list for mapping": (override("model.options", [1]), ("model.options: ", "received: [1]", "a mapping")),
    "empty string": (override("tracking.uri", ""), ("tracking.uri: ", 'received: ""', "at least 1 character")),
    "negative number": (
        override("quantization.num_calibration_samples", -1),
        ("quantization.num_calibration_samples: ", "received: -1", "greater than 0"),
    ),
    "zero": (override("build.num_threads", 0), ("build.num_threads: ", "received: 0", "greater than 0")),
    "threads without bound": (override("build.num_threads", 10**9), ("build.num_threads: ", "equal to 1024")),
    "epochs without bound": (
        {"quantization": "int8_qat"} | override("quantization.training.epochs", 10**9),
        ("quantization.training.epochs: ", "received: 1000000000", "less than or equal to 10000"),
    ),
    "samples without bound": (
        override("quantization.num_calibration_samples", 10**9),
        ("quantization.num_calibration_samples: ", "less than or equal to 10000000"),
    ),
    "layer samples without bound": (override("evaluation.layer_samples", 10**9), ("evaluation.layer_", "to 10000")),
    "comparisons without bound": (
        override("evaluation.conformance.num_samples", 5),
        ("evaluation.conformance.num_samples: ", "less than or equal to 4"),
    ),
    "nothing to compare on": (
        override("evaluation.conformance.num_samples", 0),
        ("evaluation.conformance.num_samples: ", "greater than or equal to 1"),
    ),
    "random samples without bound": (
        {"dataset": "random"} | override("dataset.options.num_evaluation", 10**9),
        ("dataset.options: ", "num_evaluation is 1000000000", "from 1 to 1,000,000"),
    ),
    "input without bound": (
        override("model.input_shapes", [[1, 3, 10**6, 10**6]]),
        ("model.input_shapes.0: ", "2,147,483,647 elements at most", "3,000,000,000,000"),
    ),
    "time without bound": (override("flavor.timeout_s", 1e300), ("flavor.timeout_s: ", "less than or equal to 604800")),
    "path of 5,000 characters": (
        override("model.weights", "x" * 5000 + ".safetensors"),
        ("model: ", "the system refuses a path in it: File name too long"),
    ),
    "negative seed": (override("build.seed", -1), ("build.seed: ", "received: -1", "greater than or equal to 0")),
    "huge seed": (override("build.seed", 2**64), ("build.seed: ", f"received: {2**64}", "less than")),
    "negative dimension": (
        override("model.input_shapes", [[1, -3, 32, 32]]),
        ("model.input_shapes.0.1: ", "received: -3", "greater than 0"),
    ),
    "no time": (override("flavor.timeout_s", 0), ("flavor.timeout_s: ", "received: 0", "greater than 0")),
    "more than all": (
        override("gates.min_delegated_share", 90),
        ("gates.min_delegated_share: ", "received: 90", "less than or equal to 1"),
    ),
    "unknown key of a section": (
        override("quantization.schem", "int8"),
        ("quantization.schem: ", '"int8"', "allowed: name, scheme", "did you mean 'scheme'?"),
    ),
    "unknown key of model.options": (
        override("model.options.factry", "x"),
        ("model.options.factry: ", '"x"', "allowed: factory, kwargs", "did you mean 'factory'?"),
    ),
    "unknown key of dataset.options": (
        override("dataset.options.rot", "x"),
        ("dataset.options.rot: ", '"x"', "allowed: mean, std, root", "did you mean 'root'?"),
    ),
    "unknown key of target.options": (
        override("target.options.fetch_constant_to_sram", True),
        ("target.options.fetch_constant_to_sram: ", "true", "did you mean 'fetch_constants_to_sram'?"),
    ),
    "Neutron's old name of its target": (
        override("target.options.config", "imxrt700"),
        ("target.options.config: is `target.device.target` here", '"imxrt700"'),
    ),
    "an argument that ExecuTorch ignores": (
        override("target.options.system_config", "x"),
        ("target.options.system_config: ", "never read; leave it out"),
    ),
    "Neutron's old name of a flavor": (
        override("target.options.neutron_converter_flavor", "SDK_25_09"),
        ("target.options.neutron_converter_flavor: ", '"SDK_25_09"', "with `flavor` in params.yaml"),
    ),
    "a flavor in the device": (
        override("target.device.converter_flavor", "SDK_25_09"),
        ("target.device.converter_flavor: ", "with `flavor` in params.yaml"),
    ),
    "a folder for intermediates": (
        override("target.options.intermediates_dir", "/tmp/x"),
        ("target.options.intermediates_dir: cannot be set", "always stored in build/convert/twins"),
    ),
    "a glob among operators": (
        override("target.options.operators_not_to_delegate", ["aten::add*"]),
        ("target.options.operators_not_to_delegate: 'aten::add*' is not an operator", '["aten::add*"]'),
    ),
    "an operator to preserve without its namespace": (
        override("target.options.preserve_ops", ["hardswish"]),
        ("target.options.preserve_ops: 'hardswish' is not an operator", "write `aten::hardswish`"),
    ),
    "an extra flag that has its own option": (
        override("target.options.extra_flags", {"useProfiling": True}),
        ("target.options.extra_flags: useProfiling has its own option: target.options.use_profiling",),
    ),
    "an extra flag that is no name": (
        override("target.options.extra_flags", {"--verbose": True}),
        ("target.options.extra_flags: '--verbose' is not an attribute name",),
    ),
    "an extra flag that is a list": (
        override("target.options.extra_flags", {"useSequencer": [1]}),
        ("target.options.extra_flags: useSequencer has to be true, false, a number or a string",),
    ),
    "unknown key of target.device": (
        override("target.device.targt", "imxrt700"),
        ("target.device.targt: ", '"imxrt700"', "allowed: target", "did you mean 'target'?"),
    ),
    "a device that has no keys": (
        {"target": "xnnpack_cpu"} | override("target.device.cores", 4),
        ("target.device.cores: ", "received: 4", "nothing can be set here"),
    ),
    "unknown section": (
        override("quantisation.scheme", "int8"),
        ("overrides.quantisation: ", '{"scheme": "int8"}', "did you mean 'quantization'?"),
    ),
    "dotted override": (
        {"overrides": {"quantization.scheme": "int8"}},
        ("overrides.quantization.scheme: ", '"int8"', "did you mean 'quantization'?"),
    ),
    "override of a group": (
        override("target", "xnnpack_cpu"),
        ("overrides.target: ", '"xnnpack_cpu"', "write `target: NAME` at the top"),
    ),
    "null override": (override("model", None), ("overrides.model: ", "received: null", "a mapping")),
    "overrides are a list": ({"overrides": ["a=1"]}, ("overrides: ", '["a=1"]', "a mapping")),
    "overrides are a string": ({"overrides": "a=1"}, ("overrides: ", '"a=1"', "a mapping")),
    "plugins are a string": ({"plugins": "my_models"}, ("plugins: ", '"my_models"', "a list of import prefixes")),
    "missing value": ({"dataset": "image_folder"}, ("dataset.options.root: ", "`overrides` in params.yaml")),
    "wrong literal": (
        override("quantization.weight_granularity", "per_tensors"),
        ("quantization.weight_granularity: ", '"per_tensors"', "per_channel", "did you mean 'per_tensor'?"),
    ),
    "wrong literal of a device": (
        {"target": "ethos_u55_128"} | override("target.device.accelerator", "ethos-u55-129"),
        ("target.device.accelerator: ", '"ethos-u55-129"', "ethos-u85-2048", "did you mean 'ethos-u55-128'?"),
    ),
    "flavor of another backend": (
        {"target": "xnnpack_cpu", "flavor": "vela"},
        ("flavor: ", '"vela"', "ethos_u", "allowed: default, xnnpack_serializer"),
    ),
    "converter of another backend": (
        override("flavor.converter", "vela"),
        ("flavor.converter: ", '"vela"', "allowed: reference, eiq_neutron_sdk, neutron_converter"),
    ),
    "default flavor": (
        override("target.default_flavor", "referense"),
        ("target.default_flavor: ", '"referense"', "did you mean 'reference'?"),
    ),
    "scheme that the backend lacks": (
        {"quantization": "float32"},
        ("quantization.scheme: ", '"float32"', "neutron", "allowed: int8"),
    ),
    "granularity that the backend lacks": (
        {"quantization": "int8_per_channel"},
        ("quantization.weight_granularity: ", '"per_channel"', "neutron", "allowed: backend_default"),
    ),
    "U55 without dedicated SRAM": (
        {"target": "ethos_u55_128"} | override("target.options.memory_mode", "Dedicated_Sram"),
        ("target.options.memory_mode: ", '"Dedicated_Sram"', "choose one of Sram_Only, Shared_Sram"),
    ),
    "system of another family": (
        {"target": "ethos_u55_128"} | override("target.options.system_config", "Ethos_U85_SYS_DRAM_Mid"),
        ("target.options.system_config: ", '"Ethos_U85_SYS_DRAM_Mid"', "choose one of Ethos_U55_Deep_Embedded, Et"),
    ),
    "batch of two": (
        override("model.input_shapes", [[2, 3, 32, 32]]),
        ("model.input_shapes.0: ", "[2, 3, 32, 32]", "has to be 1"),
    ),
    "weights that are not there": (
        override("model.weights", "data/checkpoints/none.safetensors"),
        ("model.weights: ", "data/checkpoints/none.safetensors", "does not exist", "null"),
    ),
    "weights of another kind": (
        override("model.weights", "data/checkpoints/net.onnx"),
        ("model.weights: ", "net.onnx", "allowed are .safetensors, .pt, .pth"),
    ),
    "factory that is not opened": (
        override("model.options.factory", "os:system"),
        ("model.options.factory: ", "os:system", "lowerdeck.models only", "plugins: [os]"),
    ),
    "factory module that is not there": (
        {"plugins": ["my_nets"]} | override("model.options.factory", "my_nets.small:Net"),
        ("model.options.factory: ", "there is no module my_nets"),
    ),
    "factory that is not there": (
        override("model.options.factory", "lowerdeck.models.networks.resnet8:ResNet9"),
        ("model.options.factory: ", "no ResNet9", "Did you mean ResNet8?"),
    ),
    "factory without a module": (
        override("model.options.factory", "ResNet8"),
        ("model.options.factory: ", "'ResNet8'", "package.module:attribute"),
    ),
    "keyword that the factory lacks": (
        override("model.options.kwargs.num_clases", 3),
        ("model.options.kwargs: ", "num_clases", "it accepts num_classes, in_channels", "Did you mean num_classes?"),
    ),
    "architecture": (
        {"model": "mobilenet_v2"} | override("model.options.architecture", "mobilenet_v22"),
        ("model.options.architecture: ", "'mobilenet_v22'", "resnet18", "Did you mean mobilenet_v2"),
    ),
    "gate on what no build has": (
        override("gates.metrics", {"min_acc": 0.5}),
        ("gates.metrics.min_acc: task classification has no metric acc", "did you mean delegated_accuracy"),
    ),
    "gate": (
        override("gates.metrics", {"delegated_miou": 0.5}),
        ("gates.metrics: ", "has delegated_miou; every name is min_METRIC or max_METRIC"),
    ),
    "task": ({"task": "classify"}, ("task: ", "conf/task/classify.yaml", "classification")),
    "metric": (
        override("evaluation.metrics", ["top1", "top5"]),
        ("evaluation.metrics: ", '"top1"', "no such module in lowerdeck/metrics/, which has none; name one of yours"),
    ),
    "model source": (
        override("model.source", "factori"),
        ("model.source: ", '"factori"', "torchvision", "did you mean 'factory'?"),
    ),
    "dataset source": (override("dataset.source", "digit"), ("dataset.source: ", '"digit"', "did you mean 'digits'?")),
    "backend": (override("target.backend", "xnpack"), ("target.backend: ", '"xnpack"', "did you mean 'xnnpack'?")),
    "option that its source refuses": (
        override("dataset.options.std", [0.0]),
        ("dataset.options: ", "std is [0.0]", "above 0"),
    ),
    "dataset that is not there": (override("dataset.options.root", "nowhere"), ("dataset: ", "nowhere/manifest.json")),
    "computed value": (override("model.fingerprint", "x"), ("model.fingerprint: ", '"x"', "cannot be set")),
    "interpolation of nothing": (
        override("model.name", "${model.nickname}"),
        ("model.name: ", '"${model.nickname}"', "not found"),
    ),
    "interpolation of itself": (override("model.name", "${model.name}"), ("model.name: ", "Recursive")),
    "unfinished interpolation": (override("model.name", "${"), ("model.name: ", '"${"')),
    "unset variable": (override("model.name", "${oc.env:NOT_SET_HERE}"), ("model.name: ", "NOT_SET_HERE")),
    "NaN": (override("flavor.timeout_s", float("nan")), ("flavor.timeout_s: ", "received: NaN", "finite")),
    "infinity": (override("flavor.timeout_s", float("inf")), ("flavor.timeout_s: ", "received: Infinity", "finite")),
    "NaN where anything may stand": (
        override("model.options.kwargs.num_classes", float("nan")),
        ("model.options.kwargs.num_classes: ", "received: NaN", "finite"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_a_damaged_configuration_is_refused(refusal: Callable[..., str], name: str) -> None:
    values, expected = INVALID[name]
    message = refusal(**values)
    for part in expected:
        assert part in message, message
    assert message.splitlines()[0].endswith("in the configuration:")


# What YAML itself allows, and no value of the configuration may be.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: [resnet8", ("is not valid YAML", "line 1")),
        ("model: resnet8\nmodel: resnet18\n", ("is not valid YAML", 'duplicate key "model"')),
        ("overrides:\n\tmodel: {}\n", ("is not valid YAML", "line 2")),
        ("overrides: {model: {name: !!python/object:os.system {}}}", ("is not valid YAML", "os.system")),
        ("- target: xnnpack_cpu\n", ("must be a mapping of model, dataset",)),
        ("", ("must be a mapping of model, dataset",)),
        ("xnnpack_cpu", ("must be a mapping of model, dataset",)),
        ("overrides: {model: {name: 2024-01-01}}", ("overrides.model.name: ", '"2024-01-01"', "date", "quotes")),
        ("overrides: {model: {name: 2024-01-01 10:00:00}}", ("overrides.model.name: ", "datetime", "quotes")),
        ("overrides: {model: {name: !!binary aGVsbG8=}}", ("overrides.model.name: ", "bytes")),
        ("overrides: {model: {options: {kwargs: {a: !!set {b}}}}}", ("overrides.model.options.kwargs.a: ", "set")),
        ("overrides: {model: {options: {kwargs: {a: .nan}}}}", ("overrides.model.options.kwargs.a: ", "NaN")),
        ("overrides: {gates: {min_delegated_share: 1e999}}", ("overrides.gates.min_delegated_share: ", "Infinity")),
        ("overrides: {quantization: {1: 2}}", ("overrides.quantization.1: ", "a key has to be a string")),
        ("overrides: {quantization: {null: 2}}", ("overrides.quantization.None: ", "a key has to be a string")),
        ("overrides: &all {model: *all}", ("overrides.model: ", "contains itself")),
        ("017: 2", ("17: ", "there is no such key")),
        ('overrides: {model: {name: "\\ud800"}}', ("overrides.model.name: ", "half of a surrogate pair", '"\\ud800"')),
        ('overrides: {model: {name: "a\\0"}}', ("overrides.model.name: ", "the character NUL")),
        ('overrides: {model: {"\\udfff": 1}}', ("overrides.model.\\udfff: ", "this key contains half of a surrogate")),
        ('"\\ud800": 1', ("\\ud800: ", "there is no such key")),
        ("overrides: {model: {name: " + "[" * 1000 + "]" * 1000 + "}}", ("params.yaml nests", "64 levels deep")),
    ],
)
def test_params_that_are_no_configuration_are_refused(
    refusal: Callable[..., str], text: str, expected: tuple[str, ...]
) -> None:
    message = refusal(text)
    for part in expected:
        assert part in message, message


def test_params_that_cannot_be_read_are_refused(project: Project, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    with pytest.raises(ConfigurationError, match=r"params\.yaml cannot be read: No such file"):
        compose(params, project.root / "conf")
    params.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"params\.yaml is not valid YAML: .*utf-8"):
        compose(params, project.root / "conf")


NEUTRON = "name: neutron_imxrt700\nbackend: neutron\ndefault_flavor: reference\ndevice: {target: imxrt700}\n"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("target/neutron_imxrt700.yaml", "name: [", ("conf/ cannot be composed", "neutron_imxrt700.yaml", "line 1")),
        ("target/neutron_imxrt700.yaml", NEUTRON + "name: again\n", ("duplicate key name", "neutron_imxrt700.yaml")),
        ("target/neutron_imxrt700.yaml", NEUTRON + "devise: {}\n", ("target.devise: ", "did you mean 'device'?")),
        ("target/neutron_imxrt700.yaml", NEUTRON.replace("backend: neutron\n", ""), ("target.backend: is missing",)),
        ("target/neutron_imxrt700.yaml", NEUTRON.replace("default_flavor", "flavor"), ("target.default_flavor: ",)),
        ("target/neutron_imxrt700.yaml", NEUTRON.replace("target: imx", "x: imx"), ("device.target: is missing",)),
        ("target/neutron_imxrt700.yaml", "", ("target.default_flavor: ", "null")),
        ("target/neutron_imxrt700.yaml", "- neutron\n", ("neutron_imxrt700.yaml has to contain a mapping", "a list")),
        ("target/neutron_imxrt700.yaml", "true", ("neutron_imxrt700.yaml has to contain a mapping", "a single value")),
        ("gates/none.yaml", "name: " + "[" * 1000 + "]" * 1000, ("gates/none.yaml nests", "more than 64 levels deep")),
        ("gates/none.yaml", 'name: "' + "${" * 300 + '"', ("cannot be composed: ",)),
        ("gates/none.yaml", "name: off\n", ("gates.name: ", "received: false", "string")),
        ("gates/none.yaml", "name: ${nothing}\n", ("gates.name: ", '"${nothing}"', "not found")),
        ("gates/none.yaml", "name: none\nmax_quantization_drop: .inf\n", ("gates.max_quantization_drop: ", "finite")),
        ("quantization/int8.yaml", "defaults: [int9]\nname: int8\nscheme: int8\n", ("quantization/int9",)),
        ("config.yaml", "defaults: [{model: resnet8}]\n", ("Could not override 'dataset'",)),
    ],
)  # fmt: skip
def test_options_of_conf_are_checked_too(
    refusal: Callable[..., str], conf: Path, file: str, text: str, expected: tuple[str, ...]
) -> None:
    (conf / file).write_text(text)
    message = refusal(conf=conf)
    for part in expected:
        assert part in message, message


def test_an_option_that_is_not_chosen_may_be_broken(composed: Compose, refusal: Callable[..., str], conf: Path) -> None:
    (conf / "flavor" / "broken.yaml").write_text("name: [")
    assert composed(conf=conf) == composed()
    assert "allowed: default, eiq_neutron_sdk, eiq_neutron_sdk_venv, neutron_" in refusal(conf=conf, flavor="vela")


def test_an_option_added_to_conf_can_be_chosen(composed: Compose, conf: Path) -> None:
    (conf / "target" / "big_npu.yaml").write_text(
        "defaults: [ethos_u85_256, _self_]\nname: big_npu\ndevice: {accelerator: ethos-u85-2048}\n"
    )
    config = composed(conf=conf, target="big_npu")
    assert config.target.device["accelerator"] == "ethos-u85-2048"
    assert config.target.options["memory_mode"] == "Dedicated_Sram_384KB"
    assert config.flavor.name == "vela"


def test_several_problems_are_listed_at_once(refusal: Callable[..., str]) -> None:
    message = refusal(target="xnnpack", model="resnet", colour=1, overrides={"quantisation": {}, "gates": 3})
    assert message.startswith("5 problems in the configuration:\n")
    for key in ("target: ", "model: ", "colour: ", "overrides.quantisation: ", "overrides.gates: "):
        assert f"\n  {key}" in message


def test_wrong_values_of_several_sections_are_listed_at_once(refusal: Callable[..., str]) -> None:
    message = refusal(
        overrides={
            "quantization": {"scheme": "int4", "num_calibration_samples": 0},
            "gates": {"min_delegated_share": 2.0},
            "evaluation": {"max_samples": "all"},
        }
    )
    assert message.startswith("4 problems")
    for key in ("quantization.scheme: ", "quantization.num_calibration_samples: ", "gates.min_delegated_share: "):
        assert f"\n  {key}" in message


def test_wrong_combinations_are_listed_at_once(refusal: Callable[..., str]) -> None:
    message = refusal(
        flavor="vela", quantization="float32", overrides={"model": {"weights": "no.pt", "input_shapes": [[3, 1]]}}
    )
    assert message.startswith("4 problems")
    for key in ("flavor: ", "quantization.scheme: ", "model.input_shapes.0: ", "model.weights: "):
        assert f"\n  {key}" in message


@pytest.mark.parametrize(
    "values",
    quick_first(
        [{"quantization": "float32"}, {"target": "ethos_u55"}, override("quantization.num_calibration_samples", "64")]
    ),
    ids=["combination", "option", "type"],
)
def test_the_stage_says_it_and_leaves_the_last_good_file(project: Project, values: dict[str, Any]) -> None:
    assert project.stage("compose", LOWERDECK_PRELOAD="0").returncode == 0
    good = (project.root / CONFIG).read_bytes()
    project.edit_params(**values)
    try:
        failed = project.stage("compose", LOWERDECK_PRELOAD="0")
    finally:
        project.edit_params(**SELECTION)
    assert failed.returncode == 1
    assert "compose: 1 problem in the configuration:" in failed.stderr
    assert "Traceback" not in failed.stderr + failed.stdout
    assert (project.root / CONFIG).read_bytes() == good
    assert not list((project.root / CONFIG.parent).glob(f".{CONFIG.name}*"))


@pytest.mark.parametrize("flavor", ["eiq_neutron_sdk", "neutron_converter_SDK_25_09"])
def test_a_converter_that_is_not_installed_is_refused_before_the_build(composed: Compose, flavor: str) -> None:
    config = composed(flavor=flavor)  # for reading, any machine may compose it
    with pytest.raises(ConfigurationError, match=r"package \w+ is not installed; .*flavor: reference"):
        check_installed(config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_missing_is_refused_before_the_build(composed: Compose) -> None:
    check_installed(composed(**override("evaluation.device", "auto")))
    config = composed(**override("evaluation.device", "cuda"))  # for reading, any machine may compose it
    with pytest.raises(ConfigurationError, match=r"evaluation.device: PyTorch finds no GPU here; `auto` takes one"):
        check_installed(config)


@pytest.mark.parametrize("target", TARGETS)
def test_installed_converters_are_found(composed: Compose, target: str) -> None:
    check_installed(composed(target=target))


@pytest.mark.parametrize(
    ("target", "extra"),
    [("ethos_u55_128", "ethos-u"), ("cortex_m55", "cortex-m"), ("neutron_imxrt700", "neutron"), ("xnnpack_cpu", None)],
)
def test_what_a_target_needs_beside_the_package_may_be_missing(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, target: str, extra: str | None
) -> None:
    config = composed(target=target)  # for reading, any machine may compose it
    monkeypatch.setattr("lowerdeck.contracts.backends.PathFinder.find_spec", lambda name: None)
    if extra is None:
        check_installed(config)
        return
    with pytest.raises(ConfigurationError, match=rf"target: .* needs the module.*`pip install 'lowerdeck\[{extra}\]'`"):
        check_installed(config)


@pytest.mark.parametrize("target", TARGETS)
def test_the_section_of_command_streams_is_for_npus(composed: Compose, target: str) -> None:
    assert composed(target=target).firmware.section == (None if target == "xnnpack_cpu" else "network_model_sec")
    own = composed(target=target, **override("firmware.section", ".rodata.models"))
    assert own.firmware.section == ".rodata.models"


def test_a_dataset_that_does_not_fit_the_model_is_refused(refusal: Callable[..., str]) -> None:
    assert "the digits are 32x32 pixels" in refusal(**override("model.input_shapes", [[1, 3, 64, 64]]))
    message = refusal(**override("dataset.options", {"mean": [0.5, 0.5], "std": [1.0, 1.0]}))
    assert "mean: has 2 values, the model's input has 3 channels" in message


def test_weights_of_another_dtype_are_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"stem.weight": np.zeros(4, np.int8)}, tmp_path / "w.safetensors")
    message = refusal(**override("model.weights", str(tmp_path / "w.safetensors")))
    assert "stem.weight is I8" in message
