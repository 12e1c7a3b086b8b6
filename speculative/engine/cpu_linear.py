"""Matrix products of a few rows, near what the processor can do.

torch's own float32 product of 2 to 64 rows is far from it on processors that its BLAS library was not written for.
oneDNN, which torch brings along, wants the weights in an order of its own, and then does 5 rows of SmolLM2 in two
thirds of the time. One row is a matter of memory alone, and there the plain order wins. So each layer keeps both: twice
the memory for weights, which is why a model that would not fit twice stays as it is.
"""

import logging

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_log = logging.getLogger(__name__)

_ROWS = 8
"""oneDNN chooses the order by the number of rows it is told to expect; this one does well from 2 to 64."""
_MEMORY_SHARE = 0.5


class PackedLinear(nn.Module):
    """A linear layer with its weights in two orders: [..., in] -> [..., out]."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), _ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """The product, by the faster of both ways."""
        if x.numel() <= x.shape[-1]:
            return linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return product


def can_pack(model: nn.Module) -> bool:
    """Whether packing is possible here and the memory for it is free."""
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    needed = sum(layer.weight.nbytes for layer in model.modules() if isinstance(layer, nn.Linear))
    return bool(needed < _MEMORY_SHARE * psutil.virtual_memory().available)


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replaces every linear layer of the model by one that holds both orders."""
    layers = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear)
    ]
    for parent, name, layer in layers:
        setattr(parent, name, PackedLinear(layer))
    _log.debug("packed %d linear layers", len(layers))
