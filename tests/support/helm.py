"""Renders and checks Helm charts: a list of jobs as JSON on stdin, a list of results as JSON on stdout.

A job is {chart, values, name?, upgrade?, checked, versions}: `chart` is a folder or an archive; if `checked`, the
manifests must fit the schemas of these `versions` of Kubernetes. A result is {lint, error} or {lint, manifests, notes,
problems}.
"""

import json
import sys
from functools import cache

import helm_python as helm
import kubernetes_validate
import yaml
from kubernetes_validate import utils

# It reads all of a version's schemas again for every manifest, which takes ten times as long as the check.
utils.schema_contents = cache(utils.schema_contents)


def pods(manifest: dict) -> list[dict]:
    """The manifest, and the pods of a RayCluster, for which there is no schema."""
    if manifest["kind"] != "RayCluster":
        return [manifest]
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    metadata = {"name": manifest["metadata"]["name"]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": group["template"]["spec"]} for group in groups
    ]


def problems_of(manifest: dict, versions: list[str]) -> list[str]:
    found = []
    for each in pods(manifest):
        for version in versions:
            name = f"{version}: {each['kind']} {each['metadata']['name']}"
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{name}: {'.'.join(map(str, error.path))}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError:
                found.append(f"{name}: no schema")
    return found


def lint_of(chart: str, values: dict) -> list[str]:
    report = helm.lint(chart, values, strict=True)
    return [message["error"] for message in report["messages"] if message["severity"] > 1] + report["errors"]


def run(job: dict) -> dict:
    chart, values = job["chart"], job["values"]
    lint = lint_of(chart, values) if job["checked"] else []
    try:
        with helm.Chart.load(chart) as loaded:
            loaded.validate_schema(values)
            rendered = loaded.render(
                values,
                name=job.get("name", "demo"),
                namespace="ml",
                is_install=not job.get("upgrade", False),
                is_upgrade=job.get("upgrade", False),
            )
    except helm.HelmError as error:
        return {"lint": lint, "error": str(error)}
    notes = [text for file, text in rendered.items() if file.endswith("NOTES.txt")]
    manifests = [
        manifest
        for file, text in rendered.items()
        if not file.endswith("NOTES.txt")
        for manifest in yaml.load_all(text, yaml.CSafeLoader)
        if manifest
    ]
    versions = job["versions"] if job["checked"] else []
    problems = [problem for manifest in manifests for problem in problems_of(manifest, versions)]
    return {"lint": lint, "manifests": manifests, "notes": notes, "problems": problems}


json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout)
