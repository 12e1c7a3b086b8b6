"""The largest entries are found exactly, and equal ones go by index."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from speculative.sampling import selection


def reference(row: Tensor, count: int) -> list[int]:
    ranked: list[int] = row.sort(stable=True, dim=0, descending=True).indices[:count].tolist()
    return sorted(ranked)


@settings(deadline=None)
@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 900),
    levels=st.sampled_from([1, 2, 5, 1000]),
    count=st.integers(1, 1000),
    seed=st.integers(0, 2**31),
)
def test_top_indices_are_those_of_a_stable_sort(rows: int, length: int, levels: int, count: int, seed: int) -> None:
    values = torch.randint(levels, (rows, length), generator=torch.Generator().manual_seed(seed)).float()
    expected = [reference(row, count) for row in values]
    assert selection.top_indices(values, count).tolist() == expected


@pytest.mark.parametrize("length", [50_000, 49_152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_indices_of_long_rows_with_ties_are_those_of_a_stable_sort(length: int, dtype: torch.dtype) -> None:
    values = torch.randn(3, length, generator=torch.Generator().manual_seed(1)).to(dtype).float()
    for count in (1, 50, 64, 200):
        assert selection.top_indices(values, count).tolist() == [reference(row, count) for row in values]


def test_top_indices_with_fewer_finite_entries_than_asked_for_stay_in_range() -> None:
    values = torch.full((2, 300), -torch.inf)
    values[0, [5, 299]] = 1.0
    assert selection.top_indices(values, 3).tolist() == [[0, 5, 299], [0, 1, 2]]


@settings(deadline=None)
@given(length=st.integers(1, 700), levels=st.sampled_from([1, 3, 10_000]), seed=st.integers(0, 2**31))
def test_the_largest_entry_is_the_first_of_its_kind(length: int, levels: int, seed: int) -> None:
    values = torch.randint(levels, (3, length), generator=torch.Generator().manual_seed(seed)).float()
    value, index = selection.largest(values)
    assert index.tolist() == [reference(row, 1)[0] for row in values]
    assert torch.equal(value, values.amax(-1))


def test_the_largest_entry_of_a_slice_of_padded_rows_is_found() -> None:
    values = torch.arange(4 * 500, dtype=torch.float32).view(4, 500)[:, :450]
    assert selection.largest(values)[1].tolist() == [449] * 4


def test_rows_with_nan_do_not_disturb_others() -> None:
    values = torch.randn(3, 1000, generator=torch.Generator().manual_seed(2))
    expected = [reference(row, 7) for row in values]
    values[1] = torch.nan
    values[2, ::3] = torch.nan
    assert selection.top_indices(values, 7)[0].tolist() == expected[0]
    assert selection.top_indices(values, 7).shape == (3, 7)
    assert selection.largest(values)[0].isnan().tolist() == [False, True, True]


@settings(deadline=None)
@given(rows=st.integers(1, 3), length=st.integers(1, 700), seed=st.integers(0, 2**31))
def test_sums_are_precise_and_do_not_depend_on_the_batch(rows: int, length: int, seed: int) -> None:
    values = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed))
    sums = selection.precise_sum(values)
    torch.testing.assert_close(sums, values.double().sum(-1), rtol=1e-6, atol=0.0)
    assert torch.equal(sums, torch.cat([selection.precise_sum(row[None].clone()) for row in values]))
