# SPDX-License-Identifier: Apache-2.0
"""The certificate files of a base. The expected hashes come from `openssl x509 -subject_hash`."""

from __future__ import annotations

import base64

import pytest

from imagebuild.layer.certificates import certificate_entries, der, subject_hash
from imagebuild.layer.entries import LayerError, file_entry
from imagebuild.layer.tree import by_path

OIDS = {"C": b"\x55\4\6", "O": b"\x55\4\x0a", "OU": b"\x55\4\x0b", "CN": b"\x55\4\3", "L": b"\x55\4\7"}
UTF8, PRINTABLE, BMP = 12, 19, 30


def tlv(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def name(*rdns: tuple[tuple[str, int, bytes], ...]) -> bytes:
    return tlv(
        0x30,
        *(
            tlv(0x31, *(tlv(0x30, tlv(6, OIDS[key]), tlv(tag, value)) for key, tag, value in rdn))
            for rdn in rdns
        ),
    )


def certificate(subject: bytes, *, version: bool = True) -> bytes:
    head = [tlv(0xA0, tlv(2, b"\2"))] if version else []
    empty = tlv(0x30)
    body = tlv(0x30, *head, tlv(2, b"\1"), empty, empty, empty, subject, empty)
    return tlv(0x30, body, empty, tlv(3, b"\0"))


def pem(subject: bytes) -> bytes:
    text = base64.encodebytes(certificate(subject))
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


ISRG = name(
    (("C", PRINTABLE, b"US"),),
    (("O", PRINTABLE, b"Internet Security Research Group"),),
    (("CN", PRINTABLE, b"ISRG Root X2"),),
)
NETLOCK = name(
    (("C", PRINTABLE, b"HU"),),
    (("L", UTF8, b"Budapest"),),
    (("O", UTF8, b"NetLock Kft."),),
    (("OU", UTF8, "Tanúsítványkiadók (Certification Services)".encode()),),
    (("CN", UTF8, "NetLock Arany (Class Gold) Főtanúsítvány".encode()),),
)
SPACES = name(
    (("C", PRINTABLE, b"DE"),),
    (("O", UTF8, "  Two   Spaces Ä AND Upper ".encode()),),
    (("CN", UTF8, b"x"), ("OU", UTF8, b"multi")),
)


@pytest.mark.parametrize(
    ("subject", "expected"), [(ISRG, "0b9bc432"), (NETLOCK, "988a38cb"), (SPACES, "cf46f6f9")]
)
def test_hash_is_openssls(subject, expected):
    assert subject_hash(certificate(subject), "x") == expected
    assert subject_hash(certificate(subject, version=False), "x") == expected


def test_hash_does_not_depend_on_the_string_type():
    other = name(
        (("C", PRINTABLE, b"us"),),
        (("O", UTF8, b"Internet  Security Research Group "),),
        (("CN", BMP, "ISRG Root X2".encode("utf-16-be")),),
    )
    assert subject_hash(certificate(other), "x") == "0b9bc432"


@pytest.mark.parametrize("raw", [b"", b"\x30\x82", b"\x30\x03\x30\x01\x02", b"not a certificate"])
def test_refuses_what_is_no_certificate(raw):
    with pytest.raises(LayerError, match=r"bad\.crt: not a DER certificate"):
        subject_hash(raw, "bad.crt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "holds 0 PEM certificates"),
        (pem(ISRG) + pem(ISRG), "holds 2 PEM certificates"),
        (b"-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n", "damaged PEM"),
    ],
)
def test_refuses_bad_pem(text, message):
    with pytest.raises(LayerError, match=message):
        der(text, "bad.crt")


def test_entries():
    folder = "usr/share/ca-certificates"
    tree = by_path(
        [
            file_entry(f"{folder}/mozilla/B (c), d.crt", pem(ISRG).rstrip()),
            file_entry(f"{folder}/mozilla/A.crt", pem(ISRG)),
            file_entry(f"{folder}/mozilla/README", b""),
        ]
    )
    made = by_path(certificate_entries(tree))
    links = {path: entry.target for path, entry in made.items() if entry.kind == "symlink"}
    assert links == {
        "etc/ssl/certs/A.pem": f"/{folder}/mozilla/A.crt",
        "etc/ssl/certs/B_=c=__d.pem": f"/{folder}/mozilla/B (c), d.crt",
        "etc/ssl/certs/0b9bc432.0": "A.pem",
        "etc/ssl/certs/0b9bc432.1": "B_=c=__d.pem",
    }
    assert made["etc/ssl/certs/ca-certificates.crt"].read() == pem(ISRG) * 2
    conf = made["etc/ca-certificates.conf"].read().decode()
    assert conf.endswith("#\nmozilla/A.crt\nmozilla/B (c), d.crt\n")


def test_no_certificates_no_files():
    assert certificate_entries({}) == []
