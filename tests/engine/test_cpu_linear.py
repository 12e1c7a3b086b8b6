"""The packed order changes the speed of a product, not its result."""

import copy

import pytest
import torch
from torch import nn

from speculative.engine.cpu_linear import PackedLinear, can_pack, pack_linears
from tests.support.tiny_models import tiny_model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 48), (2, 48), (1, 7, 48), (3, 5, 48), (64, 48), (0, 48), (1, 0, 48)])
def test_a_packed_layer_gives_the_plain_product(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(48, 33, bias=bias)
    x = torch.randn(shape)
    with torch.inference_mode():
        product = PackedLinear(plain)(x)
        assert product.shape == (*shape[:-1], 33)
        assert torch.allclose(product, plain(x), atol=1e-5)


def test_every_linear_layer_of_a_model_is_packed_and_its_logits_stay() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        pack_linears(model)
        assert not [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        assert torch.allclose(model(input_ids=ids).logits, expected, atol=1e-4)


def test_only_float32_on_the_cpu_is_packed() -> None:
    assert can_pack(nn.Linear(4, 4))
    assert not can_pack(nn.Linear(4, 4, dtype=torch.bfloat16))
    assert not can_pack(nn.Linear(4, 4, device="meta"))


def test_a_model_that_does_not_fit_twice_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative.engine.cpu_linear._MEMORY_SHARE", 0.0)
    assert not can_pack(nn.Linear(4, 4))
