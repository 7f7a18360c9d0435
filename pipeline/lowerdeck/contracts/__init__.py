"""What modules of the pipeline expect of one another: errors, value types and Protocols.

This package imports nothing else of the project, and torch for annotations only, so that configuration can be checked
without the seconds that torch takes to import.

Shape legend used in docstrings: n number of samples, b batch, c channels or classes, h height, w width.
"""

from lowerdeck.contracts.backends import Backend, BackendDeclaration, BuildChoices, DynamicDimension, FlavorReport
from lowerdeck.contracts.errors import (
    ConfigurationError,
    ConversionError,
    GateError,
    LowerdeckError,
    NothingDelegatedError,
    SampleOverlapError,
    UnsupportedQuantizationError,
)
from lowerdeck.contracts.evaluation import ClassFigures, LayerFigures, Metric, Outputs
from lowerdeck.contracts.lowering import CompiledPartition, Converter, Lowering, ProgramTensor
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode
from lowerdeck.contracts.quantization import (
    ModuleRule,
    ObservedRange,
    ObserverChoice,
    ObserverState,
    QuantizationScheme,
    QuantizedTensor,
)
from lowerdeck.contracts.samples import Dataset, DatasetSource, ModelSource, Sample, Split

__all__ = [
    "Backend",
    "BackendDeclaration",
    "BuildChoices",
    "ClassFigures",
    "CompiledPartition",
    "ConfigurationError",
    "ConversionError",
    "Converter",
    "Dataset",
    "DatasetSource",
    "DelegationPlan",
    "DynamicDimension",
    "FlavorReport",
    "GateError",
    "LayerFigures",
    "LowerdeckError",
    "Lowering",
    "Metric",
    "ModelSource",
    "ModuleRule",
    "NothingDelegatedError",
    "ObservedRange",
    "ObserverChoice",
    "ObserverState",
    "Outputs",
    "PlannedNode",
    "PlannedTensor",
    "ProgramTensor",
    "QuantizationScheme",
    "QuantizedTensor",
    "Reason",
    "ReasonCode",
    "Sample",
    "SampleOverlapError",
    "Split",
    "UnsupportedQuantizationError",
]
