# SPDX-License-Identifier: Apache-2.0
"""Print every path below a root: {"path": [kind, mode, uid, gid, size, mtime, sha256 or link text, inode]}.

argv: the root, then folders (absolute in the image) that are other file systems and belong to it all
the same. Other mounts are left out; the inode is 0 for a file of one name. Hashing uses all cores.
"""

import hashlib
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor

root, volumes = sys.argv[1].rstrip("/"), sys.argv[2:]
device = os.lstat(root or "/").st_dev


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def walk(folder):
    for name in sorted(os.listdir(f"{root}/{folder}")):
        path = f"{folder}/{name}" if folder else name
        status = os.lstat(f"{root}/{path}")
        if status.st_dev != device and not any(f"/{path}/".startswith(f"{v}/") for v in volumes):
            continue
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from walk(path)


def row(item):
    path, status = item
    mode, last = status.st_mode, ""
    if stat.S_ISREG(mode):
        kind, last = "file", sha256(f"{root}/{path}")
    elif stat.S_ISLNK(mode):
        kind, last = "symlink", os.readlink(f"{root}/{path}")
    else:
        kind = "dir" if stat.S_ISDIR(mode) else "device"
    size = status.st_size if kind == "file" else 0
    owner = [status.st_uid, status.st_gid]
    inode = status.st_ino if kind == "file" and status.st_nlink > 1 else 0
    return path, [kind, stat.S_IMODE(mode), *owner, size, int(status.st_mtime), last, inode]


with ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(dict(pool.map(row, walk("")))))
