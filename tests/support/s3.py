"""A server of S3 on loopback, that of moto, with a bucket `logs`."""

from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "logs"


def settings(port: int) -> dict[str, str]:
    """Variables of the environment by which clients find a server on loopback."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """Start a server. Yields the variables of the environment for its clients."""
    # Here, because tests of other versions of Spark are collected where it isn't installed.
    import boto3  # type: ignore[import-untyped] # it has no types
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        variables = settings(port)
        client = boto3.client(
            "s3", endpoint_url=variables["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="secret",
        )  # fmt: skip
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield variables
    finally:
        server.stop()
