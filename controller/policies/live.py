"""A number for each live request, for what requests of one controller share."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref


@dataclass(frozen=True, slots=True)
class _Entry:
    owner: ReferenceType[Any]
    value: float
    call: int


class LiveValues:
    """Numbers by request. A request counts until it leaves, is garbage collected, or lets the others get far ahead.

    The last is counted in `set` calls, for want of a clock: a request that has not set its number while the others did
    so eight times each, and 64 times together, is taken for one that hangs or has ended unnoticed. All is O(1).
    """

    _LAPS = 8
    _SLACK = 64

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._calls = 0
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def mean(self) -> float:
        """Mean over all live requests; 0 without any."""
        return self._total / len(self._entries) if self._entries else 0.0

    def set(self, request: object, value: float) -> None:
        """Sets the number of a request; `request` is any object that lives as long as the request."""
        key = id(request)
        self._remove(key)
        self._calls += 1
        self._entries[key] = _Entry(ref(request, lambda _: self._remove(key)), value, self._calls)
        self._total += value
        oldest = self._calls - self._LAPS * len(self._entries) - self._SLACK
        while (first := next(iter(self._entries))) != key and self._entries[first].call <= oldest:
            self._remove(first)

    def leave(self, request: object) -> None:
        """Stops counting a request; harmless if it does not count."""
        self._remove(id(request))

    def _remove(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            # Without requests the total is exactly 0 again, whatever rounding has left.
            self._total = self._total - entry.value if self._entries else 0.0
