"""Loads weights from files of accepted formats, without executing pickles."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.formats.regular_files import endless_kind
from lowerdeck.formats.tensor_header import METADATA, read_header
from lowerdeck.graph.source_lines import raised_at
from lowerdeck.registry.bundled_data import where_to_get

if TYPE_CHECKING:
    import torch

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt")
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Prefixes that DataParallel, torch.compile and training frameworks' modules add to every name."""
NESTED = (
    *("model_ema", "ema_state_dict", "state_dict_ema", "ema", "params_ema"),
    *("model_state_dict", "model_state", "state_dict", "model", "network", "net", "module", "shadow", "params"),
)
"""Keys under which training scripts store the state dict, beside the optimizer's. Averaged weights (EMA) come first."""
NUM_NAMED = 3
_MAX_NESTING = 4
_OF_LIGHTNING = ": torch.save(YourModule.load_from_checkpoint(path).state_dict(), 'weights.pt')"


def is_path(weights: str) -> bool:
    """Whether `weights`, with a separator or a checkpoint's suffix, is a file and not one of torchvision's names."""
    return "/" in weights or "\\" in weights or weights.endswith(SUFFIXES)


def check_file(weights: str) -> None:
    """Check a checkpoint without reading its tensors.

    Raises:
        ConfigurationError: it does not exist, has another suffix, or its header names weights of an unsuitable dtype.
    """
    path = Path(weights)
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            f"model.weights is {weights}, with suffix {path.suffix!r}; allowed are {', '.join(SUFFIXES)}. Save them "
            "with safetensors.torch.save_file(model.state_dict(), path)."
        )
    if kind := endless_kind(path):
        raise ConfigurationError(f"model.weights is {weights}, which is {kind}; name a regular file")
    if not path.is_file():
        raise ConfigurationError(
            f"model.weights is {weights}, which does not exist; correct the path (it is relative to the working folder "
            f"of the command), or set it to null for random weights{where_to_get(path)}"
        )
    if path.suffix == ".safetensors":
        _check_dtypes(weights, _safetensors_dtypes(path))


def load_into(model: torch.nn.Module, weights: str, ignored_prefixes: Iterable[str] = ()) -> None:
    """Load a checkpoint into `model`, strictly.

    What modules add by get_extra_state is handed over where the file has it. One that is no tensor may be missing,
    because safetensors cannot store it; the model then keeps its own.

    Args:
        model: any module; its parameters and buffers are overwritten
        weights: path of a state dict, which may be nested under one of NESTED in the file
        ignored_prefixes: prefixes of names in the file to ignore

    Raises:
        ConfigurationError: names, shapes or dtypes differ from the model's, or values are not finite or do not fit.
        LowerdeckError: the file is missing or damaged, or contains more than tensors, or the model's own code for
            loading raised an error.
    """
    check_file(weights)
    stored = read(weights)
    metadata, state = _without_wrappers(stored, model)
    ignored = tuple(ignored_prefixes)
    kept = {name: value for name, value in state.items() if not (ignored and name.startswith(ignored))}
    state, own = _tensors(kept), _tensors(model.state_dict())
    _check_dense(weights, state)
    # Checkpoints of old releases lack these counters, which inference does not use.
    counters = {name: value for name, value in own.items() if name.endswith(".num_batches_tracked")}
    complete = OrderedDict({**counters, **kept})
    # Modules read the version of their layout here, and torchvision's MNASNet requires it. safetensors cannot store it,
    # so such a file is treated as one of the current version.
    complete._metadata = metadata or getattr(model.state_dict(), "_metadata")  # type: ignore[attr-defined]  # noqa: B009
    _check_dtypes(
        weights,
        {
            name: str(value.dtype).removeprefix("torch.")
            for name, value in state.items()
            if name in own and own[name].is_floating_point() and not _is_plain_float(value)
        },
    )
    tied = _tied(own)
    _check_tied(weights, state, tied)
    misshaped = [
        f"{name} is {list(value.shape)} in the file and {list(own[name].shape)} in the model"
        for name, value in state.items()
        if name in own and value.shape != own[name].shape
    ]
    try:
        # Not strict, because modules may rename entries of older versions; the result is checked below.
        result = model.load_state_dict(complete, strict=False)
    except Exception as error:  # torch's, and what the model's own code raises
        if not misshaped and _is_of_torch(error):
            misshaped = [" ".join(str(error).split())]
        _raise_mismatch(model, weights, {"of another shape": misshaped})
        raise LowerdeckError(
            f"{type(model).__name__} does not take model.weights {weights}: its own code for loading raised "
            f"{type(error).__name__}: {_first_line(error)}{raised_at(error)}. Correct it (set_extra_state, "
            "_load_from_state_dict or a hook of load_state_dict), or use a checkpoint that it can read"
        ) from error
    else:
        missing = {name for name in result.missing_keys if name in own or not _is_extra_state(name)}
        # A file has one name of what a model has by several: safetensors.torch.save_model leaves the others out.
        missing -= {name for names in tied if not missing.issuperset(names) for name in names}
        lacking = [name for name in result.missing_keys if name in missing]
        faults = {"missing": lacking, "unexpected": result.unexpected_keys}
        _raise_mismatch(model, weights, faults, _advice_on_prefixes(weights, stored, own))
    _check_whole(weights, state, own)
    # In the file's dtype and in the model's, whose range may be smaller.
    _check_finite(weights, {**state, **_tensors(model.state_dict())})


def class_names(weights: str | None) -> tuple[str, ...]:
    """The names of classes in a checkpoint: a JSON list as `class_names` of a safetensors file's metadata; else none.

    Raises:
        ConfigurationError: the metadata is no list of names.
    """
    if weights is None or not weights.endswith(".safetensors"):
        return ()
    from safetensors import safe_open

    with safe_open(weights, "numpy") as file:
        text = (file.metadata() or {}).get("class_names")
    try:
        names = json.loads(text) if text is not None else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"model.weights is {weights!r}, whose metadata has class_names {text!r}; it must be a JSON list of names"
        )
    return tuple(names)


def _safetensors_dtypes(path: Path) -> dict[str, str]:
    """Dtypes in the header of a file that cannot be those of weights; empty if the header is damaged.

    Counters and masks are buffers of integers, so that without the model only names tell what has to be floats.
    """
    try:
        with path.open("rb") as file:
            entries, _ = read_header(file)
        dtypes = {name: str(entry["dtype"]) for name, entry in entries.items() if name != METADATA}
    except (ValueError, KeyError, TypeError):
        return {}  # `read` reports the damage
    return {
        name: dtype
        for name, dtype in dtypes.items()
        if dtype.startswith(("C", "F8", "F6_", "F4"))
        or (name.endswith((".weight", ".bias")) and not dtype.startswith(("F", "BF")))
    }


def _check_dtypes(weights: str, found: Mapping[str, str]) -> None:
    if found:
        listed = _format_names([f"{name} is {dtype}" for name, dtype in found.items()])
        raise ConfigurationError(
            f"model.weights is {weights}, with {len(found)} tensors of a dtype that the float model cannot take "
            f"({listed}); allowed are floating-point numbers of 16, 32 or 64 bits: save the weights before "
            "quantization, as float32"
        )


def _check_dense(weights: str, state: Mapping[str, torch.Tensor]) -> None:
    """Raise ConfigurationError where tensors have no values, or not one for each element."""
    import torch

    found = [
        f"{name} is {'meta' if value.is_meta else 'nested' if value.is_nested else str(value.layout).split('.')[1]}"
        for name, value in state.items()
        if value.is_meta or value.is_nested or value.layout != torch.strided
    ]
    if found:
        raise ConfigurationError(
            f"model.weights is {weights}, with {len(found)} tensors that are not dense ({_format_names(found)}); save "
            "`value.to_dense()` of sparse ones, and of those on the device meta, which have no values, the trained ones"
        )


def _is_plain_float(value: torch.Tensor) -> bool:
    """Whether PyTorch computes with such numbers; those of 8 bits are only stored."""
    return value.is_floating_point() and value.element_size() > 1


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A state dict without what modules add by get_extra_state, which may be anything."""
    import torch

    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _is_extra_state(name: str) -> bool:
    """Whether a module's get_extra_state returned what has this name in a state dict."""
    return name.rpartition(".")[2] == "_extra_state"


def _tied(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """All names of each tensor that has several, such as an embedding that is also the weight of the last layer."""
    names: dict[Any, list[str]] = {}
    for name, value in state.items():
        if value.numel():
            names.setdefault((value.data_ptr(), value.shape, value.stride()), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _check_tied(weights: str, state: Mapping[str, torch.Tensor], tied: Iterable[Sequence[str]]) -> None:
    for names in tied:
        first, *others = [name for name in names if name in state] or [""]
        for name in others:
            dtype = min(state[name], state[first], key=lambda value: value.element_size()).dtype
            one, other = state[first].to(dtype), state[name].to(dtype)  # a copy may be stored in half precision
            if one.shape == other.shape and not one.equal(other):  # other shapes are named with the model's
                raise ConfigurationError(
                    f"model.weights is {weights}, where {first} and {name} differ, and the model has one tensor for "
                    "both (tied weights); use a checkpoint of this model, or build the model without tying them"
                )


def _check_whole(weights: str, state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """Loading cuts off what an integer or boolean buffer cannot hold; all integers but 0 are true."""
    import torch

    for name, value in state.items():
        if name not in own or own[name].is_floating_point() or own[name].is_complex():
            continue
        if own[name].dtype == torch.bool and not value.is_floating_point():
            continue
        if count := int((value.to(own[name].dtype).to(value.dtype) != value).sum()):
            stored, wanted = (str(each.dtype).removeprefix("torch.") for each in (value, own[name]))
            raise ConfigurationError(
                f"model.weights is {weights}, where {name} is {stored} in the file and {wanted} in the model, which "
                f"cannot hold {count} of {value.numel()} values; save it as {wanted}"
            )


def _check_finite(weights: str, state: Mapping[str, torch.Tensor]) -> None:
    counts = {name: int((~value.isfinite()).sum()) for name, value in state.items() if value.is_floating_point()}
    wrong = [f"{count} of {state[name].numel()} values of {name}" for name, count in counts.items() if count]
    if wrong:
        raise ConfigurationError(
            f"model.weights is {weights}, where {_format_names(wrong)} are NaN or infinite in the model's dtype; a "
            "training that diverged leaves such weights: use an earlier checkpoint"
        )


def read(weights: str) -> Mapping[str, Any]:
    """The state dict in a file, on the CPU: tensors, and what modules added by get_extra_state.

    Raises:
        LowerdeckError: it is damaged, or is not a mapping of names to these.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if weights.endswith(".safetensors"):
            return load_file(weights)
        loaded = torch.load(weights, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise LowerdeckError(
            f"{weights} contains more than tensors, or is damaged{_refused_name(error)}. Whole pickled models are not "
            "loaded, because a pickle can run any code; save model.state_dict() instead"
            f"{_OF_LIGHTNING if weights.endswith('.ckpt') else '.'}"
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        if _is_torchscript(weights):
            raise LowerdeckError(
                f"{weights} is a TorchScript archive, which is more than weights; save these alone: "
                "torch.save(torch.jit.load(path).state_dict(), 'weights.pt')"
            ) from error
        raise LowerdeckError(f"{weights} cannot be read as weights: {_first_line(error)}") from error
    found = _state_dict_in(loaded)
    if not _is_state_dict(found):
        raise LowerdeckError(
            f"{weights} contains {_description(found)}; allowed is a state dict (tensors by name), which may be "
            f"nested under one of {', '.join(NESTED)}"
        )
    state: Mapping[str, Any] = found
    return state


def _is_state_dict(loaded: object) -> bool:
    """Whether it is a mapping of names to tensors, and to what modules added by get_extra_state."""
    import torch

    return isinstance(loaded, Mapping) and all(
        isinstance(name, str) and (isinstance(value, torch.Tensor) or _is_extra_state(name))
        for name, value in loaded.items()
    )


def _state_dict_in(loaded: object, depth: int = 0) -> Any:
    """The state dict in the content of a checkpoint: itself, or what a usual key names, one inside the other.

    A key below which there is none, e.g. the settings of the averages, is passed over; the content itself is what is
    left where no key leads to one.
    """
    nested = [loaded.get(key) for key in NESTED] if isinstance(loaded, Mapping) and depth < _MAX_NESTING else []
    found = [_state_dict_in(inner, depth + 1) for inner in nested if isinstance(inner, Mapping) and inner]
    states = [each for each in found if _is_state_dict(each)]
    # Settings may be tensors, too.
    return next(
        (each for each in states if any(getattr(value, "ndim", 0) for value in each.values())),
        next(iter(states), loaded),
    )


def _is_torchscript(weights: str) -> bool:
    """Whether torch.jit.save wrote the file: by the entry that torch looks for, too."""
    if not zipfile.is_zipfile(weights):
        return False
    with zipfile.ZipFile(weights) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _refused_name(error: pickle.UnpicklingError) -> str:
    """The name in the pickle that torch refused. The rest of its message advises turning the protection off."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f" (it refers to {found.group(1)})" if found else ""


def _without_wrappers(state: Mapping[str, Any], model: torch.nn.Module) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Layout versions and values, without prefixes that all names have in the file and that the model lacks.

    Its own names may begin with one of WRAPPERS, too; those in the file lose as many as make most names the model's.
    """
    own = model.state_dict().keys()
    metadata: dict[str, Any] | None = getattr(state, "_metadata", None)
    tensors = dict(state)
    if "n_averaged" in tensors and "n_averaged" not in own:
        del tensors["n_averaged"]  # the counter of torch.optim.swa_utils.AveragedModel
    found = [(metadata, tensors)]
    while (prefix := _wrapper(tensors)) is not None:
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        if metadata is not None:
            metadata = {name.removeprefix(prefix): value for name, value in metadata.items()}
        found.append((metadata, tensors))
    # Modules may rename all entries of an older version; then the wrapper that the model has tells.
    return max(found, key=lambda each: (len(own & each[1].keys()), _wrapper(each[1]) == _wrapper(own)))


def _wrapper(names: Collection[str]) -> str | None:
    """The one of WRAPPERS that all names begin with."""
    return next((prefix for prefix in WRAPPERS if names and all(name.startswith(prefix) for name in names)), None)


def _raise_mismatch(
    model: torch.nn.Module, weights: str, faults: Mapping[str, list[str]], advice: str | None = None
) -> None:
    named = [f"{len(names)} {kind} ({_format_names(names)})" for kind, names in faults.items() if names]
    if named:
        advice = advice or (
            "Use a checkpoint of this architecture, or set model.options (e.g. num_classes) to what it was trained with"
        )
        raise ConfigurationError(
            f"model.weights {weights} do not fit {type(model).__name__}: {'; '.join(named)}. {advice}."
        )


def _advice_on_prefixes(weights: str, stored: Mapping[str, Any], own: Collection[str]) -> str | None:
    """How to save the part of a file that has the model's names behind a prefix; None where no part has all of them.

    Training frameworks store their losses and metrics beside the network.
    """
    needed = {name for name in own if not name.endswith(".num_batches_tracked")}
    first = min(needed, default="")
    parts: dict[str, set[str]] = {}
    for prefix in [name.removesuffix(first) for name in stored if first and name.endswith(f".{first}")]:
        names = {name.removeprefix(prefix) for name in stored if name.startswith(prefix)}
        if needed <= names and all(name in own or _is_extra_state(name) for name in names):
            parts[prefix] = {name for name in stored if not name.startswith(prefix)}
    if not parts:
        return None
    chosen, left = next(iter(parts.items()))
    line = (
        "import torch; from lowerdeck.models.checkpoints import read; "
        f"torch.save({{name.removeprefix({chosen!r}): value for name, value in read({weights!r}).items() "
        f"if name.startswith({chosen!r})}}, 'weights.pt')"
    )
    return (
        f"The model's names are all there behind {' and behind '.join(parts)}: save these alone, by `{line}`, which "
        f"leaves out {_format_names(sorted(left))}"
    )


def _format_names(names: list[str]) -> str:
    more = f", and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more


def _description(loaded: object) -> str:
    if not isinstance(loaded, Mapping):
        return f"a {type(loaded).__name__}"
    return f"a dictionary with {_format_names([str(key) for key in loaded])}"


def _is_of_torch(error: Exception) -> bool:
    """Whether load_state_dict raised it: in a RuntimeError, it lists what it could not copy."""
    return isinstance(error, RuntimeError) and str(error).startswith("Error(s) in loading state_dict for")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
