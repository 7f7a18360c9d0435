"""lowerdeck.firmware.project and its sources: the bundle compiles, and its application runs the test vector."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import executorch
import numpy as np
import pytest
import torch
import yaml
from pydantic import TypeAdapter

from lowerdeck.artifacts.conversion import read_companions
from lowerdeck.cli.run_program import run_program
from lowerdeck.config.schema import FirmwareConfig
from lowerdeck.contracts.devices import DeviceError, DeviceTensor, Job, OutputSpec
from lowerdeck.datasets import audio
from lowerdeck.datasets.preprocessing import PIXEL_SCALE, normalised
from lowerdeck.devices import lines, serial_board
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.firmware import cmsis
from lowerdeck.firmware.c_literals import c_float, c_string
from lowerdeck.firmware.project import RECORD, record_header
from lowerdeck.firmware.record import recorded
from lowerdeck.firmware.sample_format import HEADER, SampleFormat
from lowerdeck.firmware.source_part import SourcePart
from lowerdeck.runtime.floats import to_program
from lowerdeck.runtime.twins import read_manifest
from tests.conftest import Lowered
from tests.devices.test_serial_board import behind_a_terminal
from tests.firmware.c_library import COMPILERS, address, library, tensor
from tests.firmware.test_bundle import PLACEMENT, bundled
from tests.graph.test_io_boundary import Flagged, build
from tests.marks import quick_first

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
MEAN, STD = [0.485, 0.456, 0.4], [0.229, 0.224, 0.3]
IMAGE = {"kind": "image", "channels": "RGB", "height": 32, "width": 32, "scale": PIXEL_SCALE, "mean": MEAN, "std": STD,
         "fit": "crop", "resize": None, "interpolation": "bilinear"}  # fmt: skip
SAMPLE = SampleFormat(preprocessing=IMAGE, class_names=("cat", 'dog "\\?', "großer Vogel"))


@pytest.fixture(scope="module")
def unpacked(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(target, integers at the I/O boundary) -> the folder of its bundle, and nothing else of its build."""
    known: dict[tuple[str, bool], Path] = {}

    def get(target: str, integers: bool = False) -> Path:
        if (target, integers) not in known:
            base, folder = lowered(target), tmp_path_factory.mktemp(f"project_{target}")
            if integers:
                build(base.quantized(), Flagged(base.backend(), inputs=True, outputs=True), folder)
            with chdir(folder if integers else base.folder):
                twins = read_companions()
            files = bundled(base, folder if integers else base.folder, sample=SAMPLE, twins=twins)
            known[target, integers] = tmp_path_factory.mktemp(f"unpacked_{target}")
            write(files, known[target, integers])
        return known[target, integers]

    return get


def write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def shared(folder: Path, *sources: str) -> ctypes.CDLL:
    """Sources of a bundle as a library."""
    made = folder / "shared.so"
    done = ran(tool("gcc", "gcc"), "-std=c11", "-O2", "-shared", "-fPIC", "-o", made, *sources, "src/model.c", "-Isrc",
               "-lm", folder=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(made))


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return found


def ran(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    parts = [str(part) for part in command]
    return subprocess.run(parts, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def lines_of(text: str) -> list[lines.Line]:
    """The lines of the application, which all have the right CRC."""
    found = [lines.read(line) for line in text.splitlines()]
    said = [line for line in found if line is not None and not line.is_damaged]
    assert len(said) == len(found), text
    return said


def configured(folder: Path, out: Path, compiler: str, *flags: str) -> Path:
    """The application, built by CMake with warnings as errors."""
    names = {"g++": ("gcc", "g++"), "clang++": ("clang", "clang++")}[compiler]
    tool("cmake", "cmake"), tool(compiler, "g++" if compiler == "g++" else "clang")
    (package,) = executorch.__path__
    made = ran("cmake", "-S", folder, "-B", out, f"-DCMAKE_PREFIX_PATH={package}", f"-DCMAKE_C_COMPILER={names[0]}",
               f"-DCMAKE_CXX_COMPILER={names[1]}", f"-DCMAKE_C_FLAGS=-Werror {' '.join(flags)}",
               f"-DCMAKE_CXX_FLAGS=-Werror {' '.join(flags)}", folder=folder)  # fmt: skip
    assert made.returncode == 0, made.stderr
    made = ran("cmake", "--build", out, folder=folder)
    assert made.returncode == 0, made.stdout + made.stderr
    return out / "lowerdeck_firmware"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("integers", [False, True])
def test_the_application_runs_its_test_vector_on_the_host(
    unpacked: Callable[..., Path], tmp_path: Path, compiler: str, integers: bool
) -> None:
    folder = unpacked("xnnpack_cpu", integers)
    answer = ran(configured(folder, tmp_path / "out", compiler), folder=tmp_path)
    said = lines_of(answer.stdout)
    assert answer.returncode == 0, answer.stdout
    assert (said[0].verb, said[0].version) == ("hello", lines.VERSION)
    assert (said[-1].verb, said[-1].fields["program"]) == ("done", file_digest(folder / "program.pte"))
    output = b"".join(line.content("data") or b"" for line in said if line.verb == "output")
    assert output == (folder / "expected_output_0.bin").read_bytes()
    (result,) = [line for line in said if line.verb == "result"]
    assert result.number("equal") == result.number("elements")
    assert result.number("max_steps") == 0
    (pool,) = [line for line in said if line.fields.get("name") == "method"]
    assert 0 < (pool.number("used") or 0) <= (pool.number("size") or 0)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_application_prints_the_class_of_a_classifier_alone(
    lowered: Callable[[str], Lowered], tmp_path: Path, task: str
) -> None:
    """Any output with as many numbers as the dataset has classes was taken for their scores."""
    base, folder = lowered("xnnpack_cpu"), tmp_path / "bundle"
    names = tuple(f"class {index}" for index in range(base.converted.outputs[0].shape[-1]))
    sample = SampleFormat(class_names=names, task=task, task_options={"output": None})
    write(bundled(base, base.folder, sample=sample), folder)
    said = lines_of(ran(configured(folder, tmp_path / "out", "g++"), folder=tmp_path).stdout)
    best = str(np.load(folder / "expected_output_0.npy").argmax())
    expected = [best] if task == "classification" else []
    assert [line.fields["index"] for line in said if line.verb == "class"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_bundle_for_sound_has_its_front_end(lowered: Callable[[str], Lowered], tmp_path: Path, compiler: str) -> None:
    """The application builds with it, and its C gives the features that lie beside it, of the sound beside it."""
    options = audio.ClipOptions(features="mfcc", power=1.0)
    clip = np.random.default_rng(0).uniform(-1, 1, options.clip_samples).astype(np.float32)
    sound = audio.vector(clip, audio.clip_features(clip, options), options)
    folder, base = tmp_path / "bundle", lowered("xnnpack_cpu")
    write(bundled(base, base.folder, front_end=sound, sample=SampleFormat(class_names=("yes", "no"))), folder)
    answer = ran(configured(folder, tmp_path / "out", compiler), folder=tmp_path)
    assert answer.returncode == 0, answer.stdout
    loaded = shared(folder, "src/audio_front_end.c", "src/postprocess.c")
    signal, expected = (np.fromfile(folder / f"front_end_{name}.bin", np.float32) for name in ("signal", "features"))
    found, state = np.zeros_like(expected), ctypes.create_string_buffer(1 << 16)
    assert loaded.lowerdeck_audio_clip(state, address(signal), len(signal), address(found), 49) == 49
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    assert "audio_front_end" in (folder / "README.md").read_text()
    assert "audio_front_end.c" in (folder / cmsis.LAYER).read_text()


@pytest.mark.slow
def test_the_application_is_a_board_for_its_program(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    """ExecuTorch's C++ runtime behind a pseudo-terminal: other inputs than the test vector, several times."""
    folder = unpacked("xnnpack_cpu", True)
    shape = np.load(folder / "input_0.npy").shape
    random = np.random.default_rng(0).integers(-128, 128, (2, *shape), dtype=np.int8)
    expected = np.load(folder / "expected_output_0.npy")
    spec = OutputSpec(dtype=str(expected.dtype), shape=expected.shape, size_bytes=expected.nbytes)
    samples = [[DeviceTensor(dtype="int8", shape=shape, content=sample.tobytes())] for sample in random]
    job = Job(program=folder / "program.pte", outputs=(spec,), workdir=tmp_path, samples=samples, timeout_s=60.0,
              warm_up=1, repetitions=3)  # fmt: skip
    with behind_a_terminal(configured(folder, tmp_path / "out", "g++")) as options:
        executed = serial_board.execute(options, job)
        (tmp_path / "other.pte").write_bytes(b"another")
        with pytest.raises(DeviceError, match="takes no other; flash the firmware bundle"):
            serial_board.execute(options, dataclasses.replace(job, program=tmp_path / "other.pte"))
    for sample, outputs in zip(random, executed.outputs, strict=True):
        np.save(tmp_path / "sample.npy", sample)
        run_program(folder / "program.pte", [tmp_path / "sample.npy"], tmp_path)
        assert outputs[0].content == (tmp_path / "output_0.bin").read_bytes()
    assert len(executed.latencies_ms) == 3
    assert executed.notes == ("executed by lowerdeck_firmware",)


@pytest.mark.slow
def test_a_wrong_answer_and_a_small_pool_are_named(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(unpacked("xnnpack_cpu"), damaged)
    vector = (damaged / "src/test_vector.c").read_text()
    sign, name = re.search(r"outputs_0\[\d+\] = \{\n(?:0x..,){3}(0x..)", vector), damaged / "src/test_vector.c"
    assert sign
    name.write_text(vector[: sign.start(1)] + f"0x{int(sign[1], 16) ^ 0x80:02x}" + vector[sign.end(1) :])
    answer = ran(configured(damaged, tmp_path / "out", "g++"), folder=tmp_path)
    assert answer.returncode == 2
    last = lines_of(answer.stdout)[-1]
    assert (last.verb, last.fields) == ("error", {"where": "test_vector", "code": "0"})
    small = configured(unpacked("xnnpack_cpu"), tmp_path / "small", "g++", "-DLOWERDECK_METHOD_POOL_BYTES=64u")
    answer = ran(small, folder=tmp_path)
    last = lines_of(answer.stdout)[-1]
    assert (answer.returncode, last.verb, last.fields["where"]) == (1, "error", "load_method")


@pytest.mark.slow
def test_a_program_for_an_npu_compiles_and_says_why_it_does_not_run_here(
    unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    answer = ran(configured(unpacked("ethos_u55_128"), tmp_path / "out", "g++"), folder=tmp_path)
    assert answer.returncode == 1
    last = lines_of(answer.stdout)[-1]
    assert (last.verb, last.fields["where"]) == ("error", "load_method")


@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"])
@pytest.mark.parametrize(("compiler", "package", "flags"), COMPILERS)
def test_c_sources_are_c11_without_a_warning(
    unpacked: Callable[..., Path], tmp_path: Path, target: str, compiler: str, package: str, flags: tuple[str, ...]
) -> None:
    """All that needs no sources of ExecuTorch."""
    folder, executable = unpacked(target), tool(compiler, package)
    sources = sorted(folder.glob("src/*.c"))
    shared = {"line_protocol.c", "lowerdeck_board.c"}
    assert {"model.c", "postprocess.c", "preprocess.c", "resize.c", "test_vector.c"} | shared == {
        s.name for s in sources
    }
    for source in sources:
        made = tmp_path / "object.o"
        done = ran(executable, "-std=c11", *WARNINGS, *flags, "-c", source, "-o", made, folder=folder)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "xnnpack_cpu"]))
@pytest.mark.parametrize("integers", [False, True])
def test_preprocessing_in_c_gives_the_bits_of_the_pipeline(
    unpacked: Callable[..., Path], target: str, integers: bool
) -> None:
    folder = unpacked(target, integers)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    manifest = read_manifest(folder / "manifest.json")
    (tensor,) = manifest.inputs
    sample = torch.from_numpy(normalised(pixels.transpose(2, 0, 1)[None], PIXEL_SCALE, MEAN, STD))
    expected = to_program(sample, tensor).permute(tensor.dim_order).contiguous().numpy().tobytes()
    loaded, made = shared(folder, "src/preprocess.c", "src/postprocess.c"), ctypes.create_string_buffer(len(expected))
    inputs = ctypes.addressof(ctypes.c_char.in_dll(loaded, "lowerdeck_inputs"))
    assert loaded.lowerdeck_preprocess(ctypes.c_void_p(inputs), pixels.tobytes(), made) == 0
    assert made.raw == expected


def test_postprocessing_in_c(unpacked: Callable[..., Path]) -> None:
    folder = unpacked("neutron_imxrt700", True)
    output = json.loads((folder / "metadata.json").read_text())["outputs"][0]
    stored = np.fromfile(folder / "expected_output_0.bin", dtype=np.int8)
    loaded = shared(folder, "src/postprocess.c")
    tensor = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(loaded, "lowerdeck_outputs")))
    real = output["scale"] * (stored.astype(np.float64) - output["zero_point"])
    loaded.lowerdeck_real.restype = ctypes.c_float
    found = [loaded.lowerdeck_real(tensor, stored.tobytes(), index) for index in range(len(stored))]
    np.testing.assert_allclose(found, real, rtol=1e-6)
    assert loaded.lowerdeck_argmax(tensor, stored.tobytes()) == int(real.argmax())
    probabilities = (ctypes.c_float * len(stored))()
    loaded.lowerdeck_softmax(tensor, stored.tobytes(), probabilities)
    wanted = np.exp(real - real.max())
    np.testing.assert_allclose(list(probabilities), wanted / wanted.sum(), rtol=1e-5)


def test_floats_that_differ_by_a_last_bit_are_within_a_step(tmp_path: Path) -> None:
    """Less than half a millionth was the largest difference there is, and failed the test vector."""
    functions = library(SourcePart(names=(), constants=(), note=""), tmp_path)
    functions.lowerdeck_compare.restype = ctypes.c_uint64

    def max_steps(found: float, expected: float, dtype: str = "float32") -> int:
        values = np.array([found], dtype), np.array([expected], dtype)
        return int(functions.lowerdeck_compare(ctypes.byref(tensor((1,), dtype)), *map(address, values)) >> 32)

    last_bit = float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert max_steps(last_bit, 0.5) == max_steps(-0.0, 0.0) == max_steps(1 + 1e-16, 1 - 1e-16, "float64") == 0
    assert (max_steps(0.500003, 0.5), max_steps(3, 5, "int8")) == (3, 2)
    assert max_steps(np.nan, 0.5) == max_steps(0.5, np.nan) == max_steps(np.inf, 0.5) == 2**32 - 1
    assert max_steps(0.5, 0.25, "float16") == 250_000


NUMBERS = np.arange(1 << 16, dtype=np.uint16)
"""All that 16 bits can be."""


def floats(bits: Any, dtype: str) -> Any:
    """float32 of the 16 bits of float16 or bfloat16."""
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else (bits.astype(np.uint32) << 16).view("f4")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_in_c_is_that_of_numpy(tmp_path: Path, dtype: str) -> None:
    """Each of the numbers was 0, and class 0 the best of any output; no such input could be written."""
    more = """
    #include "postprocess.h"
    #include "store.h"
    void decode(const lowerdeck_tensor *tensor, const void *data, float *reals) {
      for (uint32_t index = 0; index < tensor->elements; index++) {
        reals[index] = lowerdeck_real(tensor, data, index);
      }
    }
    int encode(const lowerdeck_tensor *tensor, const float *reals, void *data) {
      for (uint32_t index = 0; index < tensor->elements; index++) {
        lowerdeck_store(tensor, reals[index], data, index);
      }
      return lowerdeck_can_store(tensor);
    }
    """
    functions = library(SourcePart(names=("store.h",), constants=(), note=""), tmp_path, more=more)
    described, reals = ctypes.byref(tensor(NUMBERS.shape, dtype)), np.zeros(NUMBERS.shape, np.float32)
    functions.decode(described, address(NUMBERS), address(reals))
    expected = floats(NUMBERS, dtype)
    is_number = ~np.isnan(expected)
    assert np.array_equal(reals[is_number].view(np.uint32), expected[is_number].view(np.uint32))
    assert np.isnan(reals[~is_number]).all()
    values = expected[np.isfinite(expected)]
    halves = ((values[:-1].astype(float) + values[1:]) / 2).astype(np.float32)
    near = [np.nextafter(halves, np.float32(sign * np.inf)) for sign in (1, -1)]
    extremes = np.array([65519.99, 65520, 1e6, 1e-10, 3e38, 3.4028235e38, np.inf, np.nan], np.float32)
    given = np.concatenate([expected, halves, *near, extremes, -extremes])
    made = np.zeros(given.shape, np.uint16)
    assert functions.encode(ctypes.byref(tensor(given.shape, dtype)), address(given), address(made)) == 1
    wanted = torch.from_numpy(given).to(getattr(torch, dtype)).view(torch.uint16).numpy()
    is_number = ~np.isnan(given)
    assert np.array_equal(made[is_number], wanted[is_number])
    assert np.isnan(floats(made[~is_number], dtype)).all()


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float16", "float64"])
def test_the_best_class_of_any_type(tmp_path: Path, dtype: str) -> None:
    functions, values = library(SourcePart(names=(), constants=(), note=""), tmp_path), np.array([3, 1, 7, 7], dtype)
    assert functions.lowerdeck_argmax(ctypes.byref(tensor((4,), dtype)), address(values)) == 2


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700"]))
def test_the_unzipped_bundle_runs_without_its_build(unpacked: Callable[..., Path], tmp_path: Path, target: str) -> None:
    folder = unpacked(target)
    run_program(folder / "program.pte", [folder / "input_0.bin"], tmp_path)
    assert (tmp_path / "output_0.bin").read_bytes() == (folder / "expected_output_0.bin").read_bytes()
    assert "--manifest" not in (folder / "README.md").read_text()


def test_components_are_those_of_the_operators(unpacked: Callable[..., Path]) -> None:
    folder = unpacked("ethos_u55_128")
    layer = yaml.safe_load((folder / cmsis.LAYER).read_text())["layer"]
    names = [entry["component"] for entry in layer["components"]]
    assert names == [
        "Machine Learning:ExecuTorch:Runtime",
        "Machine Learning:ExecuTorch:Kernel Utils",
        "Machine Learning:ExecuTorch:Kernel Registration",
        "Machine Learning:ExecuTorch:Backend EthosU",
        "Machine Learning:ExecuTorch Operators:Quantized dequantize",
        "Machine Learning:ExecuTorch Operators:Quantized quantize",
    ]
    for entry in layer["groups"][0]["files"]:
        assert (folder / entry["file"]).is_file()
    solution = yaml.safe_load((folder / cmsis.SOLUTION).read_text())["solution"]
    assert solution["projects"] == [{"project": f"./{cmsis.PROJECT}"}]
    assert layer["packs"] == [solution["packs"][0]]
    metadata: dict[str, Any] = {"delegates": ["NeutronBackend"], "operators": ["aten::_softmax.out", "aten::add.out",
                "aten::add.Scalar_out", "cortex_m::quantize_per_tensor.out"]}  # fmt: skip
    assert cmsis.components(metadata)[3:] == ["ARM::CMSIS:NN Lib"] + [
        f"Machine Learning:ExecuTorch Operators:{name}"
        for name in ("Cortex-M quantize_per_tensor", "Portable add", "Portable softmax")
    ]
    assert cmsis.without_component(metadata) == ["NeutronBackend"]
    assert "NeutronBackend" in (unpacked("neutron_imxrt700") / cmsis.LAYER).read_text()


@pytest.mark.parametrize("name", ["board: rev 2", "Sensor #2", '"quoted" 100 % \\', "büro 😀"])
def test_a_target_of_any_name_is_text_in_yaml(name: str) -> None:
    """A colon made a mapping or an error of the description, and ` #` cut it."""
    metadata: dict[str, Any] = {
        "delegates": [], "operators": [], "program": {"sha256": "ab" * 32}, "versions": {"executorch": "1.5.1"},
        "requirements": {"kernel_definitions": []}, "target": {"name": name, "options": {"system_config": "A: b #c"}},
    }  # fmt: skip
    files = cmsis.files(metadata, [])
    assert yaml.safe_load(files[cmsis.LAYER])["layer"]["description"] == f"{name}, program abababababab"
    mlops = yaml.safe_load(files[cmsis.SOLUTION])["solution"]["mlops"]
    assert mlops == {"description": name, "vela": {"system": "A: b #c"}}


def test_an_array_is_never_named_like_a_header_of_the_bundle() -> None:
    """`sample_format.h` was written over the program."""
    sources = Path(cmsis.__file__).with_name("sources")
    headers = [*sources.rglob("*.h"), *serial_board.SOURCES, Path("model_config.h"), Path(RECORD), Path(HEADER)]
    names = {path.stem for path in headers} | {"audio_tables", "detection_tables", "main", "std", "executorch"}
    for name in (*names, "lowerdeck_inputs", "LOWERDECK_METHOD", "linux"):
        with pytest.raises(ValueError, match=r"has already|is a keyword or macro"):
            TypeAdapter(FirmwareConfig).validate_json(json.dumps({"name": "cortex_m", "array_name": name}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["string", "index", "application", "Tensor"])
def test_an_array_with_the_name_of_something_else(lowered: Callable[[str], Lowered], tmp_path: Path, name: str) -> None:
    """Headers of the system were hidden by the program's, and names of theirs or of main.cpp were taken."""
    TypeAdapter(FirmwareConfig).validate_json(json.dumps({"name": "cortex_m", "array_name": name}))
    base, folder = lowered("xnnpack_cpu"), tmp_path / "bundle"
    placement = dataclasses.replace(PLACEMENT, array_name=name)
    write(bundled(base, base.folder, placement=placement), folder)
    answer = ran(configured(folder, tmp_path / "out", "g++"), folder=tmp_path)
    assert answer.returncode == 0, answer.stdout


def test_zephyr_gets_the_same_pools(unpacked: Callable[..., Path]) -> None:
    folder = unpacked("ethos_u55_128")
    kconfig, header = (folder / "zephyr/Kconfig").read_text(), (folder / "src/model_config.h").read_text()
    for name in ("METHOD", "TEMPORARY"):
        default = re.search(rf"config LOWERDECK_{name}_POOL_BYTES\n.*\n\tdefault (\d+)", kconfig)
        assert default
        assert f"#define LOWERDECK_{name}_POOL_BYTES {default[1]}u" in header
    module = yaml.safe_load((folder / "zephyr/module.yml").read_text())
    assert (folder / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (folder / module["build"]["kconfig"]).is_file()


def test_the_record_stands_in_readme_header_and_metadata(unpacked: Callable[..., Path]) -> None:
    folder = unpacked("ethos_u55_128")
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert b'LOWERDECK_BUILD_KEY ""' in files["src/build_record.h"]
    made = recorded(
        files, "ab" * 32, [("delegated accuracy", "98.89 % of 360 samples"), ("gate max_x", "5: passed */")]
    )
    assert made == recorded(
        files, "ab" * 32, [("delegated accuracy", "98.89 % of 360 samples"), ("gate max_x", "5: passed */")]
    )
    header = made["src/build_record.h"].decode()
    assert f'#define LOWERDECK_BUILD_KEY "{"ab" * 32}"' in header
    assert "delegated accuracy: 98.89 %" in header
    assert header.count("*/") == 1
    assert f"Build key `{'ab' * 32}`" in made["README.md"].decode()
    metadata = json.loads(made["metadata.json"])
    assert metadata["record"]["results"]["gate max_x"] == "5: passed */"
    assert set(metadata["files"]) == set(made) - {"metadata.json"}
    assert recorded({"README.md": b"none"}, "k", []) == {"README.md": b"none"}
    for option in ("system_config", "memory_mode"):
        value = metadata["target"]["options"][option]
        assert f"`{value}`" in made["README.md"].decode()
        assert c_string(value) in made["src/model_config.h"].decode()


def test_literals_are_safe() -> None:
    assert c_string('a"b\\?ß1') == '"a\\042b\\134\\077\\303\\2371"'
    assert [c_float(value) for value in (0.0, 1.0, 0.1, 1e-30)] == ["0.0e+00f", "1.0e+00f", "1.0e-01f", "1.0e-30f"]
    assert record_header("", []).count("*/") == 1


def test_the_threshold_of_an_anomaly_is_a_constant_of_the_record() -> None:
    assert "#define LOWERDECK_ANOMALY_THRESHOLD 0.125\n" in record_header("", [], 0.125)
    assert "THRESHOLD" not in record_header("", [])
