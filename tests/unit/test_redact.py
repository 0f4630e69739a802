# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from imagebuild.redact import redact, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://anna:secret@example.org/simple.", "see https://***@example.org/simple."),
        ("https://token@example.org:8443/x", "https://***@example.org:8443/x"),
        ("https://a@b.example:secret@example.org/x", "https://***@example.org/x"),
        ("https://anna:sec/ret@example.org/x", "https://***@example.org/x"),
        ("'http://proxy.example.org:3128'", "'http://proxy.example.org:3128'"),
        ("https://example.org/blob?sig=abc&se=1 (gone)", "https://example.org/blob?*** (gone)"),
        ("Max retries exceeded with url: /f.whl?token=abc (Caused", "with url: /f.whl?*** (Caused"),
        ("https://example.org/@scope/name", "https://example.org/@scope/name"),
        ("https://example.org:8443/@scope/name", "https://example.org:8443/@scope/name"),
        ("is it there? yes", "is it there? yes"),
        (
            "two: http://a:b@x.example and http://c:d@y.example",
            "http://***@x.example and http://***@y.example",
        ),
    ],
)
def test_secrets_of_urls_are_hidden(text: str, shown: str) -> None:
    assert shown in redact(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://anna:secret@example.org/simple/?token=1#sha256=2",
        "https://anna:sec/ret@example.org/simple/",
        "https://secret@example.org/simple/",
    ],
)
def test_a_shown_url_is_host_and_path(url: str) -> None:
    assert without_credentials(url) == "https://example.org/simple/"
