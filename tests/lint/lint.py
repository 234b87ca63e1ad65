"""House rules that a machine can check, from the text of the tree alone.

    python3 tests/lint/lint.py [ROOT]

Prints one line per problem, "path:line: what is wrong", and exits 1 if there is any. Standard library
only. lint_test.py shows each rule a tree that breaks it.
"""
import os
import re
import sys
from pathlib import Path

SKIPPED_DIRS = {".git", ".venv", "build", "out", "__pycache__", "node_modules", "shared"}
SKIPPED_TREES = ("tests/data/",)
CXX = {".h", ".cc", ".cu", ".inc"}
TEXT = CXX | {".py", ".pyi", ".proto", ".cmake", ".txt", ".md", ".sh", ".yaml", ".yml", ".toml", ".json"}

# A module of core may include itself and modules of the lines above its own.
CORE_LAYERS = [
    {"base"},
    {"crypto", "metrics", "rope", "tensor", "usage"},
    {"kv", "model"},
    {"mapper"},
    {"device"},
    {"artifact", "guard"},
    {"engine", "store"},
    {"evidence", "fit", "memory", "plan", "ucx"},
]
# Who may include what of the project. "kvbridge/v1" is what protoc writes.
MAY_INCLUDE = {
    "proto": {"proto", "kvbridge/v1"},
    "core": {"core"},
    "client/cpp": {"client/cpp", "proto", "kvbridge/v1"},
    "client/cli": {"client/cli", "client/cpp", "core", "proto", "kvbridge/v1"},
    "server": {"server", "core", "proto", "kvbridge/v1"},
    "tests": {"tests", "bench", "client/cpp", "client/cli", "server", "core", "proto", "kvbridge/v1"},
    "bench": {"tests", "bench", "client/cpp", "client/cli", "server", "core", "proto", "kvbridge/v1"},
}
# Libraries that only some folders may see.
CONFINED = [
    ("gRPC", re.compile(r"^(grpcpp|grpc|src/core)/"), ("proto", "client", "server", "tests", "bench")),
    ("protobuf", re.compile(r"^google/protobuf/"), ("proto", "client", "server", "tests", "bench")),
    ("LibTorch", re.compile(r"^(torch|ATen|c10)/"),
     ("core/tensor", "core/mapper", "core/fit", "core/device", "tests", "bench")),
    ("CUDA", re.compile(r"^(cuda|cublas)\w*\.h"), ("core/device", "tests", "bench")),
    ("OpenSSL", re.compile(r"^openssl/"), ("core/crypto", "server", "tests")),
    ("prometheus-cpp", re.compile(r"^prometheus/"), ("core/metrics", "server", "tests", "bench")),
    ("UCX", re.compile(r"^uc[pst]/"), ("core/ucx",)),
    ("CLI11", re.compile(r"^CLI/"), ("client/cli", "core/usage", "server", "bench", "tests")),
]
BUDGETS = {".h": 250, ".cc": 600, ".cu": 600}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.\-/])/(?:wor" r"k|roo" r"t|hom" r"e/\w+)/\w")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def files(root):
    """(path relative to root, as posix) of all files that the rules are about."""
    for folder, dirs, names in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS)
        for name in sorted(names):
            relative = (Path(folder) / name).relative_to(root).as_posix()
            if not relative.startswith(SKIPPED_TREES):
                yield relative


def read(root, path):
    return (Path(root) / path).read_text(encoding="utf-8", errors="replace")


def numbered(text):
    return enumerate(text.splitlines(), start=1)


def folder_of(path, folders):
    """The folder of `folders` that `path` lies in: the longest that fits, or None."""
    fitting = [f for f in folders if path.startswith(f + "/")]
    return max(fitting, key=len, default=None)


def core_layer(module):
    for layer, modules in enumerate(CORE_LAYERS):
        if module in modules:
            return layer
    return None


def check_core_arrow(path, included):
    mine, theirs = path.split("/")[1], included.split("/")[1]
    if mine == theirs:
        return None
    for module in (mine, theirs):
        if core_layer(module) is None:
            return f"core/{module} has no place in tests/lint/lint.py's CORE_LAYERS"
    if core_layer(theirs) >= core_layer(mine):
        return f"core/{mine} must not include {included}"
    return None


def check_arrows(root):
    """Arrows between modules go one way, and libraries stay where they belong."""
    projects = set(MAY_INCLUDE) | {"kvbridge/v1"}
    for path in files(root):
        owner = folder_of(path, MAY_INCLUDE)
        if owner is None or Path(path).suffix not in CXX:
            continue
        for line, text in numbered(read(root, path)):
            match = INCLUDE.match(text)
            if not match:
                continue
            included = match.group(2)
            target = folder_of(included, projects)
            if target is not None and target not in MAY_INCLUDE[owner]:
                yield f"{path}:{line}: {owner} must not include {included}"
            elif owner == "core" and target == "core":
                if problem := check_core_arrow(path, included):
                    yield f"{path}:{line}: {problem}"
            for library, pattern, allowed in CONFINED:
                if pattern.match(included) and folder_of(path, allowed) is None:
                    yield f"{path}:{line}: {library} may be included by {', '.join(allowed)} only"


def cmake_words(root, path):
    """Words of the CMakeLists.txt of the file's folder and of those above, comments left out, each
    relative to the root."""
    words = set()
    for folder in Path(path).parents:
        lists = Path(root) / folder / "CMakeLists.txt"
        if lists.is_file():
            text = re.sub(r"#.*", "", lists.read_text(encoding="utf-8"))
            for word in re.split(r"[\s()\";]+", text):
                words.add(os.path.normpath((folder / word).as_posix()))
    return words


def check_every_test_runs(root):
    """Every test, fuzz and bench source is in a CMake target."""
    for path in files(root):
        if re.search(r"_(test|fuzz|bench)\.(cc|cu)$", path) and path not in cmake_words(root, path):
            yield f"{path}:1: in no CMake target"


def check_file_sets(root):
    """Every header of a module is in its FILE_SET (HDRS), so that the build compiles it alone."""
    for path in files(root):
        if not path.endswith(".h") or not path.startswith(("core/", "client/", "server/", "proto/")):
            continue
        for folder in Path(path).parents:
            lists = Path(root) / folder / "CMakeLists.txt"
            if lists.is_file():
                break
        else:
            yield f"{path}:1: no CMakeLists.txt"
            continue
        text = re.sub(r"#.*", "", lists.read_text(encoding="utf-8"))
        headers = " ".join(re.findall(r"\bHDRS\b(.*?)(?:\b(?:SRCS|DEPS|PRIVATE_DEPS)\b|\))", text, re.S))
        if Path(path).relative_to(folder).as_posix() not in headers.split():
            yield f"{path}:1: not in HDRS of {folder.as_posix()}/CMakeLists.txt"


def check_budgets(root):
    """No file is longer than a reader's patience."""
    for path in files(root):
        budget = BUDGETS.get(Path(path).suffix)
        if budget is None:
            continue
        lines = read(root, path).count("\n")
        if lines > budget:
            yield f"{path}:{budget + 1}: {lines} lines, expected at most {budget}"


def check_headers_guarded(root):
    for path in files(root):
        if path.endswith(".h") and "#pragma once" not in read(root, path):
            yield f"{path}:1: expected #pragma once"


def check_text(root):
    """Nothing that only means something on the machine it was written on, nothing left for later."""
    for path in files(root):
        if Path(path).suffix not in TEXT:
            continue
        for line, text in numbered(read(root, path)):
            if MACHINE_PATH.search(text):
                yield f"{path}:{line}: path of one machine: {text.strip()[:80]}"
            if UNFINISHED.search(text):
                yield f"{path}:{line}: unfinished: {text.strip()[:80]}"


CHECKS = [check_arrows, check_every_test_runs, check_file_sets, check_budgets, check_headers_guarded,
          check_text]


def main(argv):
    root = Path(argv[1] if len(argv) > 1 else ".")
    problems = [problem for check in CHECKS for problem in check(root)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
