# SPDX-License-Identifier: Apache-2.0
import base64
import json

from imagebuild.buildkit import StepLog, step_title

RUN = (
    "[stage-0 4/9] RUN --mount=type=bind,from=tools,target=/run/imagebuild/tools     "
    '--mount=type=bind,from=torch,target=/run/imagebuild/inputs     ["/usr/bin/python3.11"]'
)
BASE = RUN.replace("from=torch,", "")


def event(**fields):
    return json.dumps(fields)


def log_of(*events):
    lines = []
    log = StepLog(lines.append)
    for item in events:
        for line in item.split("\n"):
            log.line(line)
    return log, lines


def test_titles_name_the_layer():
    assert step_title(RUN) == "[stage-0 4/9] layer torch"
    assert step_title(BASE) == "[stage-0 4/9] layer base"
    assert step_title("exporting to image") == "exporting to image"


def test_steps_and_output_are_reported_once():
    started = event(vertexes=[{"digest": "d1", "name": RUN, "started": "t"}])
    data = base64.b64encode(b"1 of 2 MB\n2 of 2 MB\n").decode()
    output = event(logs=[{"vertex": "d1", "stream": 1, "data": data}])
    done = event(vertexes=[{"digest": "d1", "name": RUN, "started": "t", "completed": "t"}])
    cached = event(vertexes=[{"digest": "d2", "name": "x", "completed": "t", "cached": True}])
    hidden = event(vertexes=[{"digest": "d3", "name": "[internal] load", "completed": "t"}])
    _, lines = log_of(started, output, done, done, cached, hidden)
    title = "[stage-0 4/9] layer torch"
    assert lines == [f"{title}: 1 of 2 MB", f"{title}: 2 of 2 MB", f"{title}: done", "x: cached"]


def test_events_over_many_lines_are_read_too():
    done = {"vertexes": [{"digest": "d1", "name": RUN, "completed": "t"}]}
    _, lines = log_of(json.dumps(done, indent=2), "WARNING: something", json.dumps(done))
    assert lines == ["[stage-0 4/9] layer torch: done"]


def test_a_failure_names_step_and_output():
    data = base64.b64encode(b"layer torch: x.whl: not a wheel\n").decode()
    log, _ = log_of(
        event(vertexes=[{"digest": "d1", "name": RUN, "started": "t"}]),
        event(logs=[{"vertex": "d1", "data": data}]),
        event(vertexes=[{"digest": "d1", "name": RUN, "completed": "t", "error": "exit code: 1"}]),
        "ERROR: failed to solve",
    )
    assert log.failure().splitlines() == [
        "[stage-0 4/9] layer torch: exit code: 1",
        "layer torch: x.whl: not a wheel",
        "ERROR: failed to solve",
    ]


def test_noise_does_not_break_the_reader():
    log, lines = log_of("", "{", "}", event(vertexes=None, logs=[{"vertex": "?", "data": "%%"}]))
    assert lines == []
    assert log.failure() == ""
