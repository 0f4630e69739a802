# SPDX-License-Identifier: Apache-2.0
"""Run a command in an unpacked image, as a container engine would: own namespaces, no network.

usage: unshare --mount --net --pid --ipc --uts --fork --kill-child python enter.py JSON COMMAND...
JSON: {"root", "scratch", "env", "user": "uid:gid", "workdir", "read_only", "folders", "volumes"}. `folders`
and `volumes` map image paths to folders of the host, the first ones read-only; `scratch` is an empty
folder. The exit status is the command's.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def loopback_up():
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def prepare(given):
    """Return the root: the image below a layer in memory, so that nothing that runs can change the image."""
    mount("--make-rprivate", "/")
    scratch = given["scratch"]
    mount("-t", "tmpfs", "tmpfs", scratch)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{scratch}/{name}")
    root = f"{scratch}/root"
    layers = f"lowerdir={given['root']},upperdir={scratch}/upper,workdir={scratch}/work"
    mount("-t", "overlay", "-o", layers, "overlay", root)
    for place in given["folders"]:
        os.makedirs(f"{root}{place}", exist_ok=True)
    if given["read_only"]:
        mount("-o", "remount,ro", root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "sysfs", "-o", "ro", "sysfs", f"{root}/sys")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for name, (major, minor) in NODES.items():
        os.mknod(f"{root}/dev/{name}", 0o020666, os.makedev(major, minor))
        os.chmod(f"{root}/dev/{name}", 0o666)
    os.mkdir(f"{root}/dev/shm")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp")
    for place, folder in given["folders"].items():
        mount("--bind", "-o", "ro", folder, f"{root}{place}")
    for target, folder in given["volumes"].items():
        mount("--bind", folder, f"{root}{target}")
    return root


def main():
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    loopback_up()
    os.chroot(prepare(given))
    os.chdir(given["workdir"])
    uid, gid = map(int, given["user"].split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
    os.execvpe(command[0], command, given["env"])


main()
