# SPDX-License-Identifier: Apache-2.0
"""Key pairs as cosign uses them: ECDSA on P-256 with SHA-256, the public key a PEM file.

The private key is PKCS#8 in PEM, with a password or without (`cosign import-key-pair` takes it).
This is the only module that imports cryptography.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagebuild.errors import ManifestError, PreconditionError

PASSWORD = "IMAGEBUILD_KEY_PASSWORD"
_SCHEME = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class PublicKey:
    """Verifies signatures."""

    _key: ec.EllipticCurvePublicKey

    @property
    def pem(self) -> str:
        """The key as cosign.pub has it."""
        info = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_bytes(serialization.Encoding.PEM, info).decode()

    @property
    def keyid(self) -> str:
        """The sha256 of the key in DER form."""
        info = serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(self._key.public_bytes(serialization.Encoding.DER, info)).hexdigest()

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Tell whether a signature (DER) is this key's over the data."""
        try:
            self._key.verify(signature, data, _SCHEME)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """Signs; not in the repr."""

    _key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return "PrivateKey()"

    @property
    def public(self) -> PublicKey:
        """The other half."""
        return PublicKey(self._key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return a signature in DER form."""
        return self._key.sign(data, _SCHEME)


def new_key(path: Path, password: str) -> PublicKey:
    """Make a key pair: the private key in `path` (mode 0600), the public one in `path` with .pub.

    An empty password leaves the private key in the clear. Raises ManifestError if a file is there.
    """
    public = path.with_suffix(".pub")
    for file in (path, public):
        if file.exists():
            raise ManifestError(f"{file}: exists; a key is never replaced", hint="name another file")
    key = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
    secret = (
        serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    )
    pem = key._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file_out:
        file_out.write(pem)
    public.write_text(key.public.pem, encoding="utf-8")
    return key.public


def read_private_key(path: Path, password: str) -> PrivateKey:
    """Read a private key.

    Raises PreconditionError if it is missing, of another kind, or the password is wrong.
    """
    try:
        secret = password.encode() if password else None
        key = serialization.load_pem_private_key(path.read_bytes(), secret)
    except OSError as error:
        raise PreconditionError(f"{path}: {error.strerror}", hint="build.py receipt new-key FILE") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PreconditionError(
            f"{path}: no PKCS#8 private key that opens with this password",
            hint=f"{PASSWORD} holds the password; build.py receipt new-key FILE makes a key",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PreconditionError(f"{path}: must be an ECDSA key on P-256, as cosign's are")
    return PrivateKey(key)


def read_public_key(path: Path) -> PublicKey:
    """Read a public key. Raises PreconditionError if it is missing or of another kind."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise PreconditionError(f"{path}: {error.strerror}", hint="--key FILE.pub") from None
    except (ValueError, UnsupportedAlgorithm):
        raise PreconditionError(f"{path}: no public key in PEM", hint="--key FILE.pub") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PreconditionError(f"{path}: must be an ECDSA key on P-256, as cosign's are")
    return PublicKey(key)
