"""Names of XnnpackPartitioner's operator configs in ExecuTorch 1.5.1, for checks that must not import it.

A config is a class in executorch.backends.xnnpack.partition.config that decides when one operator is delegated, and
with which neighbours. A test compares these names with the installed version.
"""

from __future__ import annotations

from typing import Literal

DefaultConfig = Literal[
    "AbsConfig",
    "AddConfig",
    "AddmmConfig",
    "AvgPoolingConfig",
    "BMMConfig",
    "BatchNormConfig",
    "CatConfig",
    "CeilConfig",
    "ChooseQParamsAffineConfig",
    "ClampConfig",
    "CloneConfig",
    "CloneDimOrderConfig",
    "ConstantPadConfig",
    "ConvolutionConfig",
    "CosConfig",
    "DeQuantizeAffineConfig",
    "DeQuantizedPerTensorConfig",
    "DivConfig",
    "ExpConfig",
    "FloorConfig",
    "GeluConfig",
    "HardswishConfig",
    "HardtanhConfig",
    "LeakyReLUConfig",
    "LinearConfig",
    "LogConfig",
    "MMConfig",
    "MaxDimConfig",
    "MaxPool2dConfig",
    "MaximumConfig",
    "MeanDimConfig",
    "MinimumConfig",
    "MulConfig",
    "NegConfig",
    "PermuteConfig",
    "PowConfig",
    "PreluConfig",
    "QuantizeAffineConfig",
    "QuantizedPerTensorConfig",
    "ReLUConfig",
    "ReciprocalSquareRootConfig",
    "SigmoidConfig",
    "SinConfig",
    "SliceCopyConfig",
    "SoftmaxConfig",
    "SquareRootConfig",
    "SubConfig",
    "TanhConfig",
    "ToDimOrderCopyConfig",
    "UnsqueezeCopyConfig",
    "UpsampleBilinear2dConfig",
    "ViewCopyConfig",
]
"""ALL_PARTITIONER_CONFIGS, the partitioner's default."""

AdditionalConfig = Literal["EluConfig"]
"""Implemented, but not in ALL_PARTITIONER_CONFIGS."""

AnyConfig = Literal[DefaultConfig, AdditionalConfig]
