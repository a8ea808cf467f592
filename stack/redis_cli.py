"""`python -m stack.redis_cli`: what the compose file asks of `redis-cli`, for machines that have none."""

import argparse
import sys
from typing import Any

import redis

from acker_redis.testing import wait_until

SLOTS = 16_384


def main() -> None:
    """Run one command, or make a cluster; exit 1 if the server says no."""
    options = argparse.ArgumentParser(prog="redis-cli", allow_abbrev=False)
    options.add_argument("-e", action="store_true", help="exit 1 on an error, as this always does")
    options.add_argument("-p", dest="port", type=int, default=6379)
    options.add_argument("-u", dest="url")
    options.add_argument("--user")
    options.add_argument("--pass", dest="password")
    options.add_argument("--no-auth-warning", action="store_true")
    options.add_argument("--cluster", choices=["create"])
    options.add_argument("--cluster-yes", action="store_true")
    options.add_argument("words", nargs="+")
    given = options.parse_args()
    try:
        if given.cluster:
            _make_cluster(given.words, given.user, given.password)
            return
        client: Any = (
            redis.Redis.from_url(given.url) if given.url
            else redis.Redis(port=given.port, username=given.user, password=given.password)
        )  # fmt: skip
        client.response_callbacks.clear()  # replies as they come
        reply = client.execute_command(*given.words)
        client.close()
        print(reply.decode() if isinstance(reply, bytes) else reply)
    except redis.RedisError as exc:
        sys.exit(f"redis-cli: {exc}")


def _make_cluster(addresses: list[str], user: str | None, password: str | None) -> None:
    """Give each node its part of the slots, and let all know each other."""
    places = [(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)]
    nodes: list[Any] = [redis.Redis(host=host, port=port, username=user, password=password) for host, port in places]
    for number, node in enumerate(nodes):
        first, end = (SLOTS * part // len(nodes) for part in (number, number + 1))
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for host, port in places[1:]:
        nodes[0].execute_command("CLUSTER", "MEET", host, port)
    wait_until(lambda: all(node.cluster("INFO")["cluster_state"] == "ok" for node in nodes), "the cluster is there", 60)
    for node in nodes:
        node.close()


if __name__ == "__main__":
    main()
