# SPDX-License-Identifier: Apache-2.0
"""Bring the rest of one file over Xet, the hub's chunk store, in order, so that it can be resumed.

`hf download` writes a Xet file to a name of its own and starts over when it is killed; the stream
interface of hf_xet takes a first byte. Tokens last for minutes and hf_xet renews them by itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from imagebuild.models.hub import Hub, Remote, xet_off


def usable(remote: Remote) -> bool:
    """Tell whether a file can come over Xet: the hub offers it, hf_xet is there and not switched off."""
    return bool(remote.xet_hash) and importlib.util.find_spec("hf_xet") is not None and not xet_off()


def chunks(hub: Hub, remote: Remote, size: int, begin: int) -> Iterator[bytes]:
    """Yield a file's bytes from `begin` on.

    Raises Exception of hf_xet or of the client, for which the caller falls back to plain HTTP.
    """
    from hf_xet import XetFileInfo  # type: ignore[import-untyped]
    from huggingface_hub.utils._xet import (
        XetFileData,
        get_xet_session,
        refresh_xet_connection_info,
        xet_headers_without_auth,
    )

    headers = {"user-agent": "imagebuild"}
    if hub.token:
        headers["authorization"] = f"Bearer {hub.token}"
    data = XetFileData(remote.xet_hash, remote.xet_route)
    access = refresh_xet_connection_info(file_data=data, headers=headers)
    session: Any = get_xet_session()  # type: ignore[no-untyped-call]
    group = session.new_download_stream_group(
        endpoint=access.endpoint,
        token=access.access_token,
        token_expiry_unix_secs=access.expiration_unix_epoch,
        token_refresh_url=remote.xet_route,
        token_refresh_headers=headers,
        custom_headers=xet_headers_without_auth(headers),
    )
    stream = group.download_stream(XetFileInfo(remote.xet_hash, size), start=begin or None)
    try:
        yield from stream
    finally:
        stream.cancel()
