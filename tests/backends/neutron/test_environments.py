"""Converters in real virtual environments of their own: releases that differ, and ones that misbehave."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.backends.neutron.converter import (
    ConverterFlavor,
    ConverterOptions,
    convert,
    describe,
    merge_kernel_selection,
)
from lowerdeck.backends.neutron.flavor import converter_flavor
from lowerdeck.backends.neutron.options import FlavorOptions
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.backends.neutron.reference.neutron_library_utils import getNeutronTargets
from lowerdeck.contracts.backends import Flavor
from lowerdeck.contracts.errors import ConversionError, LowerdeckError, is_about_no_operator
from tests.backends.neutron.environments import RESULT_AS, Environment, make, replace_convert
from tests.backends.neutron.test_converter import RELU

DEFAULTS = ConverterOptions()
TARGET = getNeutronTargets()[0].name


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return make(tmp_path / "environment")


def flavor_of(environment: Environment, timeout_s: float = 20.0) -> ConverterFlavor:
    options = FlavorOptions(module=environment.package.name, python=str(environment.python))
    return converter_flavor(Flavor(name="tried", converter="neutron_converter", options=options, timeout_s=timeout_s))


def installed(options: FlavorOptions) -> Flavor[FlavorOptions]:
    return Flavor(name="tried", converter="eiq_neutron_sdk", options=options, timeout_s=20.0)


def refusal(environment: Environment, folder: Path, options: ConverterOptions = DEFAULTS, timeout_s: float = 20) -> str:
    """What is said when a partition cannot be converted, after what every such message has to say was checked."""
    with pytest.raises(ConversionError) as caught:
        convert(flavor_of(environment, timeout_s), RELU, TARGET, options, folder)
    message = str(caught.value)
    assert message.startswith(f"Partition {folder.name} was not converted. The converter tried ")
    kept = re.search(r"^Its LiteRT model: (.+)$", message, re.MULTILINE)
    assert kept is not None
    assert Path(kept[1]).read_bytes() == RELU
    assert re.search(r"^To run this call alone: cd .+ && .+convert_worker\.py .+$", message, re.MULTILINE)
    return message


def test_a_release_in_another_environment_converts_and_says_its_version(
    environment: Environment, tmp_path: Path
) -> None:
    conversion = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert read_graph(conversion.model).operators == (NEUTRON_GRAPH,)
    assert conversion.version == "3.1.3"
    described = describe(flavor_of(environment))
    assert (described.version, described.targets, described.missing_features) == ("3.1.3", (TARGET,), ())


def test_the_package_is_not_that_of_this_environment(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "eiq_neutron_sdk").mkdir(parents=True)
    (tmp_path / "here" / "eiq_neutron_sdk" / "__init__.py").write_text("raise ImportError('of this environment')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    assert describe(flavor_of(environment)).version == "3.1.3"
    replace_convert(environment, "import sys; print(sys.prefix); return original(model, context)")
    conversion = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert conversion.log.splitlines()[0] == str(tmp_path / "environment")


@pytest.mark.parametrize("form", RESULT_AS)
def test_a_result_in_any_form_is_the_same_model(environment: Environment, tmp_path: Path, form: str) -> None:
    expected = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "plain").model
    replace_convert(environment, f"done = original(model, context)\n{RESULT_AS[form]}")
    assert convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0").model == expected


GOOD_MANNERS_LACKING = {
    "prints": "print('words ' * 20000); import os; os.write(1, b'\\xff\\xfe'); os.write(2, b'more')",
    "changes the current folder": "import os, tempfile; os.chdir(tempfile.mkdtemp())",
    "leaves files": """
        for name in ("result.json", "model.tflite", "job.json", "converted.tflite", "converter.log"):
            open(name, "w").write("of the converter")
        """,
    "leaves a thread": "import threading, time; threading.Thread(target=time.sleep, args=(300,)).start()",
    "crashes at its end": "import atexit, os; atexit.register(os.abort)",
    "leaves a process": "import subprocess; subprocess.Popen(['sleep', '300'])",
    "reads its input": "import sys; assert sys.stdin.read() == ''",
    "wants no list changed": "assert isinstance(model, list); model = bytes(model)",
}


@pytest.mark.parametrize("habit", GOOD_MANNERS_LACKING)
def test_a_converter_may_do_much_beside_converting(environment: Environment, tmp_path: Path, habit: str) -> None:
    expected = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "plain").model
    body = GOOD_MANNERS_LACKING[habit]
    replace_convert(environment, f"{body.strip(chr(10))}\n".replace("        ", "") + "return original(model, context)")
    conversion = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert conversion.model == expected


def test_a_slow_import_counts_against_the_time_limit_only(environment: Environment, tmp_path: Path) -> None:
    environment.append("__init__", "import time; time.sleep(1.5)")
    assert convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0").version == "3.1.3"
    assert "was ended at its time limit of 1 s" in refusal(environment, tmp_path / "tag1", timeout_s=1)


ENDINGS = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal SIGSEGV"),
    "native crash": ("import ctypes; ctypes.string_at(0)", "was ended by signal SIGSEGV"),
    "abort": ("import os; os.abort()", "was ended by signal SIGABRT"),
    "exit": ("import os; os._exit(3)", "ended with exit code 3 and without a result"),
    "exit as if well": ("import sys; sys.exit(0)", "ended with exit code 0 and without a result"),
    "exception": ("raise MemoryError('of the converter')", "reports: MemoryError: of the converter"),
    "nothing": ("return None", "the converter returned no model but NoneType None"),
    "a number": ("return 5", "the converter returned no model but int 5"),
    "no model": ("return b'TFL3' * 9", "wrote no usable model: it refers to"),
    "the model as it was": ("return bytes(model)", "but left: RELU x 1. Keep the operators that it cannot convert off"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_a_converter_does_wrong_is_said_with_its_partition(
    environment: Environment, tmp_path: Path, ending: str
) -> None:
    body, said = ENDINGS[ending]
    replace_convert(environment, f"print('before it'); {body}")
    message = refusal(environment, tmp_path / "tag7")
    assert said in message
    assert "before it" in message
    assert describe(flavor_of(environment)).version == "3.1.3"  # only converting is broken


@pytest.mark.parametrize(
    ("body", "is_about_operators"),
    [
        ("raise MemoryError('of the converter')", False),
        ("import os; os.write(2, b'what():  std::bad_alloc'); os.abort()", False),
        ("import os; os.kill(os.getpid(), 9)", False),
        ("import os; os.abort()", True),
    ],
)
def test_a_full_memory_is_no_fault_of_an_operator(
    environment: Environment, tmp_path: Path, body: str, is_about_operators: bool
) -> None:
    """Operators were kept off the NPU for it."""
    replace_convert(environment, body)
    with pytest.raises(ConversionError, match="was not converted") as caught:
        convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert is_about_no_operator(caught.value) is not is_about_operators


def test_a_hang_ends_at_the_time_limit(environment: Environment, tmp_path: Path) -> None:
    replace_convert(environment, "import time; time.sleep(300)")
    assert "was ended at its time limit of 1 s" in refusal(environment, tmp_path / "tag0", timeout_s=1)


def test_the_command_in_the_message_shows_the_crash_again(environment: Environment, tmp_path: Path) -> None:
    replace_convert(environment, "import os, sys; print('prefix', sys.prefix); os.abort()")
    message = refusal(environment, tmp_path / "a folder" / "tag0")
    command = re.search(r"^To run this call alone: (.+)$", message, re.MULTILINE)
    assert command is not None
    again = subprocess.run(["sh", "-c", command[1]], capture_output=True, text=True, check=False)
    assert again.returncode in (-6, 134)
    assert f"prefix {tmp_path / 'environment'}" in again.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "was ended by signal SIGABRT"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("raise ImportError('libmlir.so.19: cannot open shared object file')", "libmlir.so.19: cannot open"),
    ],
    ids=["crash", "no library", "no shared library"],
)
def test_a_package_that_cannot_be_imported_says_why(environment: Environment, code: str, said: str) -> None:
    environment.append("__init__", code)
    with pytest.raises(LowerdeckError) as caught:
        describe(flavor_of(environment))
    assert str(caught.value).startswith("Flavor tried cannot be used: The converter tried (eiq_neutron_sdk)")
    assert said in str(caught.value)
    assert f"To see whether it can be imported: {environment.python} -c 'import eiq_neutron_sdk'" in str(caught.value)


def test_properties_of_the_target_may_stand_below_npu_and_be_of_many_kinds(environment: Environment) -> None:
    environment.append(
        "neutron_library_utils",
        """
        import enum

        class Version(enum.Enum):
            N3 = 2

        class Npu:
            subsystem, numUnits, numPipes, hwVersion = 0, 1, 4, Version.N3
            def numMacs(self): return 16

        class Target:
            name, npu = "imxrt700", Npu()

        def getNeutronTargets(): return {"imxrt700": Target()}
        """,
    )
    environment.append(
        "neutron_converter",
        "from eiq_neutron_sdk.neutron_library_utils import Target\ngetNeutronTarget = lambda name: Target()",
    )
    found = describe(flavor_of(environment))
    assert (found.target.num_macs, found.target.num_pipes, found.target.hw_version) == (16, 4, 2)
    assert (found.target.subsystem, found.target.assumed, found.targets) == (False, (), ("imxrt700",))


# How the older modules differ, by the calls of the ExecuTorch release that used them.
OLDER = {
    "SDK_25_03": ("class CompilationOptions: __slots__ = ('dumpHeaderFileInput',)", False),
    "SDK_25_06": ("class CompilationOptions:\n    def __init__(self): self.minNumOpsPerGraph = 4", False),
    "SDK_25_09": ("class CompilationOptions:\n    minNumOpsPerGraph, excludeGraphPasses = 4, ''", True),
}


@pytest.mark.parametrize("release", OLDER)
def test_an_older_module_converts_with_what_it_has(tmp_path: Path, release: str) -> None:
    options, lists_targets = OLDER[release]
    environment = make(tmp_path / "environment", package=f"neutron_converter_{release}", version="1.0.5")
    (environment.package / "kernel_selection.py").unlink()
    (environment.package / "__init__.py").write_text("")
    if not lists_targets:
        (environment.package / "neutron_library_utils.py").rename(environment.package / "targets.py")
    source = (environment.package / "neutron_converter.py").read_text()
    source = source.replace("import FILE_NAME, write_kernel_selection", "import *").replace(
        f"from {environment.package.name}.kernel_selection import *", ""
    )
    if not lists_targets:  # there is no more than the name of a target then
        source = source.replace("neutron_library_utils import NeutronTarget, getNeutronTargets", "targets import *")
        source = source.replace("for target in getNeutronTargets()", "for target in _TARGETS")
        source = source.replace("targets import *", "targets import _TARGETS, NeutronTarget")
    source += f"\n\n{options}\n\nclass CompilationContext:\n    def __init__(self):\n"
    source += "        self.targetOpts, self.compilationOpts = None, CompilationOptions()\n"
    source += "\ndef convertModel(model, context):\n    graph = read_graph(bytes(model))\n"
    source += "    print('minimum', getattr(context.compilationOpts, 'minNumOpsPerGraph', 'unknown'))\n"
    source += "    return list(build_neutron_graph(graph, pack_microcode(bytes(model)), _WEIGHTS, _KERNELS, _NOTICE))\n"
    (environment.package / "neutron_converter.py").write_text(source)

    flavor = flavor_of(environment)
    conversion = convert(flavor, RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert read_graph(conversion.model).operators == (NEUTRON_GRAPH,)
    assert conversion.version == "1.0.5"
    assert conversion.log == ("minimum unknown\n" if release == "SDK_25_03" else "minimum 1\n")
    found = describe(flavor)
    assert found.targets == ((TARGET,) if lists_targets else None)
    assert not found.merges_kernel_selection
    assert {"the option fetchConstantsToSRAM", "merging of kernel selection files"} <= set(found.missing_features)
    assert ("the option minNumOpsPerGraph" in found.missing_features) == (release == "SDK_25_03")
    message = refusal(environment, tmp_path / "tag1", ConverterOptions(fetch_constants_to_sram=True))
    assert "this release has no option for fetchConstantsToSRAM=True" in message


def test_a_release_after_3_2_has_other_names(environment: Environment, tmp_path: Path) -> None:
    converter = environment.package / "neutron_converter.py"
    (environment.package / "neutron_compiler.py").write_text(
        converter.read_text().replace("convertModel", "compileModel")
    )
    converter.unlink()
    init = environment.package / "__init__.py"
    init.write_text(init.read_text().replace("neutron_converter", "neutron_compiler"))
    conversion = convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0")
    assert read_graph(conversion.model).operators == (NEUTRON_GRAPH,)


def test_a_release_with_two_flows_uses_the_one_that_partitioning_uses(environment: Environment, tmp_path: Path) -> None:
    converter = environment.package / "neutron_converter.py"
    source = converter.read_text().replace(
        "    verbose: bool = False", "    verbose: bool = False\n    useNewFlowNeutronC: bool = False"
    )
    converter.write_text(source)
    replace_convert(environment, "print(context.compilationOpts.useNewFlowNeutronC); return original(model, context)")
    flavor = flavor_of(environment)
    assert convert(flavor, RELU, TARGET, DEFAULTS, tmp_path / "tag0").log.startswith("True\n")
    older = ConverterOptions(extra={"useNewFlowNeutronC": False})
    assert convert(flavor, RELU, TARGET, older, tmp_path / "tag1").log.startswith("False\n")


def test_the_converter_may_be_a_class_or_the_package_itself(environment: Environment, tmp_path: Path) -> None:
    environment.append(
        "__init__",
        """
        from eiq_neutron_sdk import neutron_converter as functions

        class neutron_converter:
            CompilationContext = functions.CompilationContext
            def getNeutronTarget(self, name): return functions.getNeutronTarget(name)
            def convertModel(self, model, context): return functions.convertModel(model, context)
        """,
    )
    assert convert(flavor_of(environment), RELU, TARGET, DEFAULTS, tmp_path / "tag0").version == "3.1.3"
    environment.append("__init__", "import sys; del neutron_converter\n")
    site = environment.package.parent
    flat = (
        "from eiq_neutron_sdk.neutron_converter import *\nfrom eiq_neutron_sdk.neutron_converter import convertModel\n"
    )
    (site / "flat_converter.py").write_text(f"{flat}VERSION = '7'\n")
    flavor = flavor_of(Environment(environment.python, site / "flat_converter"))
    assert convert(flavor, RELU, TARGET, DEFAULTS, tmp_path / "tag1").version == "7"


def test_an_open_options_object_gets_all_options(environment: Environment, tmp_path: Path) -> None:
    environment.append(
        "neutron_converter",
        """
        class Open: pass

        class CompilationContext:
            def __init__(self): self.targetOpts, self.compilationOpts = None, Open()
        """,
    )
    replace_convert(
        environment, "print(sorted(vars(context.compilationOpts).items())); return original(model, context)"
    )
    options = ConverterOptions(fetch_constants_to_sram=True)
    log = convert(flavor_of(environment), RELU, TARGET, options, tmp_path / "tag0").log
    assert "('fetchConstantsToSRAM', True)" in log
    assert "('minNumOpsPerGraph', 1)" in log


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        (None, "__version__ = '3.0.0'", "3.0.0"),
        (None, "def version(): return '2.9'", "2.9"),
        ("3.2.0", "__version__ = 'not kept up to date'", "3.2.0"),
    ],
    ids=["of the module", "as a function", "of the distribution"],
)
def test_the_version_is_found_where_it_is_stated(tmp_path: Path, version: str | None, code: str, said: str) -> None:
    environment = make(tmp_path / "environment", version=version)
    environment.append("__init__", code)
    assert describe(flavor_of(environment)).version == said


def test_releases_without_a_version_differ_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, same, other = (make(tmp_path / name, version=None) for name in ("first", "same", "other"))
    replace_convert(other, "return original(model, context)")
    versions = [describe(flavor_of(environment)).version for environment in (first, same, other, first)]
    assert all(re.fullmatch("files-[0-9a-f]{16}", version) for version in versions)
    assert versions[0] == versions[1] == versions[3] != versions[2]
    # A release that is replaced in its place is another one, and convert names it as describe does.
    replace_convert(first, "return original(model, context)")
    assert describe(flavor_of(first)).version == versions[2]
    assert convert(flavor_of(first), RELU, TARGET, DEFAULTS, tmp_path / "tag0").version == versions[2]


def test_the_files_of_a_release_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = make(tmp_path / "environment", version=None)
    said = describe(flavor_of(environment)).version
    (kept,) = (tmp_path / "cache" / "lowerdeck" / "sdk").iterdir()
    kept.write_text("0" * 64)
    assert describe(flavor_of(environment)).version == "files-" + "0" * 16
    kept.write_text("cut off")
    assert describe(flavor_of(environment)).version == said


def test_a_package_that_is_unpacked_hides_the_installed_one_with_its_version(
    environment: Environment, tmp_path: Path
) -> None:
    other = make(tmp_path / "other", version=None)
    other.append("__init__", "__version__ = '3.0.0'")
    options = FlavorOptions(
        module="eiq_neutron_sdk", python=str(environment.python), sys_path=[str(other.package.parent)]
    )
    assert describe(converter_flavor(installed(options))).version == "3.0.0"


def test_kernel_selections_are_merged_by_the_release_itself(environment: Environment, tmp_path: Path) -> None:
    flavor, options = flavor_of(environment), ConverterOptions(dump_kernel_selection_code=True)
    selections = [convert(flavor, RELU, TARGET, options, tmp_path / f"tag{index}").kernel_selection for index in (0, 1)]
    merged = merge_kernel_selection(flavor, [selection for selection in selections if selection], tmp_path / "merged")
    assert b"RELU x 2" in merged
    environment.append(
        "kernel_selection", "def merge_kernel_selection_files(files, output): raise OSError('disk full')"
    )
    with pytest.raises(ConversionError, match=r"of 2 partitions were not merged\. .* reports: OSError: disk full\."):
        merge_kernel_selection(flavor, [b"", b""], tmp_path / "again")


def test_the_interpreter_of_this_process_keeps_its_own_path(tmp_path: Path) -> None:
    assert converter_flavor(installed(FlavorOptions())).python == sys.executable
    options = FlavorOptions(python="~/envs/sdk/bin/python")
    assert converter_flavor(installed(options)).python == str(Path.home() / "envs" / "sdk" / "bin" / "python")
