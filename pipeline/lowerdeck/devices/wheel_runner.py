"""Executes a program with ExecuTorch's wheel, in a process of its own, on this machine or on a board.

Run as a script that needs no other file of the project: Python, PyTorch and ExecuTorch are enough. Standard input is a
line of JSON, then the `.pte`, then the inputs of all samples; standard output is a line of JSON, then the outputs of
all samples, then the ETDump. devices/wheel.py writes the one and reads the other.

The exit code is 0 on success and 1, with a message on standard error, where the runtime reports an error.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from typing import Any, BinaryIO


def main() -> int:
    """Execute the program that standard input describes."""
    request = sys.stdin.buffer
    described = json.loads(request.readline())
    data = request.read(described["program_bytes"])
    # Libraries print to standard output; the answer goes where it led, and everything else to standard error.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _execute(described, data, request, answer)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _execute(described: dict[str, Any], data: bytes, request: BinaryIO, answer: BinaryIO) -> None:
    import executorch.kernels.quantized  # noqa: F401  registers its operators
    import torch
    from executorch.extension.pybindings import _C

    samples = [[_tensor(spec, request.read(spec["bytes"])) for spec in sample] for sample in described["samples"]]
    torch.set_num_threads(described["num_threads"])
    _C._unsafe_reset_threadpool(described["num_threads"])
    before = _peak_memory(reset=True)
    load = _C._load_for_executorch_from_buffer
    module, outputs = load(data), []
    for number, sample in enumerate(samples):
        if number and described["keeps_state"]:
            module = load(data)
        outputs.append(list(module.run_method("forward", tuple(sample), clone_outputs=True)))
    metrics = {}
    if before is not None and (after := _peak_memory()) is not None:
        metrics["peak_process_memory_bytes"] = after - before
    latencies_ns = []
    if samples and described["repetitions"]:
        first = tuple(samples[0])
        for _ in range(described["warm_up"]):
            module.run_method("forward", first, clone_outputs=True)
        for _ in range(described["repetitions"]):
            start = time.perf_counter_ns()
            module.run_method("forward", first, clone_outputs=True)
            latencies_ns.append(time.perf_counter_ns() - start)
    etdump = _profile(load, data, tuple(samples[0]), described) if samples and described["profile"] else b""
    logged = b"", b""
    if samples and described["debug_buffer_bytes"]:
        logged = _intermediates(load, data, tuple(samples[0]), described["debug_buffer_bytes"])
    contents = [[_content(tensor) for tensor in sample] for sample in outputs]
    head = {
        "outputs": [[_described(tensor) for tensor in sample] for sample in outputs],
        "latencies_ns": latencies_ns,
        "metrics": metrics,
        "program_sha256": hashlib.sha256(data).hexdigest(),
        "runtime": f"executorch {importlib.metadata.version('executorch')}, {platform.machine()}",
        "etdump_bytes": len(etdump),
        "intermediates_bytes": [len(part) for part in logged],
    }
    answer.write(json.dumps(head).encode() + b"\n")
    answer.write(b"".join(content for sample in contents for content in sample) + etdump + b"".join(logged))
    answer.close()


def _profile(load: Any, data: bytes, inputs: tuple[Any, ...], described: dict[str, Any]) -> bytes:
    """ETDump of executions of their own: writing it down takes time that latencies must not contain."""
    import tempfile
    from pathlib import Path

    warm = load(data)
    for _ in range(described["warm_up"]):
        warm.run_method("forward", inputs, clone_outputs=True)
    module = load(data, enable_etdump=True)
    for _ in range(max(1, described["repetitions"])):
        module.run_method("forward", inputs, clone_outputs=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.etdp")
        module.write_etdump_result_to_file(str(path))
        return path.read_bytes()


def _intermediates(load: Any, data: bytes, inputs: tuple[Any, ...], buffer_bytes: int) -> tuple[bytes, bytes]:
    """ETDump of one execution with all tensors that operators use, and the buffer that it refers to."""
    import tempfile
    from pathlib import Path

    module = load(data, enable_etdump=True, debug_buffer_size=buffer_bytes)
    module.run_method("forward", inputs, clone_outputs=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "tensors.etdp"), Path(folder, "tensors.bin")
        module.write_etdump_result_to_file(*map(str, paths))
        return paths[0].read_bytes(), paths[1].read_bytes()


def _tensor(spec: dict[str, Any], content: bytes) -> Any:
    import torch

    dtype = getattr(torch, spec["dtype"])
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    shape, order = spec["shape"], spec["dim_order"]
    return flat.reshape([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])


def _content(tensor: Any) -> bytes:
    """The elements of a tensor as they lie in memory."""
    import torch

    flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
    content: bytes = flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return content


def _described(tensor: Any) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "bytes": tensor.numel() * tensor.itemsize,
    }


def _peak_memory(reset: bool = False) -> int | None:
    """Most resident memory of the process since the last reset, in bytes; None where the kernel does not tell."""
    try:
        if reset:
            with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123  pathlib costs a board time
                file.write("5")
        with open("/proc/self/status") as file:  # noqa: PTH123
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["VmHWM"].split()[0])
    except (OSError, KeyError):
        return None


if __name__ == "__main__":
    sys.exit(main())
