# SPDX-License-Identifier: Apache-2.0
"""What looks like a token, password or private key, in file contents, names and variables."""

from __future__ import annotations

import posixpath
import re

_FILES = re.compile(
    r"^(\.netrc|\.pypirc|\.git-credentials|\.npmrc|id_(rsa|dsa|ecdsa|ed25519)|cosign\.key|credentials)$"
)
# Forms that their issuers document: Hugging Face, GitHub, GitLab, AWS, Slack, OpenAI, a JWT.
_TOKENS = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bgh[opsru]_[A-Za-z0-9]{36}|\bgithub_pat_\w{60,}|\bglpat-[\w-]{20,}"
    rb"|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\bsk-(proj-)?[A-Za-z0-9]{32,}"
    rb"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
)
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_ADDRESS = re.compile(rb"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@")
_VARIABLE = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_PROXY = re.compile(r"PROXY|_CA_BUNDLE$|^SSL_CERT_|^(PIP|UV)_|^CURL_CA", re.IGNORECASE)


def secret_in(content: bytes) -> str:
    """Say what secret a text holds; empty if none. The secret itself is not in the answer."""
    if _KEY.search(content):
        return "holds a private key"
    if _TOKENS.search(content):
        return "holds a token"
    return "holds an address with a password" if _ADDRESS.search(content) else ""


def secret_in_file(path: str, content: bytes | None) -> str:
    """Say what secret an unexpected or changed file holds; empty if none."""
    if _FILES.match(posixpath.basename(path)):
        return "a file of credentials"
    return secret_in(content) if content is not None else ""


def variable_check(name: str, value: str) -> str:
    """Return the check that a variable or label which the Plan does not have belongs to."""
    if (_VARIABLE.search(name) and value) or secret_in(value.encode()):
        return "secrets"
    return "traces" if _PROXY.search(name) else "configuration"
