"""Writes the chart's values.schema.json and its table of values from values.yaml's comments and from config.proto.

    PYTHONPATH=client/python/src python3 deploy/helm/generate.py [--check]

--check writes nothing, and exits 1 when a file is not what it would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from kvbridge.v1 import config_pb2

CHART = Path(__file__).resolve().parent / "kvbridge"
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.S)
# Settings that the chart makes from its own values.
OWNED = {
    "listen": {"grpc", "admin", "health", "tls", "allow_plaintext_off_host"},
    "memory": {"socket", "max_bytes"},
    "auth": {"tokens_file"},
}
# What the proto says in words.
REQUIRED = {"RouteConfig": ["name", "artifact"], "TenantConfig": ["name"], "SanGrant": ["name", "groups"]}
PATTERNS = {"RouteConfig.name": "^[a-z0-9._-]{1,63}$"}
DURATION = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"}
SECONDS = {"type": "string", "pattern": "^[0-9]+s$"}  # the chart computes with these
SIZE = {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+ ?(KiB|MiB|GiB)?$"}

Json = dict[str, Any]


def enum_words(field: FieldDescriptor) -> list[str]:
    first, *rest = (value.name for value in field.enum_type.values)
    return [name.removeprefix(first.removesuffix("UNSPECIFIED")).lower() for name in rest]


def scalar(field: FieldDescriptor) -> Json:
    if field.message_type and field.message_type.full_name == "google.protobuf.Duration":
        return SECONDS if field.containing_type.name == "DrainConfig" else DURATION
    if field.message_type:
        return message(field.message_type)
    if field.enum_type:
        return {"enum": enum_words(field)}
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return {"type": "number"}
    if field.type == FieldDescriptor.TYPE_STRING:
        pattern = PATTERNS.get(f"{field.containing_type.name}.{field.name}")
        return {"type": "string", **({"pattern": pattern} if pattern else {})}
    return SIZE if field.name.endswith("_bytes") else {"type": "integer"}


def message(descriptor: Descriptor) -> Json:
    owned = OWNED.get(descriptor.name.removesuffix("Config").lower(), set())
    fields = [field for field in descriptor.fields if field.name not in owned]
    made: Json = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            field.name: {"type": "array", "items": scalar(field)} if repeated(field) else scalar(field)
            for field in fields
        },
    }
    if descriptor.name in REQUIRED:
        made["required"] = REQUIRED[descriptor.name]
    return made


def repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def comments(text: str) -> dict[str, tuple[str, Json]]:
    """Dotted path of each key of values.yaml -> (its description, what `# @` adds to its schema)."""
    found: dict[str, tuple[str, Json]] = {}
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            words.append(stripped.removeprefix("#").strip())
            continue
        key = re.match(r"( *)([\w.]+):", line)
        if key:
            indent = len(key[1])
            path = [part for part in path if part[0] < indent] + [(indent, key[2])]
            extra = yaml.safe_load(" ".join(w.removeprefix("@") for w in words if w.startswith("@")) or "{}")
            description = " ".join(w for w in words if not w.startswith("@"))
            found[".".join(name for _, name in path)] = (description, extra)
        words = []
    return found


def type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def schema_of(path: str, value: Any, notes: dict[str, tuple[str, Json]]) -> Json:
    description, extra = notes.get(path, ("", {}))
    if extra.get("config"):
        return {"description": description, **message(config_pb2.Config.DESCRIPTOR)}
    made: Json = {"description": description} if description else {}
    made["type"] = type_of(value)
    if value and isinstance(value, dict) and "properties" not in extra:
        made["additionalProperties"] = False
        made["properties"] = {key: schema_of(f"{path}.{key}", each, notes) for key, each in value.items()}
    return {**made, **extra}


def schema(values: Json, notes: dict[str, tuple[str, Json]]) -> str:
    properties = {key: schema_of(key, value, notes) for key, value in values.items()}
    properties["global"] = {"description": "Helm's, for charts that hold this one.", "type": "object"}
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the kvbridge chart",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }
    return json.dumps(made, indent=1) + "\n"


def rows(values: Json, notes: dict[str, tuple[str, Json]], prefix: str = "") -> list[str]:
    made = []
    for key, value in values.items():
        path = prefix + key
        description, extra = notes.get(path, ("", {}))
        if isinstance(value, dict) and value and "properties" not in extra and not extra.get("config"):
            if description:
                made.append(f"| `{path}` | | {description} |")
            made += rows(value, notes, path + ".")
        else:
            made.append(f"| `{path}` | `{json.dumps(value)}` | {description} |")
    return made


def files() -> dict[Path, str]:
    """What each file should hold."""
    text = (CHART / "values.yaml").read_text()
    values, notes = yaml.safe_load(text), comments(text)
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows(values, notes)]) + "\n"
    readme = (CHART / "README.md").read_text()
    return {
        CHART / "values.schema.json": schema(values, notes),
        CHART / "README.md": TABLE.sub(lambda _: table, readme),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    check = parser.parse_args().check
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.name}: {'differs from values.yaml or config.proto; run generate.py' if check else 'written'}")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
