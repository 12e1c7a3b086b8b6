"""DSDE's cap: no request of a batch drafts longer than the batch's mean, so that none keeps the others waiting."""

import math

from controller.policies.live import LiveValues


class BatchCap:
    """The consensus length `argmin_c mean_i (c - SL_i)^2 = mean_i SL_i`, rounded up (arXiv 2509.01083, section 4).

    One object serves all requests of a controller that share a verifier. A request reports its predicted length once
    it is past calibration, and stops counting when it leaves or is no longer live. Where several controllers share a
    verifier each knows only its own requests and takes their mean for the batch's.
    """

    def __init__(self) -> None:
        self._lengths = LiveValues()

    def report(self, request: object, length: int) -> None:
        """Sets the predicted length of a request; `request` is any object that lives as long as the request."""
        self._lengths.set(request, length)

    def leave(self, request: object) -> None:
        """Stops counting a request; harmless if it does not count."""
        self._lengths.leave(request)

    def limit(self, batch_size: int) -> int | None:
        """The cap for a request whose last verdict came from a batch of `batch_size` sessions.

        None when nobody would wait: a session alone in its batch, or no request past calibration.
        """
        if batch_size < 2 or not len(self._lengths):
            return None
        return math.ceil(self._lengths.mean)
