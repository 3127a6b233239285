"""/v1/files through OpenAI's own client, and after the server was killed."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import openai
import pytest

from tests.serving.conftest import Start, client_of
from tests.serving.test_completions import send
from trc2 import UserError
from trc2.serving.files import _Form, check_content
from trc2.serving.server import Limits, Server, ServerSettings
from trc2.serving.wire import ApiError
from trc2.system.failpoints import UPLOADING

ROWS = [
    {"text": "apple pear"},
    {"prompt": "What cuts? ", "completion": "a saw"},
    {"messages": [{"role": "user", "content": "plum?"}, {"role": "assistant", "content": "fig"}]},
]
JSONL = "\n".join(map(json.dumps, ROWS)).encode() + b"\n\n"


@pytest.fixture
def teaching(words_model: Path, tmp_path: Path, registry: str | None) -> Iterator[Server]:
    limits = Limits(file_bytes=10_000)
    settings = ServerSettings(words_model, port=0, data=tmp_path / "data", registry=registry, limits=limits)
    with Server(settings) as one:
        yield one


@pytest.fixture
def uploads(teaching: Server) -> Iterator[openai.OpenAI]:
    with client_of(teaching) as client:
        yield client


def test_a_file_is_uploaded_listed_read_and_deleted(teaching: Server, uploads: openai.OpenAI, tmp_path: Path) -> None:
    stored = uploads.files.create(file=("week.jsonl", JSONL), purpose="fine-tune")
    assert (stored.filename, stored.bytes, stored.purpose) == ("week.jsonl", len(JSONL), "fine-tune")
    assert stored.documents == 3
    assert stored.sha256 == hashlib.sha256(JSONL).hexdigest()
    assert uploads.files.retrieve(stored.id) == stored
    assert uploads.files.content(stored.id).read() == JSONL
    text = uploads.files.create(file=("notes.md", "größer\n".encode()), purpose="user_data")
    assert [one.id for one in uploads.files.list()] == [text.id, stored.id]
    assert [one.id for one in uploads.files.list(purpose="user_data")] == [text.id]
    assert {path.name for path in (tmp_path / "data" / "files").iterdir()} == {stored.id, text.id}
    assert uploads.files.delete(stored.id).deleted
    for call in (uploads.files.retrieve, uploads.files.content, uploads.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(stored.id)
    assert [path.name for path in (tmp_path / "data" / "files").iterdir()] == [text.id]


def test_pages_hold_every_file_once(uploads: openai.OpenAI) -> None:
    made = [uploads.files.create(file=(f"{number}.txt", b"text"), purpose="user_data").id for number in range(5)]
    assert [one.id for one in uploads.files.list(limit=2)] == made[::-1]
    assert [one.id for one in uploads.files.list(limit=2, order="asc")] == made
    first = uploads.files.list(limit=5)
    assert first.has_more is False
    for query in ("limit=0", "limit=x", "order=up", "after=file-none", "more=1"):
        assert send_query(uploads, query) in (400, 404)


def send_query(client: openai.OpenAI, query: str) -> int:
    try:
        client.get(f"/files?{query}", cast_to=object)
    except openai.APIStatusError as error:
        return error.status_code
    return 200


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"", "no lines"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "Line 2"),
        ("a.jsonl", b"secret\n", "Line 1 is not JSON"),
        ("a.jsonl", b"[" * 5000, "Line 1 is not JSON"),
        ("a.jsonl", b'{"messages": [{"role": "tool", "content": "x"}]}', "Line 1"),
        ("a.jsonl", b'{"prompt": "secret"}', "Line 1"),
        ("a.jsonl", b'{"prompt": "secret", "completion": " "}', "Line 1 is a conversation with an empty answer"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "secret"}]}', "Line 1 is a conversation without an"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt", b"a\0b", "zero byte"),
        ("a.txt", b" \n", "no text"),
        ("a.exe", b"text", "does not end in one of"),
        ("a", b"text", "does not end in one of"),
        ("a.txt", b"x" * 10_001, "more than 10,000 bytes"),
    ],
)
def test_a_file_that_could_not_be_learned_is_refused(
    teaching: Server, uploads: openai.OpenAI, tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        uploads.files.create(file=(name, content), purpose="fine-tune")
    assert sentence in caught.value.message
    assert "secret" not in caught.value.message
    assert caught.value.status_code in (400, 413)
    assert list((tmp_path / "data" / "files").iterdir()) == []


@pytest.mark.parametrize("name", ["../../out.txt", "/etc/out.txt", "..\\..\\out.txt", "a\nb.txt", "é" * 400 + ".txt"])
def test_a_name_is_a_label_and_never_a_path(uploads: openai.OpenAI, tmp_path: Path, name: str) -> None:
    if len(name) > 255:
        with pytest.raises(openai.BadRequestError):
            uploads.files.create(file=(name, b"text"), purpose="user_data")
        return
    stored = uploads.files.create(file=(name, b"text"), purpose="user_data")
    assert not {"/", "\\", "\n"} & set(stored.filename)
    assert [path.name for path in tmp_path.rglob("*out.txt")] == []
    assert (tmp_path / "data" / "files" / stored.id).read_bytes() == b"text"


BOUNDARY = "multipart/form-data; boundary=b"
FILE_PART = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\nx\r\n'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        (BOUNDARY, b""),
        (BOUNDARY, b"--c\r\n\r\n"),
        (BOUNDARY, FILE_PART),  # without its end
        (BOUNDARY, FILE_PART + b"--b--\r\n"),  # without a purpose
        (BOUNDARY, FILE_PART + FILE_PART + b"--b--\r\n"),
        (BOUNDARY, b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b--\r\n'),
        (BOUNDARY, b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n' + b"y" * 20_000 + b"\r\n--b--\r\n"),
        (BOUNDARY, b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n\r\n' * 100 + FILE_PART + b"--b--\r\n"),
        (BOUNDARY, b"--b\r\ncontent-disposition: form-data; name=" + b"x" * 9_000 + b"\r\n\r\n\r\n--b--\r\n"),
        (f"multipart/form-data; boundary={'b' * 5000}", b"x"),
    ],
)
def test_a_body_that_is_no_upload_is_refused(teaching: Server, tmp_path: Path, kind: str, body: bytes) -> None:
    status, _, content = send(teaching, "POST", "/v1/files", body, {"content-type": kind})
    assert (status, content["error"]["type"]) == (400, "invalid_request_error")
    assert list((tmp_path / "data" / "files").iterdir()) == []
    assert teaching.service.open_requests == 0


def test_a_file_that_is_deleted_while_it_is_read_is_whole_or_not_found(
    teaching: Server, uploads: openai.OpenAI, tmp_path: Path
) -> None:
    stored = uploads.files.create(file=("a.txt", b"x" * 9_000), purpose="user_data")
    assert teaching.service.files is not None
    with teaching.service.files.open(stored.id) as file:
        with ThreadPoolExecutor(4) as pool:
            gone = list(pool.map(lambda _: send(teaching, "DELETE", f"/v1/files/{stored.id}")[0], range(8)))
        assert file.read() == b"x" * 9_000
    assert 200 in gone
    assert set(gone) <= {200, 404}
    again = uploads.files.create(file=("a.txt", b"x"), purpose="user_data")
    (tmp_path / "data" / "files" / again.id).unlink()  # as between the two steps of deleting it
    assert send(teaching, "GET", f"/v1/files/{again.id}/content")[0] == 404


def test_without_a_data_folder_nothing_can_be_uploaded(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="--data FOLDER"):
        client.files.create(file=("a.txt", b"x"), purpose="user_data")


def test_files_outlive_the_server_and_leftovers_do_not(
    words_model: Path, start: Start, tmp_path: Path, registry: str | None
) -> None:
    settings = ServerSettings(words_model, port=0, data=tmp_path, registry=registry)
    with Server(settings) as server, client_of(server) as client:
        stored = client.files.create(file=("a.txt", b"text"), purpose="user_data")
    (tmp_path / "files" / ".partial-1").write_bytes(b"half")
    (tmp_path / "files" / "file-never-acknowledged").write_bytes(b"whole")
    (tmp_path / "files" / "thesis.docx").write_bytes(b"of somebody else")
    (tmp_path / "files" / "folder").mkdir()
    again = start(words_model, data=tmp_path, registry=registry)
    with client_of(again) as client:
        assert [one.id for one in client.files.list()] == [stored.id]
        assert client.files.content(stored.id).read() == b"text"
    left = sorted(path.name for path in (tmp_path / "files").iterdir())
    assert left == sorted([stored.id, "folder", "thesis.docx"])


def test_fields_beside_the_file_do_not_make_an_upload_endless(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        form = _Form("multipart/form-data; boundary=b", file, max_bytes=100)
        part = b'--b\r\nContent-Disposition: form-data; name="p"\r\n\r\n' + b"x" * 9_000 + b"\r\n"
        with pytest.raises(ApiError, match="divide it"):
            form.write(part * 1000)


def test_servers_share_files_and_never_clean_up_below_each_other(
    words_model: Path, start: Start, tmp_path: Path, registry: str | None
) -> None:
    first = start(words_model, data=tmp_path, registry=registry)
    (tmp_path / "files" / ".partial-1").write_bytes(b"an upload that arrives at the first server")
    second = start(words_model, data=tmp_path, registry=registry)
    assert (tmp_path / "files" / ".partial-1").exists()

    def upload(number: int) -> str:
        with client_of((first, second)[number % 2]) as client:
            return client.files.create(file=(f"{number}.txt", b"text"), purpose="user_data").id

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(upload, range(12)))
    for server in (first, second):
        with client_of(server) as client:
            assert sorted(one.id for one in client.files.list(limit=5)) == sorted(made)


def test_a_database_of_another_data_folder_is_refused(words_model: Path, tmp_path: Path, registry: str | None) -> None:
    url = registry or f"sqlite:///{tmp_path}/one.db"
    with Server(ServerSettings(words_model, port=0, data=tmp_path / "a", registry=url)):
        pass
    (tmp_path / "a" / "files" / "file-1").write_bytes(b"text")
    with pytest.raises(UserError, match="belongs to another database"):
        Server(ServerSettings(words_model, port=0, data=tmp_path / "a"))
    assert (tmp_path / "a" / "files" / "file-1").exists()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "is not a URL"),
        ("mysql://localhost/x", "names a mysql database"),
        ("postgresql://x@/x?host=/nowhere", "cannot be used|driver is not installed"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence(
    words_model: Path, tmp_path: Path, url: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Server(ServerSettings(words_model, port=0, data=tmp_path, registry=url))


def test_ids_that_no_database_takes_are_not_found(teaching: Server) -> None:
    for path in ("a%00b", "%ED%A0%80", "x" * 5000, "file-%F0%9F%98%80"):
        assert send(teaching, "GET", f"/v1/files/{path}")[0] == 404
    for query in ("after=a%00b", "purpose=a%00b", "after=%ED%A0%80"):
        assert send(teaching, "GET", f"/v1/files?{query}")[0] in (200, 404)


def test_one_long_line_is_checked_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "line"
    path.write_bytes(b"x" * 2**24)
    tracemalloc.start()
    try:
        assert check_content(path, "text") == 1
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
    path.write_bytes(b"x" * (2**20 - 1) + "日".encode() + b"x")  # a character on the border of two pieces
    assert check_content(path, "text") == 1
    path.write_bytes(b"x" * 10 + "日".encode()[:2])
    with pytest.raises(ApiError, match="not UTF-8"):
        check_content(path, "text")


def test_all_documents_together_are_bounded(start: Start, words_model: Path, tmp_path: Path) -> None:
    server = start(words_model, data=tmp_path, limits=Limits(stored_bytes=100))
    with client_of(server) as client:
        first = client.files.create(file=("a.txt", b"x" * 60), purpose="user_data")
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("b.txt", b"x" * 60), purpose="user_data")
        assert (caught.value.status_code, caught.value.code) == (413, "storage_full")
        assert [path.name for path in (tmp_path / "files").iterdir()] == [first.id]
        client.files.delete(first.id)
        client.files.create(file=("b.txt", b"x" * 60), purpose="user_data")


@pytest.mark.parametrize("path", ["/v1/files", "/v1/completions"])
def test_a_body_that_does_not_arrive_is_not_waited_for(
    start: Start, words_model: Path, tmp_path: Path, path: str
) -> None:
    server = start(words_model, data=tmp_path, limits=Limits(idle_seconds=0.3))
    host, port = urlsplit(server.url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\ncontent-type: {BOUNDARY}\r\n\r\n"
        connection.sendall(head.encode() + b"--b")
        answer = connection.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert server.service.open_requests == 0
    assert list((tmp_path / "files").iterdir()) == []


def test_asking_is_not_enough_to_upload(words_model: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("ask ask-0123456789abcdef\nteach teach-0123456789abc\n")
    server = start(words_model, data=tmp_path / "data", tokens=tmp_path / "tokens")
    with client_of(server, "ask-0123456789abcdef") as client, pytest.raises(openai.PermissionDeniedError):
        client.files.list()
    with client_of(server, "teach-0123456789abc") as client:
        assert client.files.list().data == []


@pytest.mark.slow
@pytest.mark.parametrize("point", UPLOADING)
def test_a_killed_server_has_every_acknowledged_file_exactly_once(
    words_model: Path, tmp_path: Path, point: str
) -> None:
    arguments = [sys.executable, "-m", "trc2", "serve", str(words_model), "--port", "0", "--data", str(tmp_path)]
    environment = {**os.environ, "TRC2_KILL_AT": f"{point}:3"}
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    url = process.stderr.readline().split(" at ")[1].split("/v1")[0]
    while True:
        try:
            urlopen(f"{url}/health").close()
            break
        except OSError:
            time.sleep(0.1)
    acknowledged = []
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for number in range(3):
            try:
                acknowledged.append(client.files.create(file=(f"{number}.txt", b"text"), purpose="user_data").id)
            except openai.APIConnectionError:
                break
    assert process.wait(30) == -9
    process.stderr.close()
    assert len(acknowledged) == 2
    with Server(ServerSettings(words_model, port=0, data=tmp_path)) as server, client_of(server) as client:
        there = [one.id for one in client.files.list(order="asc")]
        assert there[:2] == acknowledged
        assert len(there) == (3 if point == "file row" else 2)  # the third was committed, but its answer was lost
        assert all(client.files.content(one).read() == b"text" for one in there)
        assert {path.name for path in (tmp_path / "files").iterdir()} == set(there)
