# SPDX-License-Identifier: Apache-2.0
"""Where wheels are found: pages of both forms, folders, several indexes, logins, proxies, certificates."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuild import process
from imagebuild.errors import IntegrityError, PreconditionError
from imagebuild.fetch import Retry, fetch
from imagebuild.settings import Settings
from tests.network.server import Fault, Server, serve, wheel

pytestmark = pytest.mark.loopback

RETRY = Retry(attempts=2, first_attempts=2, base_s=0.01)


@pytest.mark.parametrize("style", ["json", "html"])
def test_a_local_version_in_a_file_name(style: str, server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 100)
    artifact = replace(artifact, version="1.0+cu130", file="demo-1.0+cu130-py3-none-any.whl")
    server.add_wheel(artifact, data, style=style)
    assert fetch([artifact], settings).has(artifact)


@pytest.mark.parametrize("style", ["json", "html"])
def test_another_hash_on_the_index_is_told_before_the_download(
    style: str, server: Server, settings: Settings
) -> None:
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data, style=style, sha256="ab" * 32)
    with pytest.raises(IntegrityError) as caught:
        fetch([artifact], settings)
    assert artifact.sha256 in str(caught.value) and "ab" * 32 in str(caught.value)
    assert f"{server.url}/simple" in str(caught.value) and server.seen(path) == []


@pytest.mark.parametrize("style", ["json", "html"])
def test_an_index_that_states_no_hash(style: str, server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data, style=style, sha256="")
    assert fetch([artifact], settings).has(artifact)
    (settings.cache_dir / "files" / artifact.sha256[:2] / artifact.sha256).unlink()
    server.always[path] = Fault(flip=3)
    with pytest.raises(IntegrityError):
        fetch([artifact], settings)


def test_the_index_with_the_locked_hash_is_taken(server: Server, settings: Settings) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, b"rebuilt", sha256="ab" * 32)
    with serve() as second:
        second.add_wheel(artifact, data)
        more = settings.model_copy(update={"extra_index_urls": (f"{second.url}/simple/",)})
        assert fetch([artifact], more).has(artifact)


def test_a_broken_extra_index_does_not_matter_when_another_has_the_file(
    server: Server, settings: Settings
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, data)
    broken = settings.model_copy(
        update={"index_url": "http://127.0.0.1:1/simple", "extra_index_urls": (f"{server.url}/simple",)}
    )
    assert fetch([artifact], broken, retry=RETRY).has(artifact)


def test_a_missing_file_names_all_places_and_what_is_there_instead(
    server: Server, settings: Settings
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(replace(artifact, file="demo-1.0-cp312-abi3-linux_x86_64.whl"), data)
    with serve() as second:
        more = settings.model_copy(update={"extra_index_urls": (f"{second.url}/simple",)})
        with pytest.raises(PreconditionError) as caught:
            fetch([artifact], more)
        text = str(caught.value)
        assert f"{server.url}/simple" in text and f"{second.url}/simple" in text
        assert "demo-1.0-cp312-abi3-linux_x86_64.whl" in text and "next:" in text


def test_something_that_is_no_index(server: Server, settings: Settings) -> None:
    artifact, _ = wheel("demo", 100)
    server.files["/simple/demo/"] = ("application/pdf", b"%PDF")
    with pytest.raises(PreconditionError, match="does not answer as a Python index"):
        fetch([artifact], settings)
    with pytest.raises(PreconditionError, match="does not answer as a Python index"):
        fetch([artifact], settings.model_copy(update={"index_url": "no-url"}))


def test_folders_and_file_indexes_need_no_network(
    settings: Settings, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, paged, linked = (wheel(name, 100) for name in ("flat", "paged", "linked"))
    links, index = tmp_path / "links", tmp_path / "index"
    links.mkdir()
    (links / flat[0].file).write_bytes(flat[1])
    (index / "paged").mkdir(parents=True)
    (index / "paged" / paged[0].file).write_bytes(paged[1])
    page = f'<a href="../files/{linked[0].file}#sha256={linked[0].sha256}">{linked[0].file}</a>'
    (index / "linked").mkdir()
    (index / "linked" / "index.html").write_text(page)
    (index / "files").mkdir()
    (index / "files" / linked[0].file).write_bytes(linked[1])
    monkeypatch.setenv("PIP_FIND_LINKS", f"{links} {tmp_path / 'missing'}")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index.as_uri()} file:///no/such/index")
    store = fetch([flat[0], paged[0], linked[0]], settings)
    assert all(store.has(artifact) for artifact, _ in (flat, paged, linked))
    assert server.requests == []


def test_a_folder_with_other_bytes_falls_behind_the_index(
    settings: Settings, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, data)
    (tmp_path / artifact.file).write_bytes(b"another build of it")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch([artifact], settings).has(artifact)


def test_pages_named_by_find_links(
    settings: Settings, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, data)
    server.files["/stable.html"] = ("text/html", f'<a href="files/{artifact.file}">x</a>'.encode())
    del server.files["/simple/demo/"]
    monkeypatch.setenv("PIP_FIND_LINKS", f"{server.url}/stable.html")
    assert fetch([artifact], settings).has(artifact)


@pytest.mark.parametrize("how", ["url", "netrc", "uv"])
def test_logins_work_and_are_never_shown(
    how: str, server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    user, password = "anna", "s3cr%t/@"
    server.login = f"{user}:{password}"
    artifact, data = wheel("demo", 100)
    path = server.add_wheel(artifact, data)
    quoted = "s3cr%25t%2F%40"
    url = f"{server.url}/simple"
    if how == "url":
        url = url.replace("http://", f"http://{user}:{quoted}@")
    elif how == "netrc":
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {user} password {password}\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    else:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"my-index={url}")
        monkeypatch.setenv("UV_INDEX_MY_INDEX_USERNAME", user)
        monkeypatch.setenv("UV_INDEX_MY_INDEX_PASSWORD", password)
    chosen = settings.model_copy(update={"index_url": None if how == "uv" else url})
    assert fetch([artifact], chosen).has(artifact)
    (settings.cache_dir / "files" / artifact.sha256[:2] / artifact.sha256).unlink()
    texts = [repr(chosen), caplog.text]
    for fault in (Fault(status=500), Fault(status=403), Fault(status=404), Fault(flip=1)):
        server.always[path] = fault
        with pytest.raises((PreconditionError, IntegrityError)) as caught:
            fetch([artifact], chosen, retry=RETRY)
        texts.append(str(caught.value))
    server.always["/simple/demo/"] = Fault(status=500)
    with pytest.raises(PreconditionError) as caught:
        fetch([artifact], chosen, retry=RETRY)
    texts.append(str(caught.value))
    for secret in (password, quoted, "s3cr", user):
        assert not [text for text in texts if secret in text]


def test_the_environments_proxy_is_used(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, data)
    monkeypatch.setenv("http_proxy", server.url)
    index = "http://index.example.org/simple"
    assert fetch([artifact], settings.model_copy(update={"index_url": index})).has(artifact)
    assert server.requests[0].headers[":target"] == f"{index}/demo/"


def test_pips_proxy_goes_before_the_environments(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, data = wheel("demo", 100)
    server.add_wheel(artifact, data)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("PIP_PROXY", server.url)
    index = "http://index.example.org/simple"
    assert fetch([artifact], settings.model_copy(update={"index_url": index}), retry=RETRY).has(artifact)


@pytest.mark.subprocess
def test_apts_proxy_is_used_for_debs(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from imagebuild.hostconf import apt_proxies
    from tests.network.test_fetch import deb

    (tmp_path / "apt.conf").write_text(
        f'Acquire::http::Proxy "{server.url}";\nAcquire::http::Proxy::direct.example.org "DIRECT";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.setattr("imagebuild.fetch.apt_proxies", apt_proxies)
    package, data = deb("libfoo")
    server.files[f"/debian/{package.path}"] = ("application/octet-stream", data)
    behind = settings.model_copy(update={"debian_mirror": "http://deb.example.org/debian"})
    assert fetch([package], behind).has(package)
    assert server.requests[0].headers[":target"] == f"http://deb.example.org/debian/{package.path}"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    process.output(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)]
    )  # fmt: skip
    return cert


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "how", ["setting", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "PIP_TRUSTED_HOST", "nothing"]
)
def test_certificates(
    how: str, settings: Settings, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    artifact, data = wheel("demo", 100)
    with serve(tls=context) as secure:
        secure.add_wheel(artifact, data)
        chosen = settings.model_copy(update={"index_url": f"{secure.url}/simple"})
        if how == "setting":
            chosen = chosen.model_copy(update={"ca_file": certificate})
        elif how == "PIP_TRUSTED_HOST":
            monkeypatch.setenv(how, "127.0.0.1")
        elif how != "nothing":
            monkeypatch.setenv(how, str(certificate))
        if how == "nothing":
            with pytest.raises(PreconditionError, match="certificate is not trusted") as caught:
                fetch([artifact], chosen)
            assert "PIP_CERT" in str(caught.value)
        else:
            assert fetch([artifact], chosen).has(artifact)
