"""A number for each live request, for what requests of one controller share."""

from weakref import WeakKeyDictionary


class LiveValues:
    """Numbers by request. A request counts until it leaves, is garbage collected, or lets the others get far ahead.

    The last is counted in `set` calls, for want of a clock: a request that has not set its number while the others did
    so eight times each, and 64 times together, is taken for one that hangs or has ended unnoticed.
    """

    _LAPS = 8
    _SLACK = 64

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[object, tuple[float, int]] = WeakKeyDictionary()
        self._calls = 0

    def set(self, request: object, value: float) -> None:
        """Sets the number of a request; `request` is any object that lives as long as the request."""
        self._calls += 1
        self._values[request] = (value, self._calls)

    def leave(self, request: object) -> None:
        """Stops counting a request; harmless if it does not count."""
        self._values.pop(request, None)

    def values(self) -> list[float]:
        """The numbers of all live requests."""
        oldest = self._calls - self._LAPS * len(self._values) - self._SLACK
        return [value for value, call in self._values.values() if call > oldest]
