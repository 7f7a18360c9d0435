"""The child process around a converter, driven with small fake SDKs that misbehave in one way each."""

from __future__ import annotations

import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema

from lowerdeck.backends.neutron import child, convert_worker, converter
from lowerdeck.backends.neutron.converter import (
    INSTALLED_SDK,
    REFERENCE,
    ConverterFlavor,
    ConverterOptions,
    convert,
    describe,
)
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.contracts.errors import ConversionError, LowerdeckError

without_sdk = pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec(INSTALLED_SDK) is not None, reason="NXP's SDK is installed"
)
DEFAULTS = ConverterOptions()
PROJECT_ROOT = Path(converter.__file__).parents[3]


def litert_model(*operators: int | str) -> bytes:
    """A LiteRT model whose operators, builtin codes or custom names, all map its one input to its one output."""
    model = schema.ModelT()
    model.version, model.buffers = 3, [schema.BufferT()]
    model.operatorCodes, subgraph = [], schema.SubGraphT()
    subgraph.tensors, subgraph.inputs, subgraph.outputs, subgraph.operators = [], [0], [1], []
    for name in ("given", "result"):
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name, [1, 8], schema.TensorType.INT8
        subgraph.tensors.append(tensor)
    for index, kind in enumerate(operators):
        code, operator = schema.OperatorCodeT(), schema.OperatorT()
        builtin = schema.BuiltinOperator.CUSTOM if isinstance(kind, str) else kind
        code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, builtin, 1
        code.customCode = kind if isinstance(kind, str) else None
        operator.opcodeIndex, operator.inputs, operator.outputs = index, [0], [1]
        model.operatorCodes.append(code)
        subgraph.operators.append(operator)
    model.subgraphs = [subgraph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


RELU = litert_model(schema.BuiltinOperator.RELU)
CONVERTED = litert_model(NEUTRON_GRAPH)

FAKE_CONVERTER = f"""
import os, pathlib, subprocess, sys, time

class Options:
    __slots__ = ("minNumOpsPerGraph", "excludeGraphPasses", "fetchConstantsToSRAM", "dumpKernelSelectionCode",
                 "useProfiling", "dumpAfterImport", "dumpAfterGenerate", "verbose")
    def __init__(self):
        for name in self.__slots__:
            setattr(self, name, None)

class CompilationContext:
    def __init__(self):
        self.targetOpts, self.compilationOpts = None, Options()

class Npu:
    subsystem, numUnits, numPipes, numMacs, hwVersion = False, 1, 4, 16, 2

class Target:
    name, npu = "imxrt700", Npu()

def getNeutronTarget(name):
    return Target()

CONVERTED = bytes.fromhex("{CONVERTED.hex()}")

def convertModel(model, context):
    assert isinstance(model, list)
"""
LIBRARY = """
from fakes.neutron_converter import Target
def getNeutronTargets(): return [Target()]
def isNeutronTarget(name): return name == "imxrt700"
"""


def fake_sdk(folder: Path, body: str, *, library: bool = True, prelude: str = "") -> ConverterFlavor:
    """A package `fakes` with the SDK's interface whose convertModel has `body`."""
    package = folder / "sdk" / "fakes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "9.8.7"\n')
    source = FAKE_CONVERTER + textwrap.indent(textwrap.dedent(body), "    ") + "\n" + textwrap.dedent(prelude)
    (package / "neutron_converter.py").write_text(source)
    if library:
        (package / "neutron_library_utils.py").write_text(LIBRARY)
    return ConverterFlavor("fake", "fakes", timeout_s=20.0, sys_path=(str(package.parent),))


def test_success_returns_model_log_and_version(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, 'print("from python")\nos.write(1, b"from native\\n")\nreturn list(CONVERTED)')
    conversion = convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    assert conversion.model == CONVERTED
    assert conversion.log == "from python\nfrom native\n"
    assert conversion.version == "9.8.7"
    assert (tmp_path / "tag0" / "model.tflite").read_bytes() == RELU


def test_options_reach_the_converter(tmp_path: Path) -> None:
    body = """
    for name in context.compilationOpts.__slots__:
        print(name, repr(getattr(context.compilationOpts, name)))
    return CONVERTED
    """
    options = ConverterOptions(fetch_constants_to_sram=True, use_profiling=True)
    log = convert(fake_sdk(tmp_path, body), RELU, "imxrt700", options, tmp_path / "tag0").log
    assert log.splitlines() == [
        "minNumOpsPerGraph 1",
        "excludeGraphPasses 'HoistSliceAboveTranspose,MergeTranspose'",
        "fetchConstantsToSRAM True",
        "dumpKernelSelectionCode False",
        "useProfiling True",
        "dumpAfterImport 'console'",
        "dumpAfterGenerate 'console'",
        "verbose True",
    ]


def test_options_beyond_those_of_executorch_reach_a_converter_that_has_them(tmp_path: Path) -> None:
    prelude = """
    class Options(Options):
        __slots__ = ("useSequencer",)
    """
    flavor = fake_sdk(tmp_path, "print(context.compilationOpts.useSequencer)\nreturn CONVERTED", prelude=prelude)
    options = ConverterOptions(extra={"useSequencer": True})
    assert convert(flavor, RELU, "imxrt700", options, tmp_path / "tag0").log == "True\n"


def test_options_that_a_converter_lacks_are_refused(tmp_path: Path) -> None:
    options = ConverterOptions(extra={"useSequencer": True})
    with pytest.raises(ConversionError, match=r"this release has no option for useSequencer=True"):
        convert(fake_sdk(tmp_path, "return CONVERTED"), RELU, "imxrt700", options, tmp_path / "tag0")


def test_kernel_selection_is_handed_over_where_it_was_asked_for(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, 'pathlib.Path("_kernel_selection.c").write_text("kernels")\nreturn CONVERTED')
    asked = ConverterOptions(dump_kernel_selection_code=True)
    assert convert(flavor, RELU, "imxrt700", asked, tmp_path / "tag0").kernel_selection == b"kernels"
    assert convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0").kernel_selection is None


def test_a_kernel_selection_that_is_not_written_is_an_error(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, "return CONVERTED")
    (tmp_path / "tag0" / "output").mkdir(parents=True)
    (tmp_path / "tag0" / "output" / "_kernel_selection.c").write_text("of an earlier call")
    with pytest.raises(ConversionError, match=r"wrote no _kernel_selection\.c"):
        convert(flavor, RELU, "imxrt700", ConverterOptions(dump_kernel_selection_code=True), tmp_path / "tag0")


def test_converter_runs_in_a_folder_below_that_of_the_partition(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, 'pathlib.Path("_kernel_selection.c").write_text("x")\nreturn CONVERTED')
    for tag in ("tag0", "tag1"):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / tag)
        assert (tmp_path / tag / "output" / "_kernel_selection.c").exists()


def test_crash_names_partition_signal_files_and_command(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, 'print("about to fail")\nos.abort()')
    folder = tmp_path / "tag3"
    with pytest.raises(ConversionError) as caught:
        convert(flavor, RELU, "imxrt700", DEFAULTS, folder)
    message = str(caught.value)
    assert message.startswith(
        "Partition tag3 was not converted. The converter fake (fakes) was ended by signal SIGABRT."
    )
    assert f"Its LiteRT model: {folder / 'model.tflite'}\n" in message
    assert "about to fail\nFatal Python error: Aborted" in message
    assert (folder / "model.tflite").read_bytes() == RELU

    command = next(line for line in message.splitlines() if line.startswith("To run this call alone: "))
    again = subprocess.run(["sh", "-c", command.partition(": ")[2]], capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "about to fail" in again.stdout


def test_exit_without_result_names_the_exit_code(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="ended with exit code 7 and without a result"):
        convert(fake_sdk(tmp_path, "os._exit(7)"), RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")


def test_result_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "tag0"
    folder.mkdir()
    (folder / "result.json").write_text('{"ok": true, "version": "0"}')
    (folder / "converted.tflite").write_bytes(CONVERTED)
    with pytest.raises(ConversionError, match="without a result"):
        convert(fake_sdk(tmp_path, "os._exit(0)"), RELU, "imxrt700", DEFAULTS, folder)


def test_hang_ends_at_the_time_limit_with_its_own_children(tmp_path: Path) -> None:
    body = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    print(os.getpid(), child.pid)
    time.sleep(300)
    """
    started = time.monotonic()
    with pytest.raises(ConversionError, match=r"was ended at its time limit of 3 s"):
        convert(fake_sdk(tmp_path, body), RELU, "imxrt700", DEFAULTS, tmp_path / "tag0", timeout_s=3.0)
    assert time.monotonic() - started < 8
    pids = (tmp_path / "tag0" / "converter.log").read_text().split()
    assert len(pids) == 2
    wait_until_gone(*pids)


def test_interrupt_ends_the_converter(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    flavor = fake_sdk(tmp_path, "print(os.getpid())\ntime.sleep(300)")
    log = tmp_path / "tag0" / "converter.log"

    def interrupt() -> None:
        while not (log.exists() and log.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    thread.join()
    wait_until_gone(log.read_text().strip())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_converter_ends_with_a_killed_pipeline(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, "print(os.getpid())\ntime.sleep(300)")
    code = f"""
from pathlib import Path
from lowerdeck.backends.neutron.converter import ConverterFlavor, ConverterOptions, convert
convert({flavor!r}, {RELU!r}, "imxrt700", ConverterOptions(), Path({str(tmp_path / "tag0")!r}))
"""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    log = tmp_path / "tag0" / "converter.log"
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as pipeline:
        deadline = time.monotonic() + 20
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        pipeline.kill()
    wait_until_gone(log.read_text().strip())


def test_leftover_operators_are_named(tmp_path: Path) -> None:
    codes = schema.BuiltinOperator
    left = litert_model(NEUTRON_GRAPH, codes.SOFTMAX, codes.SOFTMAX)
    flavor = fake_sdk(tmp_path, f"return bytes.fromhex('{left.hex()}')")
    with pytest.raises(ConversionError, match=r"left: NeutronGraph x 1, SOFTMAX x 2\. Keep the operators"):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")


def test_output_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"wrote no usable model: not a LiteRT model: .*2 bytes"):
        convert(fake_sdk(tmp_path, "return b'no'"), RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")


def test_exception_of_the_converter_is_passed_on(tmp_path: Path) -> None:
    flavor = fake_sdk(tmp_path, "raise RuntimeError('tensor 5 is too wide')")
    with pytest.raises(ConversionError, match=r"reports: RuntimeError: tensor 5 is too wide(?s:.*)Traceback"):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")


def test_older_release_without_the_newer_options(tmp_path: Path) -> None:
    old_options = """
    class Options:
        __slots__ = ("minNumOpsPerGraph",)
        def __init__(self):
            self.minNumOpsPerGraph = 2
    """
    flavor = fake_sdk(tmp_path, "return CONVERTED", library=False, prelude=old_options)
    assert convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0").model == CONVERTED
    with pytest.raises(ConversionError, match=r"no option for fetchConstantsToSRAM=True\. Leave these options at"):
        convert(flavor, RELU, "imxrt700", ConverterOptions(fetch_constants_to_sram=True), tmp_path / "tag1")
    assert describe(flavor).targets is None


def test_missing_module_says_where_it_was_looked_for(tmp_path: Path) -> None:
    flavor = ConverterFlavor("old", "neutron_converter_SDK_25_09", timeout_s=20.0)
    with pytest.raises(
        ConversionError,
        match=r"cannot import neutron_converter_SDK_25_09 with .* or set `flavor.options.python`",
    ):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    with pytest.raises(LowerdeckError, match="Flavor old cannot be used"):
        describe(flavor)


def test_missing_interpreter_is_named(tmp_path: Path) -> None:
    flavor = ConverterFlavor("other", "fakes", python=str(tmp_path / "bin" / "python"))
    with pytest.raises(ConversionError, match=r"could not be started: .*Set `flavor.options.python`"):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")


@pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec(INSTALLED_SDK) is not None, reason="NXP's SDK is installed"
)
def test_missing_sdk_says_how_to_get_it(tmp_path: Path) -> None:
    flavor = ConverterFlavor("eiq", INSTALLED_SDK, timeout_s=20.0)
    with pytest.raises(ConversionError, match=r"NXP distributes the eIQ Neutron SDK .* examples/nxp/setup\.sh"):
        convert(flavor, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    with pytest.raises(LowerdeckError, match="choose the flavor `reference`"):
        describe(flavor)


def test_unknown_target_lists_the_targets(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"unknown target 'imx95', allowed: imxrt700"):
        convert(REFERENCE, RELU, "imx95", DEFAULTS, tmp_path / "tag0")


def test_describe_reads_properties_below_npu(tmp_path: Path) -> None:
    found = describe(fake_sdk(tmp_path, "return CONVERTED"))
    assert (found.version, found.targets, found.merges_kernel_selection) == ("9.8.7", ("imxrt700",), False)
    assert (found.target.num_pipes, found.target.num_macs, found.target.subsystem) == (4, 16, False)


def test_describe_reference() -> None:
    found = describe(REFERENCE)
    assert (found.version, found.targets, found.merges_kernel_selection) == ("reference-1", ("imxrt700",), True)
    assert (found.target.num_units, found.target.num_pipes, found.target.num_macs) == (1, 8, 8)
    assert (found.target.hw_version, found.target.subsystem) == (2, False)
    assert REFERENCE.host_only


def test_reference_converts_in_the_child_process(tmp_path: Path) -> None:
    conversion = convert(REFERENCE, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    assert read_graph(conversion.model).operators == (NEUTRON_GRAPH,)
    assert "runs on the host only, not on the NPU" in conversion.log


def test_options_have_the_defaults_of_the_worker() -> None:
    assert DEFAULTS.as_sdk() == convert_worker.DEFAULT_OPTIONS


def test_job_names_all_that_the_worker_needs(tmp_path: Path) -> None:
    convert(REFERENCE, RELU, "imxrt700", DEFAULTS, tmp_path / "tag0")
    job = json.loads((tmp_path / "tag0" / "job.json").read_text())
    assert sorted(job) == ["action", "options", "sdk", "sys_path", "target"]
    assert child.command(REFERENCE.python, tmp_path)[-1] == str(tmp_path)


PROVIDE = """
import sys
from lowerdeck.backends.neutron import sdk
from lowerdeck.backends.neutron.converter import REFERENCE, ConverterFlavor
from lowerdeck.contracts.errors import LowerdeckError
try:
    sdk.provide_sdk(ConverterFlavor("eiq", "eiq_neutron_sdk"))
except LowerdeckError as error:
    print(str(error).split(":")[0])
sdk.provide_sdk(REFERENCE)
import eiq_neutron_sdk
from eiq_neutron_sdk import neutron_converter, neutron_library_utils
print(eiq_neutron_sdk.__version__, neutron_library_utils.isNeutronTarget("imxrt700"))
sdk.provide_sdk({fake!r})
import eiq_neutron_sdk.neutron_converter as other, eiq_neutron_sdk.neutron_library_utils as library
target = other.getNeutronTarget("imxrt700")
print(target.name, target.numMacs, target.hwVersion, [t.name for t in library.getNeutronTargets()])
print(library.isNeutronTarget("imxrt700"), library.isNeutronTarget("imx95"))
try:
    other.convertModel([], None)
except LowerdeckError as error:
    print(error)
from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
print(NeutronTargetSpec("imxrt700").get_num_macs())
sdk.provide_sdk(REFERENCE)
print(NeutronTargetSpec("imxrt700").get_num_macs())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec(INSTALLED_SDK) is not None, reason="NXP's SDK is installed"
)
def test_backend_gets_the_sdk_of_the_chosen_flavor(tmp_path: Path) -> None:
    # In a process of its own: others in this one may have imported the backend.
    code = PROVIDE.format(fake=fake_sdk(tmp_path, "return CONVERTED"))
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Flavor eiq cannot be used",
        "reference-1 True",
        "imxrt700 16 2 ['imxrt700']",
        "True False",
        "flavor fake converts in a child process: open `intercept_conversion` around the lowering",
        "16",  # the flavor's, and after turning to another that one's
        "8",
    ]


def wait_until_gone(*pids: str) -> None:
    """Fail unless these processes end within moments."""
    deadline = time.monotonic() + 5
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie has ended; who adopted it may be slow to collect it
