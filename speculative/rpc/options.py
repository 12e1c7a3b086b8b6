"""Channel options of both ends: message sizes and keepalive must agree, so they are set in one place.

gRPC's own defaults refuse messages over 4 MiB, and a server's refuse pings more often than every 300 s: a client that
watches a quiet stream would get GOAWAY too_many_pings in the middle of a long prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Options = Sequence[tuple[str, int | str]]

_INITIAL_RECONNECT_MS = 100
_MAX_RECONNECT_MS = 2_000


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """What both ends of a connection are configured to."""

    max_message_bytes: int = 64 * 2**20
    """Largest message, in both directions."""
    keepalive_interval_s: float = 10.0
    """How often a quiet connection is checked, with or without open streams."""
    keepalive_timeout_s: float = 5.0
    """How long an answer to the check may take before the connection counts as lost."""

    def for_server(self) -> Options:
        """Server options. A port that is taken is an error (by default gRPC would share it silently)."""
        return [
            *self._common(),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.max_ping_strikes", 0),
        ]

    def for_client(self) -> Options:
        """Client options: quick reconnection, no detour over a web proxy of the environment."""
        return [
            *self._common(),
            ("grpc.initial_reconnect_backoff_ms", _INITIAL_RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", _INITIAL_RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MS),
            ("grpc.enable_http_proxy", 0),
        ]

    def _common(self) -> Options:
        return [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", round(self.keepalive_interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
