"""Tables in docs/ against the one place in code that each describes.

    python3 tests/lint/docs_check.py [ROOT]

docs/metrics.md against core/metrics/metric_names.h, docs/errors.md and core/guard/reason.cc against the
Reason enum of the wire, docs/configuration.md against config.proto, docs/architecture.md against the
folders of core/, and links between pages. Prints one line per difference and exits 1 if there is any.
"""
import re
import sys
from pathlib import Path

# Said by clients, never sent by the server.
CLIENT_REASONS = {"unreachable", "circuit_open"}


def differences(what, documented, actual):
    for name in sorted(actual - documented):
        yield f"{what}: {name} is in the code and not in the page"
    for name in sorted(documented - actual):
        yield f"{what}: {name} is in the page and not in the code"


def first_cells(page):
    """The code words of each table row's first cell."""
    for line in page.splitlines():
        if line.startswith("| `"):
            yield re.findall(r"`([^`]+)`", line.split(" | ")[0])


def metrics(root):
    code = (root / "core/metrics/metric_names.h").read_text()
    actual = {}
    for body in re.findall(r"constexpr MetricSpec k\w+\{(.*?)\};", code, re.S):
        head, tail = body.split("MetricType::", 1)
        actual["".join(re.findall(r'"(.*?)"', head))] = tail[1:].split(",")[0].lower()
    page = (root / "docs/metrics.md").read_text()
    documented = {m[1]: m[2] for m in re.finditer(r"^\| `(\w+)` \| (\w+) \|", page, re.M)}
    yield from differences("docs/metrics.md", set(documented), set(actual))
    for name in sorted(set(documented) & set(actual)):
        if documented[name] != actual[name]:
            yield f"docs/metrics.md: {name} is a {actual[name]}, the page says {documented[name]}"


def reasons(root):
    proto = (root / "proto/kvbridge/v1/types.proto").read_text()
    enum = re.search(r"^enum Reason \{(.*?)^\}", proto, re.S | re.M)[1]
    wire = {name.lower() for name in re.findall(r"^\s*REASON_(\w+) = ", enum, re.M)} - {"unspecified"}
    section = (root / "docs/errors.md").read_text().split("## Reasons")[1].split("## Statuses")[0]
    documented = {words[0] for words in first_cells(section)}
    yield from differences("docs/errors.md", documented, wire | CLIENT_REASONS)

    core = set(re.findall(r'"(\w+)"', (root / "core/guard/reason.cc").read_text()))
    for name in sorted(wire - core):
        yield f"core/guard/reason.cc: {name} is in the wire's list and has no name in core"


def config_paths(proto, message, prefix):
    body = re.search(rf"^message {message} \{{(.*?)^\}}", proto, re.S | re.M)[1]
    for repeated, kind, name in re.findall(r"^\s*(repeated |optional )?([\w.]+) (\w+) = \d+;", body, re.M):
        path = prefix + name + ("[]" if repeated == "repeated " and kind.endswith("Config") else "")
        if kind.endswith("Config"):
            yield from config_paths(proto, kind, path + ".")
        else:
            yield path


def configuration(root):
    proto = (root / "proto/kvbridge/v1/config.proto").read_text()
    documented = set()
    for words in first_cells((root / "docs/configuration.md").read_text()):
        parent = words[0].rsplit(".", 1)[0]
        documented |= {parent + word if word.startswith(".") else word for word in words}
    yield from differences("docs/configuration.md", documented, set(config_paths(proto, "Config", "")))


def modules(root):
    actual = {folder.parent.name for folder in root.glob("core/*/CMakeLists.txt")}
    page = (root / "docs/architecture.md").read_text()
    yield from differences("docs/architecture.md", set(re.findall(r"^\| `core/(\w+)` \|", page, re.M)), actual)


def links(root):
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md"), root / "client/python/README.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                yield f"{page.relative_to(root)}: link to {target}, which is not there"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    problems = [p for check in (metrics, reasons, configuration, modules, links) for p in check(root)]
    print("\n".join(problems) or "docs_check: pages and code agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
