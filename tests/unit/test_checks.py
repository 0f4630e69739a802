# SPDX-License-Identifier: Apache-2.0
"""Every difference between an image and its Plan is a finding of exactly one check."""

from dataclasses import replace

import pytest

from imagebuild.catalog import project_root
from imagebuild.checks.config import ImageConfig, judge_config
from imagebuild.checks.findings import after_edits, differences, judge_edits, judge_tree
from imagebuild.checks.names import ALL, BY_NAME
from imagebuild.checks.secrets import secret_in, variable_check
from imagebuild.checks.traced import attempts, network_calls
from imagebuild.checks.tree import DEBIAN, OURS, Node, Wanted
from imagebuild.resolve import resolve

SITE = "opt/venv/lib/python3.11/site-packages"
A, B, C = "a" * 64, "b" * 64, "c" * 64


def file(sha256=A, mode=0o644, **more):
    return Node("file", mode, size=1, sha256=sha256, **more)


def wheel(name="open", editable=True, **more):
    return Wanted(file(), name, shipped=A, editable=editable, **more)


WANTED = {
    "usr/bin/tool": Wanted(file(mode=0o755), DEBIAN),
    "usr/lib/libpython3.11.so.1.0": Wanted(file(), DEBIAN),
    "usr/share/doc/tool/copyright": Wanted(file(), DEBIAN),
    "etc/ssl/certs/ca-certificates.crt": Wanted(file(), DEBIAN),
    "var/lib/dpkg/status": Wanted(file(), DEBIAN),
    "tmp": Wanted(Node("dir", 0o1777), DEBIAN),
    "cache": Wanted(Node("dir", 0o775, 1000, 0), OURS),
    "etc/imagebuild/plan.json": Wanted(file(), OURS),
    f"{SITE}/open/code.py": wheel(),
    f"{SITE}/open/patched.py": replace(wheel(patches=("fix",)), node=file(B)),
    f"{SITE}/open-1.dist-info/METADATA": wheel(),
    f"{SITE}/open-1.dist-info/licenses/LICENSE": wheel(),
    f"{SITE}/closed/lib.so": wheel("closed", editable=False, removable=True),
    f"{SITE}/closed": Wanted(Node("dir", 0o755), OURS),
    f"{SITE}/closed/code.py": wheel("closed", editable=False),
    f"{SITE}/closed-1.dist-info/METADATA": wheel("closed", editable=False),
    f"{SITE}/open/__pycache__/code.cpython-311.pyc": Wanted(file(""), OURS, written="bytecode"),
}
PATCH = {"path": f"{SITE}/open/patched.py", "reason": "patch fix"}
EDITS = {PATCH["path"]: [PATCH | {"before": {"sha256": A, "size": 1}, "after": {"sha256": B, "size": 1}}]}


def image(**changes):
    """The tree that is wanted, but for changes: path with / as __ → Node or None."""
    return {p: item.node for p, item in WANTED.items()} | changes


def judged(found, contents=(), edits=EDITS):
    found = {path: node for path, node in found.items() if node is not None}
    items = differences(found, after_edits(WANTED, edits))
    findings = [*judge_edits(WANTED, edits, ["fix"]), *judge_tree(items, dict(contents), WANTED, edits)]
    return {f.check for f in findings}


def test_an_image_as_wanted_has_no_findings():
    assert judged(image()) == set()
    assert judged(image(**{f"{SITE}/open/__pycache__/code.cpython-311.pyc": None})) == set()


@pytest.mark.parametrize(
    ("path", "node", "check"),
    [
        ("usr/bin/tool", file(mode=0o4755), "setuid"),
        ("usr/bin/more", file(mode=0o4755), "setuid"),
        ("opt/open", Node("dir", 0o777), "world-writable"),
        ("usr/bin/tool", file(mode=0o757), "world-writable"),
        ("usr/bin/tool", file(mode=0o700), "permissions"),
        ("cache", Node("dir", 0o775, 0, 0), "permissions"),
        ("root/.netrc", file(), "secrets"),
        ("usr/local/share/ca-certificates/corp.crt", file(), "traces"),
        ("etc/ssl/certs/ca-certificates.crt", file(B), "traces"),
        ("tmp/left", file(), "traces"),
        ("var/lib/dpkg/status", file(B), "debian-packages"),
        ("etc/imagebuild/plan.json", file(B), "plan"),
        ("etc/imagebuild/edits/other.json", file(), "edit-receipt"),
        ("usr/lib/libpython3.11.so.1.0", None, "libraries"),
        ("usr/share/doc/tool/copyright", None, "licences"),
        (f"{SITE}/open-1.dist-info/licenses/LICENSE", None, "licences"),
        (f"{SITE}/open/code.py", file(B), "files"),
        (f"{SITE}/open/code.py", None, "files"),
        (f"{SITE}/open/code.py", Node("symlink", 0o777, target="/etc/passwd"), "files"),
        (f"{SITE}/open/more.py", file(), "files"),
        (f"{SITE}/open/patched.py", file(), "patches"),
        (f"{SITE}/open/__pycache__/more.cpython-311.pyc", file(), "bytecode"),
        (f"{SITE}/open-1.dist-info/METADATA", file(B), "python-packages"),
        (f"{SITE}/new-1.dist-info/METADATA", file(), "python-packages"),
        (f"{SITE}/open-1.dist-info/METADATA", None, "python-packages"),
        (f"{SITE}/closed/lib.so", file(B), "proprietary"),
        ("dev/odd", Node("file", 0o644, sha256=A), "files"),
    ],
)  # fmt: skip
def test_each_difference_is_of_one_check(path, node, check):
    assert judged(image(**{path: node})) == {check}


@pytest.mark.parametrize(
    "content",
    [
        b"-----BEGIN EC PRIVATE KEY-----\n", b"token = hf_" + b"x" * 34, b"url = https://me:pw@example.org/simple\n",
    ],
)  # fmt: skip
def test_a_secret_in_a_file_is_of_secrets_alone(content):
    assert judged(image(**{"etc/app.conf": file()}), {"etc/app.conf": content}) == {"secrets"}
    path = f"{SITE}/closed-1.dist-info/METADATA"
    assert judged(image(**{path: file(B)}), {path: content}) == {"secrets"}


def test_the_whole_of_a_missing_wheel_is_one_matter():
    gone = {path: None for path, item in WANTED.items() if item.owner == "closed"}
    assert judged(image(**gone, **{f"{SITE}/closed": None})) == {"python-packages"}


def row(path, before, after, reason="slim"):
    state = None if after is None else {"sha256": after, "size": 1}
    return {"path": path, "reason": reason, "before": {"sha256": before, "size": 1}, "after": state}


@pytest.mark.parametrize(
    ("path", "edit", "node", "check"),
    [
        (f"{SITE}/open/code.py", row(f"{SITE}/open/code.py", A, C), file(C), None),
        (f"{SITE}/closed/lib.so", row(f"{SITE}/closed/lib.so", A, None), None, None),
        (f"{SITE}/open/code.py", row(f"{SITE}/open/code.py", B, C), file(C), "edit-receipt"),
        (f"{SITE}/open/code.py", row(f"{SITE}/open/code.py", A, C), file(B), "edit-receipt"),
        (f"{SITE}/open/code.py", row(f"{SITE}/open/code.py", A, None), None, "edit-receipt"),
        (f"{SITE}/closed/lib.so", row(f"{SITE}/closed/lib.so", A, C), file(C), "proprietary"),
        ("usr/bin/tool", row("usr/bin/tool", A, A), file(mode=0o755), "edit-receipt"),
        (f"{SITE}/open/code.py", row(f"{SITE}/open/code.py", A, C, "patch fix"), file(C), "patches"),
    ],
)
def test_the_edit_receipt_may_say_only_what_the_plan_allows(path, edit, node, check):
    found = judged(image(**{path: node}), edits=EDITS | {path: [edit]})
    assert found == ({check} if check else set())


def test_folders_and_links_go_with_the_last_file_in_them():
    tree = WANTED | {
        "opt/lib": Wanted(Node("dir", 0o755), OURS),
        "opt/lib/x.so.1": wheel("closed", editable=False, removable=True),
        "opt/lib/x.so": Wanted(Node("symlink", 0o777, target="x.so.1"), OURS),
    }
    left = after_edits(tree, {"opt/lib/x.so.1": [row("opt/lib/x.so.1", A, None)]})
    assert not [path for path in left if path.startswith("opt/lib")]


@pytest.fixture(scope="module")
def plan():
    return resolve(project_root() / "images", "sm_103")


@pytest.fixture
def config(plan):
    ports = frozenset(f"{port}/tcp" for port in plan.config.ports)
    return ImageConfig(
        plan.config.env, plan.config.user, plan.config.workdir, plan.config.entrypoint, (),
        frozenset(plan.config.volumes), ports, plan.labels, plan.created,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda c: {"user": "0:0"}, "configuration"),
        (lambda c: {"entrypoint": ("sh",)}, "configuration"),
        (lambda c: {"command": ("bash",)}, "configuration"),
        (lambda c: {"volumes": frozenset()}, "configuration"),
        (lambda c: {"env": {**c.env, "MORE": "1"}}, "configuration"),
        (lambda c: {"env": {k: v for k, v in c.env.items() if k != "HOME"}}, "configuration"),
        (lambda c: {"env": {**c.env, "HF_TOKEN": "x"}}, "secrets"),
        (lambda c: {"env": {**c.env, "HOME": "hf_" + "x" * 34}}, "secrets"),
        (lambda c: {"env": {**c.env, "https_proxy": "http://proxy:3128"}}, "traces"),
        (lambda c: {"env": {**c.env, "https_proxy": "http://me:pw@proxy:3128"}}, "secrets"),
        (lambda c: {"labels": {**c.labels, "more": "1"}}, "labels"),
        (lambda c: {"labels": {**c.labels, "io.imagebuild.plan": A}}, "plan"),
        (lambda c: {"labels": {**c.labels, "note": "ghp_" + "x" * 36}}, "secrets"),
        (lambda c: {"history": ("RUN curl https://me:pw@example.org",)}, "secrets"),
    ],
)
def test_each_setting_is_of_one_check(plan, config, change, check):
    assert judge_config(config, plan) == []
    assert {f.check for f in judge_config(replace(config, **change(config)), plan)} == {check}


def test_secrets_are_not_repeated_in_findings(plan, config):
    secret = "hf_" + "x" * 34
    changed = replace(config, env={**config.env, "A": secret}, labels={**config.labels, "b": secret})
    assert secret not in " ".join(map(str, judge_config(changed, plan)))


def test_ordinary_text_is_no_secret():
    for text in (b"sk-learn", b"BEGIN PUBLIC KEY", b"https://example.org/a:b@c", b"hf_hub_download", b""):
        assert secret_in(text) == "", text
    assert variable_check("TOKENIZERS_PARALLELISM", "") == "configuration"


V4 = 'sa_family=AF_INET, sin_port=htons(%d), sin_addr=inet_addr("%s")'
V6 = 'sa_family=AF_INET6, sin6_port=htons(%d), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "%s", &sin6_addr)'
TRACE = """\
12 connect(3, {sa_family=AF_INET, sin_port=htons(30000), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
12 connect(3, {sa_family=AF_UNIX, sun_path="/run/x"}, 110) = -1 ENOENT (No such file or directory)
12 sendto(3, ""..., 20, 0, {sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, 12) = 20
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"9 connect(3, {{{V4 % (443, '192.0.2.7')}}}, 16) = -1", ["connect 192.0.2.7:443"]),
        (f"connect(3, {{{V6 % (80, '2001:db8::1')}}}, 28) = -1", ["connect 2001:db8::1:80"]),
        (f"9 connect(3, {{{V4 % (53, '127.0.0.1')}}}, 16) = 0", ["connect 127.0.0.1:53"]),
        (f'9 sendto(3, ""..., 9, 0, {{{V4 % (80, "192.0.2.7")}}}, 16) = 9', ["sendto 192.0.2.7:80"]),
        (f"9 connect(3, {{{V6 % (0, '::1')}}}, 28) = 0", []),
    ],
)
def test_a_trace_tells_what_was_tried(line, found):
    assert attempts(TRACE + line) == found
    assert network_calls(TRACE + line) == 4


def test_names_are_unique_and_apply_by_plan(plan):
    assert len(BY_NAME) == len(ALL)
    assert all(check.applies(plan) for check in ALL)


def test_every_check_has_a_test_and_no_other_is_used():
    import re

    used = set()
    for path in (project_root() / "tests" / "image").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'mark\.check\("([a-z0-9-]+)"\)', text))
        found = re.search(r"^FOUND = \((.*?)\)", text, re.DOTALL | re.MULTILINE)
        used |= set(re.findall(r'"([a-z-]+)"', found[1])) if found else set()
    assert used == BY_NAME.keys()
