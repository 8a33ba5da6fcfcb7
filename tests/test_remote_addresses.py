"""Which workers may be asked, and which token goes where."""

from __future__ import annotations

import pytest
from h3te.encoder.parallel.remote import ListedWorker, UnlistedAddress, WorkerAddress, read_list, token_for

parse = WorkerAddress.parse


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:8189/x", "127.0.0.1:8189"),
        (" 127.0.0.1:9000 ", "http://127.0.0.1:9000/x", "127.0.0.1:9000"),
        ("http://GPU.example.org", "http://gpu.example.org:8189/x", "gpu.example.org:8189"),
        ("https://gpu.example.org/", "https://gpu.example.org:443/x", "https://gpu.example.org:443"),
        ("[::1]:8190", "http://[::1]:8190/x", "[::1]:8190"),
        ("my_host", "http://my_host:8189/x", "my_host:8189"),
    ],
)
def test_address_is_read_as_people_write_it(text, url, shown):
    address = parse(text)
    assert address.url("/x") == url
    assert str(address) == shown
    assert parse(shown) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", None, 8189, "ftp://host", "file:///etc/passwd", "http://", "host:0", "host:99999", "host:port",
        "http://user:secret@host", "secret@127.0.0.1", "http://host/path", "http://host?query", "http://host#part",
        "http://127.0.0.1\\@evil.example", "ho st", "host\r\nX: y", "http://[::1", "[fe80::1%eth0]:80", "hört",
        "http://a:b:c", "x" * 300,
    ],
)  # fmt: skip
def test_what_is_no_plain_address_is_refused(text):
    with pytest.raises(ValueError, match=r"expected a worker's address such as 127\.0\.0\.1:8189") as refused:
        parse(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["127.0.0.1", "127.8.9.10:1", "localhost:8189", "LOCALHOST", "[::1]"])
def test_loopback_needs_no_list(text):
    assert parse(text).is_loopback
    assert token_for(parse(text), [], None, "how") is None
    assert token_for(parse(text), [], "from-environment", "how") == "from-environment"


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "0.0.0.0", "[::]", "2130706433", "127.1", "0x7f000001", "localhost.evil.example", "127.0.0.1.nip.io",
     "https://evil.example", "[::ffff:10.0.0.1]"],
)  # fmt: skip
def test_any_other_address_must_be_listed_and_gets_no_token_of_the_environment(text):
    with pytest.raises(UnlistedAddress, match=r"or one that its owner listed, got .*you trust that machine, do this"):
        token_for(parse(text), [], "from-environment", "do this")
    listed = [ListedWorker(parse(text))]
    assert token_for(parse(text), listed, "from-environment", "do this") is None


def test_token_goes_to_the_address_of_its_own_line_alone():
    lines = [
        "# mine",
        "",
        "10.0.0.1 one  # the GPU",
        "https://gpu.example.org two#2",
        "127.0.0.1:8189 three",
        "10.0.0.9",
    ]
    listed = read_list(lines, "workers.txt")

    def token(text: str) -> str | None:
        return token_for(parse(text), listed, "environment", "how")

    assert token("10.0.0.1") == token("10.0.0.1:8189") == "one"
    assert token("https://gpu.example.org") == "two#2"
    assert token("127.0.0.1") == "three"
    assert token("127.0.0.1:8190") == "environment"
    assert token("10.0.0.9") is None
    for other in ("10.0.0.1:9000", "https://10.0.0.1", "http://gpu.example.org", "gpu.example.org:443", "10.0.0.2"):
        with pytest.raises(UnlistedAddress):
            token(other)
    assert not any(secret in repr(listed) for secret in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("10.0.0.1 secret more", r"workers\.txt, line 2: expected an address and at most one token"),
        ("10.0.0.1 sécret", r"workers\.txt, line 2: expected an address and at most one token"),
        ("ftp://host secret", r"workers\.txt, line 2: .*expected a worker's address"),
        ("secret/+a== 10.0.0.1", r"workers\.txt, line 2: .*expected a worker's address"),
        ("http://me:secret/@10.0.0.1", r"workers\.txt, line 2: .*expected a worker's address"),
    ],
)
def test_line_that_cannot_be_read_is_named_without_its_token(line, message):
    with pytest.raises(ValueError, match=message) as refused:
        read_list(["10.0.0.1 fine", line], "workers.txt")
    assert "secret" not in str(refused.value) and "sécret" not in str(refused.value)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ü", ""])
def test_token_that_cannot_be_sent_is_refused_unseen(token):
    with pytest.raises(ValueError, match="expected a token of 1 to 512 printable") as refused:
        token_for(parse("localhost"), [], token, "how")
    assert not token or token not in str(refused.value)
