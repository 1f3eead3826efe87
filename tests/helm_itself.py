"""Helm's own engine: its Go packages as a shared library, in a Python package (helm-python-sdk). It renders as `helm template` does."""
import contextlib
import json
import os
import pathlib

import helm_python


class Helm:
    """The chart in a folder, as Helm itself sees it. `refused`: what is raised where Helm refuses values."""

    def __init__(self, folder, refused):
        self.folder, self.refused, self.version = str(folder), refused, helm_python.helm_sdk_version()

    def files(self, values):
        """The text of each template, by values or by a file with some."""
        text = values.read_text() if isinstance(values, pathlib.Path) else json.dumps(values)
        with quiet(), helm_python.Chart.load(self.folder) as chart:
            try:
                given = helm_python.values_from_yaml(text)
                chart.validate_schema(given)
                made = chart.render(given, name="pd-proxy", namespace="default")
            except helm_python.HelmError as error:
                raise self.refused(str(error)) from error
        return {name.rsplit("/", 1)[1]: text for name, text in made.items() if "/templates/" in name}

    def lint(self):
        """What `helm lint --strict` finds, but that the chart has no icon."""
        with quiet():
            found = helm_python.lint(self.folder, strict=True)
        messages = found.get("messages", []) if isinstance(found, dict) else found
        return [message for message in messages if "icon" not in str(message)]


@contextlib.contextmanager
def quiet():
    """The library tells of links in the chart on the error output, whoever asks."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
