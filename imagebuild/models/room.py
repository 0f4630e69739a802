# SPDX-License-Identifier: Apache-2.0
"""Is there room: bytes, inodes and the user's quota, looked up before anything is fetched."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import PreconditionError
from imagebuild.progress import files_text, size_text

MARGIN = 256 << 20  # bytes left free for the file system's own needs
_Q_GETQUOTA, _USRQUOTA, _QUOTA_BLOCK = 0x800007, 0, 1024  # linux/quota.h


@dataclass(frozen=True)
class Room:
    """What a file system has left for this user: bytes and files; None where it sets no such limit."""

    free: int
    inodes: int | None
    quota: int | None
    quota_inodes: int | None


def look(folder: Path) -> Room:
    """Return the room below a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    files = os.statvfs(folder)
    quota = user_quota(folder)
    return Room(
        free=shutil.disk_usage(folder).free,
        inodes=files.f_favail if files.f_files else None,
        quota=quota[0] if quota else None,
        quota_inodes=quota[1] if quota else None,
    )


def require(folder: Path, need: int, count: int, inspect: Callable[[Path], Room] = look) -> None:
    """Raise PreconditionError with all numbers unless `need` bytes in `count` files have room in `folder`."""
    room = inspect(folder)
    lines = []
    if need and need + MARGIN > room.free:
        lines.append(f"space: {size_text(need)} needed, {size_text(room.free)} free")
    if room.quota is not None and need + MARGIN > room.quota:
        lines.append(f"quota: {size_text(need)} needed, {size_text(max(0, room.quota))} left of your quota")
    for name, left in (("inodes", room.inodes), ("quota of files", room.quota_inodes)):
        if left is not None and count > left:
            lines.append(f"{name}: {files_text(count)} to write, {left} left")
    if lines:
        raise PreconditionError(
            f"no room in {folder}: " + "; ".join(lines),
            hint="free space there, or use --dir DIR on a larger disk; what is there already does not count",
        )


class _Quota(ctypes.Structure):
    """struct if_dqblk of linux/quota.h."""

    _fields_ = (
        ("block_hard", ctypes.c_uint64),
        ("block_soft", ctypes.c_uint64),
        ("space", ctypes.c_uint64),
        ("inode_hard", ctypes.c_uint64),
        ("inode_soft", ctypes.c_uint64),
        ("inodes", ctypes.c_uint64),
        ("block_time", ctypes.c_uint64),
        ("inode_time", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


def user_quota(folder: Path) -> tuple[int | None, int | None] | None:
    """Return what is left of this user's quota (bytes, files), or None without one.

    The kernel tells each user of a local file system its own quota; project quotas of XFS and ext4 are
    in the free space already. NFS servers tell only their own tool, so there a write fails instead.
    """
    device = _device(folder)
    quota = _Quota()
    try:
        call = ctypes.CDLL(None, use_errno=True).quotactl
        failed = call(
            ctypes.c_int((_Q_GETQUOTA << 8 | _USRQUOTA) - (1 << 32)),
            ctypes.c_char_p(os.fsencode(device or "")),
            ctypes.c_int(os.getuid()),
            ctypes.byref(quota),
        )
    except (OSError, AttributeError):
        return None
    if not device or failed:
        return None
    return left(quota.block_hard, quota.space, quota.inode_hard, quota.inodes)


def left(block_hard: int, space: int, inode_hard: int, inodes: int) -> tuple[int | None, int | None]:
    """Return (bytes, files) left under hard limits in blocks of 1 KiB and in files; 0 means no limit."""
    blocks = block_hard * _QUOTA_BLOCK - space if block_hard else None
    return blocks, (inode_hard - inodes if inode_hard else None)


def _device(folder: Path) -> str | None:
    """Return the block device that a folder's file system is mounted from."""
    number = os.stat(folder).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 2]
    return None
