"""Text on web servers and in object stores: the documents of the same local files."""

import functools
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lmworks.base.errors import DataError
from lmworks.data.read import DocumentReader
from lmworks.tokenizer.train import train_bpe, train_bpe_from_iterator

# Servers and clients of others: what they warn of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

DOCUMENTS = ["the cat sat on the mat\n", "a dog; the dog\n\n", "größer, 中文 中文\n"] * 50
VOCAB_SIZE = 300
NAMES = ["a.txt", "b.jsonl.gz", "c.parquet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents in three forms."""
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("remote")
    (folder / "a.txt").write_text("<|endoftext|>\n".join(DOCUMENTS), encoding="utf-8")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    table = pyarrow.table({"text": DOCUMENTS})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "c.parquet")
    return folder


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[str]:
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "something")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="corpus")
        for name in NAMES:
            client.upload_file(str(folder / name), "corpus", f"in/{name}")
        yield "s3://corpus/in"
    server.stop()


@pytest.fixture(params=["web", "bucket"])
def root(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.mark.parametrize("name", NAMES)
def test_a_remote_file_trains_the_tokenizer_of_its_text(root: str, name: str) -> None:
    want = train_bpe_from_iterator(DOCUMENTS, VOCAB_SIZE).fingerprint
    assert train_bpe(f"{root}/{name}", VOCAB_SIZE).fingerprint == want


@pytest.mark.parametrize("name", NAMES)
def test_a_remote_file_has_the_documents_of_the_local_one(
    root: str, name: str, folder: Path
) -> None:
    remote = [document.text for document in DocumentReader([f"{root}/{name}"])]
    assert remote == [document.text for document in DocumentReader([folder / name])]


def test_a_file_that_is_not_there_is_told(root: str) -> None:
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        DocumentReader([f"{root}/none.txt"])


def test_a_folder_and_a_glob_of_a_bucket_are_listed(bucket: str, folder: Path) -> None:
    num_documents = len(list(DocumentReader([folder])))
    assert len(list(DocumentReader([bucket]))) == num_documents
    assert len(list(DocumentReader([f"{bucket}/*.[jp]*"]))) == 2 * len(DOCUMENTS)
