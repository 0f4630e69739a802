# SPDX-License-Identifier: Apache-2.0
"""Watching a server run: a Prometheus image from Debian's packages, its dashboards and alert rules.

images/metrics/panels.yaml ─dashboards→ consoles/sglang.html, grafana/sglang.json
images/base/metrics + images/metrics ─image→ OciImage
"""
