# SPDX-License-Identifier: Apache-2.0
"""Users and groups of an image: Debian's fixed ones and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from imagebuild.layer.entries import Entry, LayerError, dir_entry, file_entry


@dataclass(frozen=True)
class User:
    """A line of /etc/passwd that Debian does not have; its home is made, writable for user and group.

    An account without password. `gid` must be a group of the image.
    """

    name: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/bash"
    comment: str = ""


def account_entries(
    master: Callable[[str], str], users: Sequence[User], groups: Mapping[str, int]
) -> list[Entry]:
    """Return the four account files and our users' homes.

    `master` gives the text of base-passwd's `passwd` or `group` master; the files become what pwconv and
    grpconv make of them, but with no day of the last password change (the day of the build; no ageing).
    `groups` is name -> gid. Raises LayerError for a name or id that is given twice, or a user whose group
    does not exist.
    """
    passwd = [line.split(":") for line in master("passwd").splitlines()]
    group = [line.split(":") for line in master("group").splitlines()]
    gshadow = [[f[0], "*", "", f[3]] for f in group] + [[name, "!", "", ""] for name in groups]
    passwd = [[f[0], "x", *f[2:]] for f in passwd]
    group = [[f[0], "x", *f[2:]] for f in group] + [[name, "x", str(gid), ""] for name, gid in groups.items()]
    homes = []
    for user in users:
        if str(user.gid) not in [f[2] for f in group]:
            raise LayerError(f"users.{user.name} of the base settings: no group has gid {user.gid}")
        passwd.append([user.name, "x", str(user.uid), str(user.gid), user.comment, user.home, user.shell])
        homes.append(dir_entry(user.home.lstrip("/"), 0o770, user.uid, user.gid))
    for what, lines in (("users", passwd), ("groups", group)):
        for column in (0, 2):
            values = [f[column] for f in lines]
            twice = sorted({v for v in values if values.count(v) > 1})
            if twice:
                raise LayerError(f"{what} of the base settings: {', '.join(twice)} exists already")
    shadow = [[f[0], "*", "", "0", "99999", "7", "", "", ""] for f in passwd]
    shadow_gid = next((int(f[2]) for f in group if f[0] == "shadow"), 0)
    return [
        *homes,
        _file("passwd", passwd, 0o644, 0),
        _file("group", group, 0o644, 0),
        _file("shadow", shadow, 0o640, shadow_gid),
        _file("gshadow", gshadow, 0o640, shadow_gid),
    ]


def _file(name: str, lines: Sequence[Sequence[str]], mode: int, gid: int) -> Entry:
    text = "".join(":".join(fields) + "\n" for fields in lines)
    return file_entry(f"etc/{name}", text.encode(), mode, 0, gid)
