"""Why a model cannot be exported: what its code or torch.export raised, at which line of it, and what to change."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.errors import is_full_memory
from lowerdeck.graph import function_transforms, gpu_errors
from lowerdeck.graph.model_copies import copied
from lowerdeck.graph.source_lines import first_line, raised_at

if TYPE_CHECKING:
    from lowerdeck.steps.eager_comparison import Answers

_DATA_DEPENDENT = ("data-dependent", "DataDependent", "Dynamic control flow")
_OF_DTYPES = re.compile(r"dtype|scalar type|same type|type promot|\btypes? .*\b(same|match|cast)", re.IGNORECASE)
"""What kernels say of dtypes; that a class is no known type, and Python's operand types, are something else."""
_SCRIPTED = re.compile(r"Exporting a ScriptModule|forward\(\) takes \d+ positional arguments? but")
"""What torch.export raises for TorchScript; of a model that executes, it says nothing of the model's own calls."""
_OF_TORCH = re.compile(
    r"\s+(If this type holds|Maybe try|This typically means|If you're using torch|The error above occurred|"
    r"Developer debug context)\b.*",
    re.DOTALL,
)
"""What torch.export advises to those who change PyTorch."""
_WRAPPED = (
    "wrap the model in a module whose forward calls only the parts without {}, and name that module as "
    "model.options.factory"
)
_WITHOUT_VALUES = re.compile(r"FakeTensor|FunctionalTensor|numpy|data pointer|tolist", re.IGNORECASE)
_NO_VALUES = (
    "While a model is exported, tensors have no values, and neither sizes nor code outside of PyTorch, such as NumPy's "
    f"or Python's formats, can read them. Write such lines with PyTorch's functions, or {_WRAPPED.format('them')}"
)
_UNKNOWN = (
    "torch.export does not follow what the model does there. Where no line is named, find it by returning earlier "
    f"results from forward. Write it in another way, or {_WRAPPED.format('it')}"
)
_ADVICE = {
    "which is not a known type": (
        "A program returns tensors, alone or in tuples, lists, dicts and dataclasses. Wrap the model in a module whose "
        "forward selects them, e.g. `return self.model(x).out`, and name that module as model.options.factory"
    ),
    " is on meta": "Weights are on the device meta, without values. Let the factory build the model on the CPU",
    "Sparse": (
        "Programs have dense tensors only: call `.to_dense()` on sparse ones in __init__, and compute with dense "
        "ones in forward"
    ),
    "__obj_flatten__": (
        "The model has classes of TorchScript, as quantized modules have. Name the float model, which "
        "quantization.scheme quantizes"
    ),
    "in the exported program constant's list": (
        "forward writes a tensor that is no buffer, or the data of a parameter (`.data`). Compute with a new tensor "
        "instead, or register what changes in __init__, self.register_buffer(NAME, torch.zeros(SHAPE)). Or it "
        "computes a gradient, whose derivative is to be written out; or out_dims of torch.vmap is not 0, where the "
        "result is to be transposed instead"
    ),
    "functorch": function_transforms.GRADIENT_ADVICE,
    "UnsupportedOperatorException": (
        "torch.export does not know what this operator returns. Write it with other operators of PyTorch; one of your "
        "own needs torch.library.register_fake"
    ),
    "FunctionalTensor on its own": (
        "A branch of torch.cond makes a constant, e.g. `torch.tensor(2.0)`, or fills a slice with a number. Make it "
        "before torch.cond and pass it as an operand, or register it as a buffer"
    ),
    "Unexpected key _export_root": (
        "forward catches an exception that a module of the model raises, which torch.export does not follow. Decide by "
        "shapes, before the call, whether the module is called"
    ),
}
"""What to change, by a part of what torch.export raises."""


def export_error(
    model: torch.nn.Module,
    sample: Sequence[torch.Tensor],
    dynamic_dimensions: Sequence[DynamicDimension],
    error: Exception,
    answers: Answers | None = None,
) -> str:
    """The message of a model that cannot be exported.

    Args:
        model: In eval mode; a copy of it is executed.
        sample: Inputs of the shapes and dtypes that it was traced with, with random values.
        dynamic_dimensions: Dimensions of varying size.
        error: What the model's code or torch.export raised.
        answers: What the model returned or raised for samples of the dataset, before.
    """
    text, place = _OF_TORCH.sub("", str(error).strip()), raised_at(error)
    message = f"{type(model).__name__} cannot be exported with inputs of shape {_listed(sample)} (model.input_shapes"
    if any(sign in f"{type(error).__name__} {text}" for sign in _DATA_DEPENDENT):
        return (
            f"{message}): its control flow depends on the values of tensors, and a program has one flow for all: "
            f"{first_line(error)}{place}\nWrite torch.where or torch.cond instead of `if`, and a fixed number of "
            "rounds instead of `while`, or wrap the model in a module whose forward calls only the parts without such "
            "decisions, and name that module as model.options.factory"
        )
    if dynamic_dimensions:
        message += " and model.dynamic_shapes"
    what = f"{type(error).__name__}: {text}"
    raised = _raised_without_export(model, sample, error, answers)
    return f"{message}): {what}{place}\n{_advice(model, sample, dynamic_dimensions, what, raised)}"


def foreign_dtypes(model: torch.nn.Module, inputs: Collection[torch.dtype]) -> set[torch.dtype]:
    """The floating-point dtypes of inputs that no weight of `model` has; none where it has no weights."""
    weights = _weight_dtypes(model)
    return {dtype for dtype in inputs if dtype.is_floating_point} - weights if weights else set()


def _advice(
    model: torch.nn.Module,
    sample: Sequence[torch.Tensor],
    dynamic_dimensions: Sequence[DynamicDimension],
    text: str,
    raised: str | None,
) -> str:
    known = gpu_errors.ADVICE if gpu_errors.is_about_gpu(text) else None
    known = next((advice for sign, advice in _ADVICE.items() if sign in text), known)
    mixed = foreign_dtypes(model, [value.dtype for value in sample])
    if mixed and known is None and _OF_DTYPES.search(text):
        return _dtype_advice(mixed, _weight_dtypes(model))
    if raised is not None:
        is_of_gpu = gpu_errors.is_about_gpu(raised.rpartition(" (at ")[0] or raised)
        advice = gpu_errors.ADVICE if is_of_gpu else "Correct it, or model.input_shapes"
        return f"Without export, the model raises {gpu_errors.without_advice(raised)}. {advice}"
    scripted = [name or "itself" for name, each in model.named_modules() if isinstance(each, torch.jit.ScriptModule)]
    if scripted and _SCRIPTED.search(text):
        return (
            f"Modules of the model are TorchScript (torch.jit), which torch.export does not trace: {scripted[0]}. Name "
            "a factory that builds the original Python modules, with the weights of the state dict; or save "
            "torch.export.export of the original model by torch.export.save, and choose model: exported"
        )
    if known is None and dynamic_dimensions:
        return "If varying sizes are the cause, narrow them, or set multiple_of to the model's divisor of them"
    return known or (_NO_VALUES if _WITHOUT_VALUES.search(text) else _UNKNOWN)


def _raised_without_export(
    model: torch.nn.Module, sample: Sequence[torch.Tensor], error: Exception, answers: Answers | None
) -> str | None:
    """What the model raises when nothing traces it; None also where that is not known.

    Samples of the dataset tell. Random inputs may be none that it takes, such as lengths of zero: they count only where
    tracing, for which inputs have no values, ends alike, or where forward takes another number of inputs.
    """
    if answers is not None and answers.calls:
        return answers.failure
    if any(isinstance(value, FakeTensor) for module in model.modules() for value in vars(module).values()):
        return None  # tracing has left tensors without values in it
    try:
        called = copied(model)
    except Exception as raised:  # whatever a user's code raises
        if is_full_memory(raised):
            raise
        return None
    try:
        with torch.no_grad():
            called(*sample)
    except Exception as raised:  # whatever a user's code raises
        if is_full_memory(raised):
            raise
        text, place = f"{type(raised).__name__}: {first_line(raised)}", raised_at(raised)
        is_not_called = isinstance(raised, TypeError) and not place
        return text + place if is_not_called or text == f"{type(error).__name__}: {first_line(error)}" else None
    return None


def _weight_dtypes(model: torch.nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def _dtype_advice(inputs: Collection[torch.dtype], weights: Collection[torch.dtype]) -> str:
    given, stored = (", ".join(sorted(map(_name, part))) for part in (inputs, weights))
    return (
        f"Inputs are {given} (model.input_dtypes; float32 where it is empty), and the model's weights {stored}. Set "
        f"model.input_dtypes to {stored}, convert the weights in the model's factory, e.g. `.bfloat16()`, or cast "
        "inputs in forward, `x.to(self.weight.dtype)`"
    )


def _listed(sample: Sequence[torch.Tensor]) -> str:
    """Shapes of inputs, and dtypes other than float32."""
    dtypes = ("" if value.dtype == torch.float32 else f" {_name(value.dtype)}" for value in sample)
    return ", ".join(f"{list(value.shape)}{dtype}" for value, dtype in zip(sample, dtypes, strict=True))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
