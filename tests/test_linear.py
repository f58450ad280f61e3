"""The transposed product of a few rows against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from draftwood.linear import MOST_ROWS, FewRowsLinear, helps, use_few_rows, use_plain


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (1,)])
@pytest.mark.parametrize(("width", "height"), [(24, 40), (40, 24)])
def test_equals_the_definition(rows: int, bias: bool, lead: tuple[int, ...], width: int, height: int) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(width, height, bias=bias, dtype=torch.float64)
    given = torch.randn(*lead, rows, width, dtype=torch.float64)
    # The sum written out, no matrix product involved.
    expected = (given[..., None, :] * layer.weight).sum(-1) + (layer.bias if bias else 0.0)
    use_few_rows(layer)
    assert type(layer) is FewRowsLinear
    output = layer(given)
    assert output.shape == (*lead, rows, height) and output.is_contiguous()
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_a_view_is_taken_as_it_lies() -> None:
    layer = nn.Linear(6, 4, bias=False, dtype=torch.float64)
    given = torch.randn(6, 3, dtype=torch.float64).t()
    expected = layer(given.contiguous())
    use_few_rows(layer)
    torch.testing.assert_close(layer(given), expected, rtol=0, atol=1e-12)


def test_swaps_every_linear_and_back() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))
    names = list(model.state_dict())
    use_few_rows(model)
    assert sum(type(module) is FewRowsLinear for module in model.modules()) == 2
    use_plain(model)
    assert sum(type(module) is nn.Linear for module in model.modules()) == 2
    assert list(model.state_dict()) == names


def test_only_where_it_was_measured() -> None:
    assert not helps(torch.bfloat16, torch.device("cpu"))
    assert not helps(torch.float64, torch.device("cpu"))
    assert not helps(torch.float32, torch.device("meta"))
