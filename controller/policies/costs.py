"""What a round costs as a function of its length, learnt from the rounds themselves.

`round = draft(length) + verify(positions) + network`. Drafting is linear in the drafted tokens. Verification (queue
and forward) never falls with the number of positions in the batch. The network is one round trip for a plain round
and two for a speculative one, whatever its length.
"""

from controller.policies.base import RoundOutcome
from controller.policies.estimates import RisingCurve, RisingLine, RunningMean

_WINDOW = 32.0
_FADING = 0.98


class RoundCosts:
    """Measured costs of one draft and verifier pair; all times in nanoseconds.

    In a batch a request's own length hardly moves the batch's time, yet all requests choose by the same rule. So
    verification is learnt, and predicted, as a function of *all* positions in the batch, as if every session in it
    used the length in question. All B sessions of a batch report the same forward, so each counts for 1/B.

    What plain decoding costs is learnt apart, and only while nobody speculates: it is what speculation is measured by,
    and next to sessions that draft even a plain one takes longer.
    """

    def __init__(self) -> None:
        self._draft = RisingLine(_FADING)
        self._verify = RisingCurve(_WINDOW / 2)
        self._plain_verify = RisingCurve(2 * _WINDOW)
        self._plain_network = RunningMean(_WINDOW)
        self._network = RunningMean(_WINDOW)
        self._switch = RunningMean(_WINDOW)

    @property
    def knows_plain(self) -> bool:
        """Whether a plain round among plain rounds has been seen."""
        return self._plain_verify.known

    @property
    def knows_speculation(self) -> bool:
        """Whether a speculative round has been seen."""
        return self._network.known

    @property
    def switch_ns(self) -> float:
        """How much longer drafting takes in the first round after plain ones: the draft catches up."""
        return self._switch.mean

    def observe(self, outcome: RoundOutcome, mean_length: float, resumed: bool) -> None:
        """Takes a round.

        `mean_length` is the mean chunk length of all live requests, the estimate for the other sessions in the batch.
        `resumed`: the request's last round was a plain one, so the draft had to catch up.
        """
        weight = 1.0 / max(1, outcome.batch_size)
        others = (outcome.batch_size - 1) * (1.0 + mean_length)
        verify_ns = outcome.queue_ns + outcome.forward_ns
        self._verify.add(max(1.0, outcome.drafted_len + 1.0 + others), verify_ns, weight)
        if mean_length == 0.0:
            self._plain_verify.add(max(1, outcome.batch_size), verify_ns, weight)
            self._plain_network.add(max(0, outcome.round_ns - verify_ns), weight)
        if outcome.drafted_len == 0:
            return
        self._network.add(max(0, outcome.round_ns - verify_ns - outcome.draft_ns), weight)
        if outcome.looked_up_len:
            return  # what its draft took is not what the model takes for as many tokens
        if resumed and self._draft.known:
            self._switch.add(max(0.0, outcome.draft_ns - self._draft.value(outcome.drafted_len)), weight)
        else:
            self._draft.add(outcome.drafted_len, outcome.draft_ns, weight)

    def known_length(self, batch_size: float) -> int:
        """Longest chunk whose verification is not far from what has been seen: at most twice as many positions."""
        return max(1, int(2.0 * self._verify.last_x / batch_size) - 1)

    def plain_ns(self, batch_size: float) -> float:
        """Predicted time of a plain round when all sessions of the batch run plain ones."""
        verify = self._plain_verify if self.knows_plain else self._verify
        network = self._plain_network.mean if self.knows_plain else self._network.mean / 2
        return verify.value(batch_size) + network

    def round_ns(self, length: float, batch_size: float) -> float:
        """Predicted time of a round of `length` drafted tokens when all sessions of the batch draft as many."""
        if length <= 0:
            return self.plain_ns(batch_size)
        network = self._network.mean if self.knows_speculation else 2 * self._plain_network.mean
        return self._draft.value(length) + self._verify.value(batch_size * (1.0 + length)) + network
