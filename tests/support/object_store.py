"""An object store on loopback that speaks as much of S3 as pyarrow's client needs, and may be out of order."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class ObjectStore:
    """Its objects by key, and whether it refuses what is asked of it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self.is_down = False
        self.takes_parts = True
        self.port = 0

    def uri(self, key: str) -> str:
        """A URI of pyarrow's that names this store."""
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1&allow_bucket_creation=false"
        return f"s3://key:secret@{BUCKET}/{key}?{options}"

    def listing(self, prefix: str, delimiter: str) -> str:
        """ListObjectsV2, complete in one answer."""
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        inner = {key: key[len(prefix) :].partition(delimiter) for key in keys} if delimiter else {}
        folders = sorted({prefix + first + delimiter for first, found, _ in inner.values() if found})
        files = [key for key in keys if not delimiter or not inner[key][1]]
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[key])}</Size></Contents>" for key in files
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        count = f"<KeyCount>{len(files) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult><Name>{BUCKET}</Name>{count}{contents}{prefixes}</ListBucketResult>"


def unchunked(stream: BufferedIOBase) -> bytes:
    """The contents of chunks, up to the empty line behind the last."""
    data = b""
    while size := int(stream.readline().partition(b";")[0], 16):
        data += stream.read(size)
        stream.readline()
    while stream.readline().strip():  # checksums
        pass
    return data


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store that runs in threads of this process."""
    store = ObjectStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            key, query = self._asked()
            if store.is_down:
                self._answer(403)  # a status that the client doesn't try again by itself
            elif "list-type" in query:
                text = store.listing(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
                self._answer(200, text.encode())
            elif not key:
                self._answer(200)
            elif key in store.objects:
                self._answer(206 if "Range" in self.headers else 200, self._part(store.objects[key]))
            else:
                self._answer(404)

        def do_PUT(self) -> None:
            key, query = self._asked()
            data = self._body()
            if store.is_down or ("partNumber" in query and not store.takes_parts):
                self._answer(403)
                return
            if "partNumber" in query:
                store.parts[int(query["partNumber"][0])] = data
            else:
                store.objects[key] = data
            self._answer(200)

        def do_POST(self) -> None:
            """An upload in parts begins, or is completed. One at a time is enough for tests."""
            key, query = self._asked()
            self._body()
            if store.is_down:
                self._answer(403)
            elif "uploads" in query:
                store.parts = {}
                self._answer(
                    200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
                )
            else:
                store.objects[key] = b"".join(data for _, data in sorted(store.parts.items()))
                self._answer(200, b"<CompleteMultipartUploadResult/>")

        def do_DELETE(self) -> None:
            key, query = self._asked()
            if store.is_down:
                self._answer(403)
                return
            if "uploadId" not in query:
                store.objects.pop(key, None)
            self._answer(204)

        def log_message(self, *_: object) -> None:
            pass

        def _asked(self) -> tuple[str, dict[str, list[str]]]:
            parts = urlsplit(self.path)
            return unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/"), parse_qs(
                parts.query, keep_blank_values=True
            )

        def _body(self) -> bytes:
            """What is sent: in chunks of HTTP, of S3, in both, or as a whole."""
            if self.headers.get("Transfer-Encoding") == "chunked":
                data = unchunked(self.rfile)
            else:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return unchunked(BytesIO(data)) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

        def _part(self, data: bytes) -> bytes:
            wanted = self.headers.get("Range")
            if wanted is None:
                return data
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            return data[int(first) : int(last) + 1 if last else None]

        def _answer(self, status: int, data: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        store.port = server.server_address[1]
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        try:
            yield store
        finally:
            server.shutdown()
            serving.join()
