"""Ways to a server other than plain HTTP at a port: TLS, a unix socket, a proxy's path; what uvicorn logs."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trustme

from fathom.entrypoints.server.settings import ServerSettings
from fathom.errors import ConfigError
from tests.client.processes import PATIENCE_S
from tests.server.conftest import POOL
from tests.server.processes import Server, Start, starting


class Certificates:
    """An authority, a certificate of 127.0.0.1 and one of a client, as files."""

    def __init__(self, folder: Path) -> None:
        authority, self.server, self.client = trustme.CA(), folder / "server.pem", folder / "client.pem"
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(self.server))
        authority.issue_cert("client@example.com").private_key_and_cert_chain_pem.write_to_path(str(self.client))

    def context(self, *, known: bool) -> ssl.SSLContext:
        """Of a client that checks the server; known: and has a certificate of its own."""
        context = ssl.create_default_context(cafile=self.authority)
        if known:
            context.load_cert_chain(self.client)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(
    tiny_chat_model: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Served with TLS to clients with a certificate, under /llm, to some web pages; uvicorn says much."""
    flags = ["--served-model-name=tiny", f"--ssl-certfile={certificates.server}"]
    flags += [f"--ssl-ca-certs={certificates.authority}", "--ssl-cert-reqs=2"]
    flags += ["--root-path=/llm", "--uvicorn-log-level=info", "--disable-uvicorn-access-log"]
    flags += ['--allowed-origins=["https://a.example", "https://b.example"]', "--allowed-origins=https://c.example"]
    flags += ['--allowed-methods=["GET"]', '--allowed-headers=["X-Mine"]', "--allow-credentials"]
    tls = certificates.context(known=True)
    started = Server(tiny_chat_model, tmp_path_factory.mktemp("secure"), *flags, POOL, "--api-key=k", tls=tls)
    started.http.headers["Authorization"] = "Bearer k"
    yield started
    assert started.stop() == 0


def test_https(secure: Server, certificates: Certificates) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    http = httpx.Client(verify=certificates.context(known=True))
    with openai.OpenAI(base_url=f"{secure.url}/v1", api_key="k", http_client=http, timeout=PATIENCE_S) as client:
        stream = client.completions.create(model="tiny", prompt="a", max_tokens=5, stream=True, temperature=0)
        text = "".join(chunk.choices[0].text for chunk in stream)
        whole = client.completions.create(model="tiny", prompt="a", max_tokens=5, temperature=0)
        assert text == whole.choices[0].text != ""


def test_who_has_no_certificate_is_not_let_in(secure: Server, certificates: Certificates) -> None:
    for context in (certificates.context(known=False), ssl.create_default_context()):
        with pytest.raises(httpx.TransportError), httpx.Client(verify=context) as http:
            http.get(f"{secure.url}/health", timeout=PATIENCE_S)
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https:", "http:") + "/health", timeout=PATIENCE_S)


def test_a_proxy_may_pass_its_path_on_or_not(secure: Server) -> None:
    for root in ("", "/llm"):
        assert secure.http.get(f"{root}/v1/models").status_code == 200
        assert secure.http.get(f"{root}/v1/models", headers={"Authorization": ""}).status_code == 401
        assert "<title>" in secure.http.get(f"{root}/").text
        assert secure.http.get(f"{root}/page/main.js").status_code == 200
        assert secure.http.get(f"{root}/nothing").status_code == 404
        assert secure.post(f"{root}/v1/messages", model=1).json()["type"] == "error"
    assert secure.http.get("/llm").headers["location"] == "/llm/"
    assert secure.http.get("/llm2/v1/models").status_code == 404
    assert secure.http.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]
    assert secure.metrics()['http_requests_total{path="/v1/models",status="200"}'] >= 2


def test_what_web_pages_may_do(secure: Server) -> None:
    def asking(origin: str, method: str, header: str = "X-Mine") -> httpx.Response:
        asks = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": header}
        return secure.http.options("/v1/models", headers={"Origin": origin} | asks)

    for name in "abc":
        answer = asking(f"https://{name}.example", "GET")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-allow-methods"] == "GET"
    assert asking("https://d.example", "GET").status_code == 400
    assert asking("https://a.example", "POST").status_code == 400
    assert asking("https://a.example", "GET", "X-Other").status_code == 400


def test_uvicorn_says_what_it_is_asked_to(secure: Server) -> None:
    log = secure.log.read_text()
    assert "[uvicorn.error] Started server process" in log
    assert "GET /" not in log


@pytest.fixture
def start(tiny_chat_model: Path, tmp_path: Path) -> Iterator[Start]:
    yield from starting(tiny_chat_model, tmp_path, POOL)


def test_a_unix_socket_is_there_while_the_server_is(start: Start, tmp_path: Path, tiny_chat_model: Path) -> None:
    path = tmp_path / "fathom.sock"
    server = start(f"--uds={path}")
    assert server.url == f"unix:{path}"
    assert path.is_socket()
    answer = server.post("/v1/completions", prompt="a", max_tokens=3)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 3)
    command = [sys.executable, "-m", "fathom", "serve", str(tiny_chat_model), f"--uds={path}"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (second.returncode, second.stderr.startswith(f"fathom: {path} is in use.")) == (1, True)
    assert server.http.get("/health").status_code == 200
    server.process.kill()
    server.wait()
    assert path.is_socket()  # nobody was there to take it away
    again = start(f"--uds={path}")
    assert again.http.get("/health").status_code == 200
    assert again.stop() == 0
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(tmp_path: Path, tiny_chat_model: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    command = [sys.executable, "-m", "fathom", "serve", str(tiny_chat_model), f"--uds={path}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, path.read_text()) == (1, "mine")
    assert f"{path} is in use" in run.stderr


def test_options_that_do_not_go_together(certificates: Certificates, tmp_path: Path) -> None:
    cert, authority = str(certificates.server), str(certificates.authority)
    key = tmp_path / "encrypted.pem"
    command = ["openssl", "pkey", "-in", cert, "-aes256", "-passout", "pass:secret", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    problems: list[tuple[dict[str, Any], str]] = [
        ({"ssl_keyfile": cert}, "ssl_keyfile needs ssl_certfile"),
        ({"ssl_cert_reqs": 2}, "ssl_cert_reqs needs ssl_certfile"),
        ({"ssl_certfile": authority}, "ssl_certfile .*authority.pem cannot be used"),
        ({"ssl_certfile": cert, "ssl_keyfile": str(key)}, "the key is encrypted"),
        ({"ssl_certfile": cert, "ssl_cert_reqs": 2}, "without ssl_ca_certs would let nobody in"),
        ({"ssl_certfile": cert, "ssl_ca_certs": authority}, "with ssl_ca_certs would let everybody in"),
        ({"ssl_certfile": cert, "ssl_ca_certs": os.devnull, "ssl_cert_reqs": 1}, "ssl_ca_certs /dev/null cannot"),
        ({"ssl_certfile": cert, "ssl_cert_reqs": 3}, "ssl_cert_reqs must be 0, 1 or 2, got 3"),
        ({"uds": "x", "api_server_count": 2}, "api_server_count must be 1 at a unix socket"),
        ({"root_path": "llm"}, "root_path must begin with a slash"),
        ({"root_path": "/llm/"}, "root_path must begin with a slash and end without"),
    ]
    for fields, problem in problems:
        with pytest.raises(ConfigError, match=problem):
            ServerSettings(**fields)
