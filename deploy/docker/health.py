"""Exits with 0 if the gRPC server at the given address answers grpc.health.v1 with SERVING, else with 1."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 4.0


def serving(address: str) -> bool:
    """Whether the server as a whole (the empty service name) is SERVING; False if it does not answer."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if serving(sys.argv[1]) else 1)
