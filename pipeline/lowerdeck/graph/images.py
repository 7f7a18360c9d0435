"""Layers over tensors of other ranks as layers over images [n x c x h x w].

A tensor becomes an image in front of its first convolution, stays one while operators have a form for images, and is
itself again in front of the first that has none: a network that is convolutional throughout is rearranged at its ends
alone.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.fx import Node

_aten = torch.ops.aten
Arguments = dict[str, Any]
"""Those of a call, by name."""
Form = tuple[Any, ...]
"""An operator on an image, and its arguments after the image."""
_BATCH_NORM = (*("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled"),)
_ELEMENTWISE = (
    *(_aten.hardswish.default, _aten.relu6.default, _aten.prelu.default, _aten.log_sigmoid.default, _aten.to.dtype),
)
"""Operators on single elements that PyTorch does not mark as such."""


class Images(ABC):
    """The images that nodes of a program have become."""

    dimensions: int
    """Of the tensors that become images."""
    convolutions: Collection[Any]
    forms: Mapping[Any, Callable[[Arguments], Form | None]]
    """What has a form for images, if its input is one."""

    def __init__(self, is_channels_last: bool, stored: frozenset[Node] = frozenset()) -> None:
        """Prepare.

        Args:
            is_channels_last: Whether images are in this memory format.
            stored: Weights and constants, which keep their own.
        """
        self._is_channels_last, self._stored = is_channels_last, stored
        self._made: dict[Node, Node] = {}
        """What computes images."""
        self._given: dict[Node, Node] = {}
        """What is rearranged, because something computes other tensors."""

    def rewrite(self, module: torch.fx.GraphModule) -> None:
        """Rewrite an ATen program; `fold_constants` comes next, for the weights."""
        if all(node.target not in self.convolutions for node in module.graph.nodes):
            return
        for node in list(module.graph.nodes):
            if node.op == "call_function":
                with module.graph.inserting_before(node):
                    self._add(node)
        self._replace()
        module.recompile()

    @abstractmethod
    def image_of(self, node: Node, tensor: Node) -> Node:
        """The image of a tensor, at the point of insertion in front of `node`."""

    @abstractmethod
    def tensor_of(self, node: Node, image: Node) -> Node:
        """What `node` computed, of its image, at the point of insertion."""

    @abstractmethod
    def convolution(self, node: Node, arguments: Arguments) -> Node | None:
        """The image that a convolution computes; None if it has no form for images."""

    @abstractmethod
    def reduced(self, node: Node, image: Node, arguments: Arguments) -> Node | None:
        """The image that a reduction computes; None if it has none, or what takes the place of `node` is none."""

    def form(self, node: Node, image: Node, arguments: Arguments) -> Node | None:
        """The image that another operator computes of one; None if it has no form for images."""
        form = self.forms[node.target](arguments) if node.target in self.forms else None
        return None if form is None else called(node, form[0], image, *form[1:])

    @abstractmethod
    def dimension(self, dim: int) -> int | None:
        """The dimension of an image that holds dimension `dim`; None if none does."""

    @abstractmethod
    def operand(self, node: Node, value: Node) -> Node:
        """What is broadcast to an image as `value`, of fewer dimensions, is to the tensor."""

    def image(self, node: Node, tensor: Node) -> Node:
        """The image that a tensor has become, or is made into in front of `node`."""
        if tensor in self._made:
            return self._made[tensor]
        if tensor not in self._given:
            self._given[tensor] = self.laid_out(node, self.image_of(node, tensor), tensor)
        return self._given[tensor]

    def laid_out(self, node: Node, image: Node, tensor: Node | None = None) -> Node:
        """`image`, which was rearranged, in its memory format."""
        if not self._is_channels_last or tensor in self._stored:
            return image
        # Not `contiguous`, which leaves one channel as it is: what follows would not be channels-last.
        return called(node, _aten.clone.default, image, memory_format=torch.channels_last)

    def has_image(self, value: Any) -> bool:
        """Whether a node's result can be an image."""
        value = value.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.ndim != self.dimensions:
            return False
        return all(isinstance(size, int) for size in value.shape)

    def _add(self, node: Node) -> None:
        """Compute the result of `node` from images, in front of it, if it has a form for them."""
        if node.target is operator.getitem:
            parts = self._made.get(node.all_input_nodes[0])
            made = None if parts is None else called(node, operator.getitem, parts, node.args[1])
        elif not isinstance(node.target, torch._ops.OpOverload):
            made = None
        elif node.target is _aten._assert_tensor_metadata.default and node.args[0] in self._made:
            node.graph.erase_node(node)  # it held when the model was traced
            made = None
        elif self._is_elementwise(node):
            made = self._elementwise(node)
        else:
            made = self._form(node, arguments_of(node))
        if made is not None:
            self._made[node] = made

    def _form(self, node: Node, arguments: Arguments) -> Node | None:
        if node.target in self.convolutions:
            return self.convolution(node, arguments) if self.has_image(node) else None
        if node.target is _aten.cat.default:
            return self._joined(node, arguments["tensors"], arguments["dim"])
        tensor = arguments.get("self", arguments.get("input"))
        image = self._made.get(tensor) if isinstance(tensor, torch.fx.Node) else None
        if image is None or node.target is _aten.contiguous.default:
            return image  # in its own layout
        if node.target is _aten.batch_norm.default:
            return called(node, node.target, image, *(arguments[name] for name in _BATCH_NORM))
        if node.target is _aten.dropout.default:
            return called(node, node.target, image, arguments["p"], arguments["train"])
        if (by_dimension := _BY_DIMENSION.get(node.target)) is not None:
            dim = self.dimension(arguments["dim"])
            return None if dim is None else called(node, node.target, image, *by_dimension(arguments | {"dim": dim}))
        if node.target in _REDUCTIONS and arguments.get("dtype") is None:
            return self.reduced(node, image, arguments)
        return self.form(node, image, arguments)

    def _replace(self) -> None:
        """Let what has no form for images read tensors, and remove what nothing reads."""
        for node, image in reversed(self._made.items()):
            if node.users:
                with node.graph.inserting_before(node):
                    if self._is_channels_last:  # by a copy of its own, which is quantized as such
                        image = called(node, _aten.contiguous.default, image)
                    node.replace_all_uses_with(self.tensor_of(node, image))
            node.graph.erase_node(node)

    def _joined(self, node: Node, tensors: Sequence[Node], dim: int) -> Node | None:
        along, are_images = self.dimension(dim), all(map(self.has_image, tensors))
        if along is None or not are_images or not any(each in self._made for each in tensors):
            return None
        return called(node, node.target, [self.image(node, each) for each in tensors], along)

    def _elementwise(self, node: Node) -> Node:
        args = [self._operand(node, each) for each in node.args]
        kwargs = {name: self._operand(node, each) for name, each in node.kwargs.items()}
        return called(node, node.target, *args, **kwargs)

    def _is_elementwise(self, node: Node) -> bool:
        return (
            (torch.Tag.pointwise in node.target.tags or node.target in _ELEMENTWISE)  # type: ignore[union-attr]
            and "memory_format" not in node.kwargs
            and self.has_image(node)
            and any(each in self._made for each in node.all_input_nodes)
        )

    def _operand(self, node: Node, value: Any) -> Any:
        """What an operator on single elements takes instead of a tensor, or of what is broadcast to one."""
        if not isinstance(value, torch.fx.Node):
            return value
        return self.image(node, value) if value.meta["val"].ndim == self.dimensions else self.operand(node, value)


_BY_DIMENSION: dict[Any, Callable[[Arguments], Form]] = {
    _aten.slice.Tensor: lambda given: (given["dim"], given["start"], given["end"], given["step"]),
    _aten.glu.default: lambda given: (given["dim"],),
    _aten.chunk.default: lambda given: (given["chunks"], given["dim"]),
    _aten.split.Tensor: lambda given: (given["split_size"], given["dim"]),
    _aten.split_with_sizes.default: lambda given: (given["split_sizes"], given["dim"]),
}
"""Operators along one dimension, and their arguments after the image."""
_REDUCTIONS = (_aten.mean.dim, _aten.amax.default, _aten.amin.default)
