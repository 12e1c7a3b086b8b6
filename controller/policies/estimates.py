"""Small online estimators that measured costs are kept in. All forget, so that they follow a changing machine."""

import bisect
import math


class RunningMean:
    """Mean that weighs the newest `window` values or so: plain at first, exponential later."""

    def __init__(self, window: float) -> None:
        self._window = window
        self.weight = 0.0
        self.mean = 0.0

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return self.weight > 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Takes a value; `weight` is at most 1."""
        self.weight = min(self.weight + weight, self._window)
        self.mean += (value - self.mean) * weight / self.weight


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

    def add(self, x: float, y: float, weight: float = 1.0) -> None:
        """Takes a point; `x` is positive, `weight` at most 1."""
        fading = self._fading**weight
        self._weight = fading * self._weight + weight
        self._x = fading * self._x + weight * x
        self._y = fading * self._y + weight * y
        self._xx = fading * self._xx + weight * x * x
        self._xy = fading * self._xy + weight * x * y

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


class _Cell:
    """Means of the newest values in one cell.

    Values that are far off in a row on the same side are a change, not noise: the mean starts anew from them.
    """

    _TRUSTED = 3.0
    _FAR = 0.3
    _IN_A_ROW = 3.0
    _CUT = 4.0

    def __init__(self, window: float) -> None:
        self._window = window
        self._x = RunningMean(window)
        self._y = RunningMean(window)
        self._far = RunningMean(window)
        self._far_side = 0

    @property
    def weight(self) -> float:
        return self._y.weight

    @property
    def x(self) -> float:
        return self._x.mean

    @property
    def y(self) -> float:
        return self._y.mean

    def add(self, x: float, y: float, weight: float) -> None:
        self._x.add(x, weight)
        if self.weight < self._TRUSTED or self.y <= 0.0:
            self._y.add(y, weight)
            return
        self._watch(y, weight)
        if self._far.weight >= self._IN_A_ROW:
            self._y, self._far = self._far, RunningMean(self._window)
        else:
            self._y.add(min(y, self._CUT * self.y), weight)

    def _watch(self, y: float, weight: float) -> None:
        side = 0 if abs(y / self.y - 1.0) <= self._FAR else 1 if y > self.y else -1
        if side != self._far_side:
            self._far, self._far_side = RunningMean(self._window), side
        if side:
            self._far.add(y, weight)


class RisingCurve:
    """Estimate of a function that never falls, at x >= 1, from scattered noisy values.

    Values are averaged in cells (one for each whole x up to 16, 12 % wide above), each the mean of its newest `window`;
    neighbouring cells that would fall are pooled (isotonic regression); between cells the curve is straight, left of
    the first it is flat, right of the last it goes on with the slope of a line through all cells. A value far above
    its cell's mean is cut to four times that, for one hiccup must not pass for a cost; after a few such values in a row
    the cell starts anew from them.
    """

    _FINE = 16
    _STEP = 1.12

    def __init__(self, window: float) -> None:
        self._window = window
        self._cells: dict[int, _Cell] = {}
        self._knots: list[tuple[float, float]] | None = None
        self._slope = 0.0
        self.last_x = 0.0
        """Largest x that a value was taken at."""

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(self._cells)

    def add(self, x: float, y: float, weight: float = 1.0) -> None:
        """Takes a value; `weight` is at most 1."""
        self._cells.setdefault(self._key(x), _Cell(self._window)).add(x, y, weight)
        self.last_x = max(self.last_x, x)
        self._knots = None

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
