"""The README of a bundle: instructions for the firmware engineer, with the facts of the build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_REGISTRATION = {
    "NeutronBackend": (
        "To register `NeutronBackend`, link all of `executorch_delegate_neutron` (`--whole-archive`), together with "
        "NXP's Neutron driver and firmware library of the SDK release that made the program."
    ),
    "EthosUBackend": (
        "To register `EthosUBackend`, link all of `executorch_delegate_ethos_u` (`--whole-archive`), together with "
        "Arm's Ethos-U core driver."
    ),
    "XnnpackBackend": (
        "To register `XnnpackBackend`, link all of `xnnpack_backend` (`--whole-archive`). It is meant for application "
        "processors."
    ),
}

_PROJECT_PARTS = """\
- Another board: implement the functions of `src/platform.h`, and `lowerdeck_put` and `lowerdeck_get` of
  `src/line_protocol.h`, in a file of your own. Pass it as `-DLOWERDECK_PLATFORM=...`, together with
  `-DEXECUTORCH_ROOT=...` and your toolchain file.
- CMSIS: `lowerdeck.clayer.yml` names the components of the pack PyTorch::ExecuTorch that this program needs;
  add your board to `lowerdeck.csolution.yml`.
- Zephyr: this folder is a module (`-DZEPHYR_EXTRA_MODULES=...`) beside ExecuTorch's own, pool sizes in Kconfig.
- `src/model_config.h` sizes all pools; `src/model.c` describes inputs, outputs and class names.
- `src/postprocess.h` converts outputs to real values, and computes the best class and softmax."""


def readme(metadata: Mapping[str, Any]) -> str:
    """The page for one bundle.

    Args:
        metadata: metadata.json, without the hashes of the files.
    """
    return "\n\n".join(_paragraphs(metadata)) + "\n"


def failed_readme(target: str, failure: str) -> str:
    """The page in place of a bundle that could not be made, because of `failure`."""
    return (
        f"# {target}: no bundle for firmware\n\n**The bundle could not be made:** {failure}\n\n"
        "The build has its `.pte` in build/convert, which nothing here has executed: do not ship it.\n"
    )


def _paragraphs(metadata: Mapping[str, Any]) -> Iterator[str]:
    program, converter = metadata["program"], metadata["converter"]
    yield f"# {metadata['target']['name']}: an ExecuTorch program for firmware"
    for caveat in metadata["caveats"]:
        yield f"**{caveat[0].upper()}{caveat[1:].rstrip('.')}.**"
    yield (
        f"{program['bytes']:,} bytes, made with ExecuTorch {metadata['versions']['executorch']} and "
        f"{converter['name']} {converter['version']} (flavor `{converter['flavor']}`). SHA-256 "
        f"`{program['sha256']}`. metadata.json has all of "
        "the following in machine-readable form, and the SHA-256 of every file. Nothing here was run on the device."
    )
    yield from _settings(metadata["target"]["options"])
    yield from _project(metadata)
    yield from _header(program, metadata["data_files"])
    yield from _tensors(metadata)
    yield "## Delegates and operators"
    yield "\n".join(_registration(metadata))
    yield from _memory(metadata["memory"])
    if "memory_budget" in metadata:
        yield "In the memories that the target names:"
        yield "\n".join(f"- {line}" for line in metadata["memory_budget"]["lines"])
    yield from _check(metadata)
    yield from _measured_on_a_board()


def _settings(options: Mapping[str, Any]) -> Iterator[str]:
    """What the NPU's compiler assumed of the board's memories; firmware has to give the same."""
    chosen = [
        f"{name.replace('_', ' ')} `{options[name]}`" for name in ("system_config", "memory_mode") if options.get(name)
    ]
    if chosen:
        yield f"Compiled for {' and '.join(chosen)}: the board's memories must match these."


def _project(metadata: Mapping[str, Any]) -> Iterator[str]:
    yield "## The project"
    yield (
        "`src/main.cpp` loads the program, executes the test vector and prints the outputs on the serial port, in the "
        "format of `src/line_protocol.h`. On a host it builds with the C++ libraries of ExecuTorch's Python package:"
    )
    yield (
        "    cmake -S . -B out "
        "-DCMAKE_PREFIX_PATH=\"$(python -c 'import executorch; print(executorch.__path__[0])')\"\n"
        "    cmake --build out && out/lowerdeck_firmware < /dev/null"
    )
    yield "\n".join([_PROJECT_PARTS, *(f"- {part['purpose']}" for part in metadata["optional_sources"])])
    if metadata["target"]["backend"] != "xnnpack" and metadata["delegates"]:
        yield "A host has no such NPU, so the application ends with `error where=load_method` there."


def _header(program: Mapping[str, Any], data_files: list[str]) -> Iterator[str]:
    header = program["header"]
    yield "## The program"
    yield (
        f"`{header['file']}` defines `{header['array_name']}` with `{header['size_macro']}` bytes, aligned to "
        f"{header['alignment_bytes']}. Include it in one source file:"
    )
    yield f'    #include "{header["file"]}"'
    yield (
        f"    executorch::extension::BufferDataLoader loader({header['array_name']}, {header['size_macro']});\n"
        "    auto program = executorch::runtime::Program::load(&loader);\n"
        f'    auto method = program->load_method("{program["method"]}", &memory_manager);'
    )
    placed = "The array has no section of its own; the linker places it with the other constants."
    if header["section"] is not None:
        placed = (
            f"The array is in section `{header['section']}`, which the linker script has to place in memory that both "
            "CPU and NPU can read. `firmware.section` in the build's configuration renames it."
        )
    reads = (
        f"\nIt also needs {', '.join(f'`{name}`' for name in data_files)}: pass `load_method` a NamedDataMap with that "
        "content, or the delegate fails to load."
    )
    yield f"{placed}\n`program.pte` is the same program as a file.{reads if data_files else ''}"


def _tensors(metadata: Mapping[str, Any]) -> Iterator[str]:
    yield "## Inputs and outputs"
    table = ["| | name | type | shape | dim order | real value |", "| --- | --- | --- | --- | --- | --- |"]
    for kind in ("input", "output"):
        for index, tensor in enumerate(metadata[f"{kind}s"]):
            bound = "up to " if tensor["is_dynamic"] else ""
            table.append(
                f"| {kind} {index} | {tensor['name']} | {tensor['dtype']} | {bound}{list(tensor['shape'])} | "
                f"{list(tensor['dim_order'])} | {_real(tensor)} |"
            )
    yield "\n".join(table)
    explanation = (
        "Dim order lists the dimensions from outermost to innermost in memory. Integers that stand for floats saturate "
        "at the limits given."
    )
    if constants := ", ".join(f"`{name}`" for name in metadata["program"]["constant_methods"]):
        explanation += f"\nThe program returns the same from its methods without inputs: {constants}."
    yield explanation
    if metadata["sample_format"]:
        yield (
            f"{' and '.join(f'`{name}`' for name in metadata['sample_format'])} describe how a stored sample becomes "
            "the input (size, scale, mean, deviation ...), and list the class names by index."
        )


def _registration(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a list."""
    for delegate, count in Counter(metadata["delegates"]).items():
        known = _REGISTRATION.get(delegate, f"`{delegate}` has to be registered.")
        yield f"- {known} The program has {count} partition{'s'[: count > 1]} for it."
    if names := metadata["requirements"]["kernel_definitions"]:
        listed = " and ".join(f"`{name}`" for name in names)
        yield (
            f"- **Build the kernels with {listed}**, CMSIS-NN and ExecuTorch's operators for Cortex-M alike: the "
            "program was checked for it, and without it results differ from the test vector. CMakeLists.txt and the "
            "CMSIS layer define it; Zephyr needs it for ExecuTorch's module too: "
            f"`west build -- -DEXTRA_CFLAGS=-D{names[0]} -DEXTRA_CXXFLAGS=-D{names[0]}`."
        )
    if operators := metadata["operators"]:
        yield f"- Kernels to register: {', '.join(f'`{name}`' for name in operators)}."
        yield (
            "  With `-DEXECUTORCH_SELECT_OPS_MODEL=program.pte`, ExecuTorch's CMake build links only these; "
            "`selected_operators.yaml` is the file that its generator writes for that, with the dtypes of every call."
        )
    else:
        yield "- No kernels: everything is delegated, `selected_operators.yaml` is empty."
    if metadata["kernel_selection"] is not None:
        yield f"- `{metadata['kernel_selection']}` names the NPU's kernels to link; compile it into the firmware."
    else:
        yield "- There is no kernel-selection source, because the converter was not asked for one or has none."


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    method, scratch = memory["method_allocator_bytes"], memory["scratch_bytes"]
    yield "## Memory to reserve"
    table = ["| what | bytes |", "| --- | --- |"]
    for arena, size in memory["planned_bytes"].items():
        table.append(f"| planned memory, id {arena} (a buffer of the HierarchicalAllocator) | {size:,} |")
    table.append(f"| method allocator, 32-bit processor | about {method['32_bit']:,} |")
    explanation = f"The method allocator's size is an {method['source']}."
    if (largest := scratch["largest"]) is not None:
        table.append(f"| scratch of the delegate, from the temporary allocator, 16-byte aligned | {largest:,} |")
        explanation += (
            f"\nScratch is the largest of the partitions, by {scratch['source']}; the driver and kernels may take "
            "more from the temporary allocator."
        )
    yield "\n".join(table)
    yield explanation


def _check(metadata: Mapping[str, Any]) -> Iterator[str]:
    vector = metadata["test_vector"]
    yield "## Check with the test vector"
    yield (
        "`input_N.bin` is a sample of the calibration data in the form that the program takes. `expected_output_N.bin` "
        f"is what the program returned on a host, executed by {vector['executed_by']}. Both are raw memory, "
        "little-endian; the `.npy` files have the same values in the logical order of dimensions. "
        f"`{vector['bundled_program']}` is a BundledProgram with the same test case."
    )
    if vector.get("first_call_only"):
        yield (
            "The program keeps state between calls: the expected outputs are those of the first call after it was "
            "loaded. Loading it again returns to the initial state, which is stored in the program."
        )
    if (front_end := metadata["front_end"]) is not None:
        listed = ", ".join(f"{name} {value}" for name, value in front_end.items() if value is not None)
        yield (
            "The sample came from the front end of `src/audio_front_end.h`: `front_end_signal` holds the float32 "
            "samples, -1 ... 1, on which the inputs of the vector depend, and `front_end_features` their features "
            f"[frames x features] before they are arranged and quantized as the input. Its parameters: {listed}."
        )
    yield "On a host, the outputs are equal byte for byte:"
    # A `.bin` file has no shape: `lowerdeck run` assumes the largest that the program accepts.
    suffixes = {f"input_{index}": "npy" if it["is_dynamic"] else "bin" for index, it in enumerate(metadata["inputs"])}
    inputs = " ".join(f"{name}.{suffix}" for name, suffix in suffixes.items())
    yield (
        f"    lowerdeck run program.pte --inputs {inputs} --output result\n"
        "    cmp result/output_0.bin expected_output_0.bin"
    )
    if metadata["target"]["backend"] != "xnnpack" and not metadata["twins"]:
        yield "(If `lowerdeck run` asks for host twins, pass `--manifest` and `--twins` of the build, build/convert.)"
    steps = [output["step"] for output in metadata["outputs"]]
    if any(step is not None for step in steps):
        listed = ", ".join(f"output {index}: {step:g}" for index, step in enumerate(steps) if step is not None)
        yield (
            f"On the device, compare in steps of the output's quantization ({listed}). Kernels may round "
            "differently by a step, and deep networks amplify such differences: judge a deviation by the predicted "
            "classes and by its mean over the outputs, not by its maximum. No tolerance was measured on hardware."
        )
    else:
        yield (
            "On the device, compare floats with a tolerance, because kernels may sum in another order. No tolerance "
            "was measured on hardware."
        )


def _measured_on_a_board() -> Iterator[str]:
    yield "## Measure it on a board"
    yield (
        "After the test vector, the application serves `lowerdeck` on the host, which sends other inputs and times the "
        "program. Your own firmware can do the same with `src/lowerdeck_board.h` and `src/line_protocol.h`. On the "
        "host, with the board's port in `device.options.port`:"
    )
    yield "    lowerdeck measure program.pte --on serial_board"


def _real(tensor: Mapping[str, Any]) -> str:
    if tensor["scale"] is None:
        return "as it is"
    limits = f"stored {tensor['quant_min']} ... {tensor['quant_max']}"
    return f"{tensor['scale']!r} x (stored - {tensor['zero_point']}), {limits}"
