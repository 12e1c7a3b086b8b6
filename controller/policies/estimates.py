"""Small online estimators that measured costs are kept in. All forget, so that they follow a changing machine."""

import bisect
import math
from dataclasses import dataclass


class RunningMean:
    """Mean that weighs the newest `window` values or so: plain at first, exponential later."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.count = 0
        self.mean = 0.0

    def add(self, value: float) -> None:
        """Takes a value."""
        self.count += 1
        self.mean += (value - self.mean) / min(self.count, self._window)


class RisingLine:
    """Least-squares line `y = intercept + slope * x` with slope and intercept at least 0.

    Old points fade. One pseudo-point at the origin, of the weight of one fresh point, makes the line proportional to x
    until points at several x say otherwise.
    """

    def __init__(self, fading: float) -> None:
        self._fading = fading
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether there is any point."""
        return self._weight > 0.0

    def add(self, x: float, y: float) -> None:
        """Takes a point; `x` is positive."""
        self._weight = self._fading * self._weight + 1.0
        self._x = self._fading * self._x + x
        self._y = self._fading * self._y + y
        self._xx = self._fading * self._xx + x * x
        self._xy = self._fading * self._xy + x * y

    def value(self, x: float) -> float:
        """The line at `x`; 0 before the first point."""
        if not self.known:
            return 0.0
        weight = self._weight + 1.0
        slope = (weight * self._xy - self._x * self._y) / (weight * self._xx - self._x * self._x)
        intercept = (self._y - slope * self._x) / weight
        if slope < 0.0:
            return self._y / self._weight
        if intercept < 0.0:
            return x * self._xy / self._xx
        return intercept + slope * x


@dataclass(slots=True)
class _Cell:
    weight: float
    x: float
    y: float


class RisingCurve:
    """Estimate of a function that never falls, at x >= 1, from scattered noisy values.

    Values are averaged in cells (one for each whole x up to 16, 12 % wide above), each the mean of its newest values;
    neighbouring cells that would fall are pooled (isotonic regression); between cells the curve is straight, left of
    the first it is flat, right of the last it goes on with the slope of a line through all cells. A value far above
    its cell's mean is cut to four times that: one hiccup must not pass for a cost, a lasting change still gets through.
    """

    _FINE = 16
    _STEP = 1.12
    _WINDOW = 16
    _CUT = 4.0

    def __init__(self) -> None:
        self._cells: dict[int, _Cell] = {}
        self._knots: list[tuple[float, float]] | None = None
        self._slope = 0.0

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(self._cells)

    def add(self, x: float, y: float) -> None:
        """Takes a value."""
        key = self._key(x)
        cell = self._cells.get(key)
        self._knots = None
        if cell is None:
            self._cells[key] = _Cell(1.0, x, y)
            return
        y = min(y, self._CUT * cell.y) if cell.weight >= 4 and cell.y > 0.0 else y
        cell.weight = min(cell.weight + 1.0, self._WINDOW)
        cell.x += (x - cell.x) / cell.weight
        cell.y += (y - cell.y) / cell.weight

    def value(self, x: float) -> float:
        """The curve at `x`; 0 before the first value."""
        if not self._cells:
            return 0.0
        knots = self._fitted()
        index = bisect.bisect_left(knots, (x, -math.inf))
        if index == 0:
            return knots[0][1]
        if index == len(knots):
            last_x, last_y = knots[-1]
            return last_y + self._slope * (x - last_x)
        (left_x, left_y), (right_x, right_y) = knots[index - 1], knots[index]
        return left_y + (right_y - left_y) * (x - left_x) / (right_x - left_x)

    def _key(self, x: float) -> int:
        if x <= self._FINE:
            return round(x)
        return self._FINE + round(math.log(x / self._FINE) / math.log(self._STEP))

    def _fitted(self) -> list[tuple[float, float]]:
        if self._knots is None:
            cells = sorted(self._cells.values(), key=lambda cell: cell.x)
            self._knots = _isotonic(cells)
            self._slope = _slope(cells)
        return self._knots


def _isotonic(cells: list[_Cell]) -> list[tuple[float, float]]:
    """Knots (x, y) of the least-squares fit that never falls; pools adjacent violators."""
    pools: list[tuple[float, float, list[float]]] = []
    for cell in cells:
        weight, total, xs = cell.weight, cell.weight * cell.y, [cell.x]
        while pools and pools[-1][1] * weight >= total * pools[-1][0]:
            pool_weight, pool_total, pool_xs = pools.pop()
            weight, total, xs = pool_weight + weight, pool_total + total, pool_xs + xs
        pools.append((weight, total, xs))
    return [(x, total / weight) for weight, total, xs in pools for x in xs]


def _slope(cells: list[_Cell]) -> float:
    weight = sum(cell.weight for cell in cells)
    mean_x = sum(cell.weight * cell.x for cell in cells) / weight
    mean_y = sum(cell.weight * cell.y for cell in cells) / weight
    spread = sum(cell.weight * (cell.x - mean_x) ** 2 for cell in cells)
    if spread == 0.0:
        return 0.0
    return max(0.0, sum(cell.weight * (cell.x - mean_x) * (cell.y - mean_y) for cell in cells) / spread)
