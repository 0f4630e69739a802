# SPDX-License-Identifier: Apache-2.0
"""What a traced start tried to reach: strace's log of the network calls → addresses beyond loopback."""

from __future__ import annotations

import ipaddress
import re

CALLS = ("connect", "sendto", "sendmsg", "sendmmsg")
_DNS = 53
# strace(1), decoded addresses: {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("192.0.2.1")}
_IPV4 = re.compile(r'sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)')
_IPV6 = re.compile(r'sin6_port=htons\((\d+)\).*?inet_pton\(AF_INET6, "([^"]+)"')
_CALL = re.compile(rf"(?:^|\s)({'|'.join(CALLS)})\(")


def attempts(log: str) -> list[str]:
    """Return each "call address:port" that was tried, loopback left out, but for its DNS port.

    A resolver without a configured server asks 127.0.0.1:53 (resolv.conf(5)), so that port on
    loopback is a question to the network all the same.
    """
    found: dict[str, None] = {}
    for line in log.splitlines():
        call = _CALL.search(line)
        if call is None:
            continue
        for port, address in (*_IPV4.findall(line), *_IPV6.findall(line)):
            ip = ipaddress.ip_address(address)
            if int(port) == _DNS or not (ip.is_loopback or ip.is_unspecified):
                found[f"{call[1]} {address}:{port}"] = None
    return list(found)


def network_calls(log: str) -> int:
    """Return how many network calls the log has at all: a trace that saw none has traced nothing."""
    return sum(1 for line in log.splitlines() if _CALL.search(line))
