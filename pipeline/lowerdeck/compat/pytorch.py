"""Replacements in torch."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

COPY_PROVENANCE = Replacement(
    target="torch.fx.traceback:NodeSource.__deepcopy__",
    reason="Every pass copies every node with its provenance tree. The tree never changes, so it is shared.",
    upstream="pytorch/pytorch#193051",
    for_speed_only=True,
    is_addition=True,
)
RECOMPILE = Replacement(
    target="torch.fx:GraphModule.recompile",
    reason="Every pass generates and compiles the Python code of its graph, only for the next pass to discard it. "
    "torch.fx has _LazyGraphModule for this, which only the creator of a graph module can choose.",
    upstream="pytorch/pytorch#117911",
    for_speed_only=True,
)
CANONICALIZE = Replacement(
    target="torch._export.serde.serialize:canonicalize",
    reason="torch.export.save puts a copy of what it writes in order, and drops it: two thirds of its time.",
    for_speed_only=True,
)
SERIALIZER_TYPING = Replacement(
    target="torch._export.serde.serialize:typing",
    reason="torch.export.load evaluates the type hints of the same classes thousands of times: half of its time.",
    for_speed_only=True,
)
TENSOR_META = Replacement(
    target="torch._export.serde.serialize:GraphModuleDeserializer.deserialize_tensor_meta",
    reason="torch.export.load makes a fake tensor for each node by dispatching an operator: a third of its time.",
    for_speed_only=True,
)
KERNEL_ANNOTATIONS = Replacement(
    target="torch._ops:Callable",
    reason="Every decomposition registers kernels of six hundred operators, and each registration evaluates "
    "annotations such as `Callable[_P, _T]`: a quarter of the time of partitioning a small program.",
    for_speed_only=True,
)
DELEGATE_CALL = Replacement(
    target="torch._higher_order_ops.executorch_call_delegate:call_delegate_cpu",
    reason="Every pass after partitioning traces again what every delegate replaces, a whole model in most programs, "
    "only to learn the shapes of its outputs.",
    for_speed_only=True,
)
CREATE_ARGUMENT = Replacement(
    target="torch.fx.proxy:TracerBase.create_arg",
    reason="Every pass walks through all lists among the arguments, one call of five functions for each number. "
    "Arm's rescalings have two numbers for each channel: an eighth of the time of compiling MobileNetV2 for Ethos-U.",
    for_speed_only=True,
)
RUN_DECOMPOSITIONS = Replacement(
    target="torch.export:ExportedProgram.run_decompositions",
    reason="ExecuTorch decomposes programs three times before it makes edge programs of them; the last time there is "
    "nothing left to decompose in most, and the whole program is traced to find it as it was.",
    for_speed_only=True,
)
SUPPORTS_NODE = Replacement(
    target="torch.fx.passes.infra.partitioner:CapabilityBasedPartitioner._is_node_supported",
    reason="Partitioners ask their own checks first, and one of them may be what fails on a node that is to stay off.",
)
MATERIALIZE_COMPOSITE_OPERATORS = Replacement(
    target="torch._export.utils:_materialize_cpp_cia_ops",
    reason="torch.export queries the dispatcher for all composite operators, for each namespace of operators again; "
    "the result changes only with these namespaces.",
    upstream="pytorch/pytorch#137650",
    for_speed_only=True,
)
FAKE_CONSTANT = Replacement(
    target="torch._subclasses.fake_tensor:FakeTensorMode.from_tensor",
    reason="ExecuTorch's passes before quantization make fake tensors of constants by it, whose sizes then become "
    "symbols, because the program's own fake tensors come from torch.export: Arm's decomposition of `constant @ x` "
    "writes such sizes into the graph, and its quantizer refuses them.",
)
FORMAT_TARGET = Replacement(
    target="torch.fx.graph:_format_target",
    reason="Generated code reads a module or parameter as an attribute wherever str.isidentifier() is true of its "
    "name, which it is of keywords: `self.blocks.in` is no Python.",
)
