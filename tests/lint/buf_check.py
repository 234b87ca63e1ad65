"""Lints proto/ with buf, and checks that it breaks no one who speaks the last released version.

    python3 tests/lint/buf_check.py [ROOT]

buf comes from PATH or from the venv that KVBRIDGE_VENV names. Without it: exit 77 (skipped), but exit
1 where CI=true. The last release is the newest tag v*; before the first one, the tree is compared with
itself, and a damaged copy with it, so that the check is known to work when it is needed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77


def find_buf():
    venv = os.environ.get("KVBRIDGE_VENV")
    candidate = Path(venv) / "bin" / "buf" if venv else None
    return str(candidate) if candidate and candidate.is_file() else shutil.which("buf")


def last_release(root):
    result = subprocess.run(["git", "-C", root, "tag", "--list", "v*", "--sort=-v:refname"],
                            capture_output=True, text=True, check=False)
    return result.stdout.split()[0] if result.returncode == 0 and result.stdout.split() else None


def buf(*args):
    result = subprocess.run(args, capture_output=True, text=True, check=False)
    return result.returncode, (result.stdout + result.stderr).strip()


def break_something(proto):
    """Takes a field away from one message of a copy."""
    file = proto / "kvbridge" / "v1" / "types.proto"
    text, changes = re.subn(r"\n  string model_id = 2;", "", file.read_text(encoding="utf-8"))
    assert changes == 1, "types.proto: expected ModelIdentity.model_id = 2"
    file.write_text(text, encoding="utf-8")


def main(argv):
    root = Path(argv[1] if len(argv) > 1 else ".")
    program = find_buf()
    if program is None:
        print("buf was not found: deploy/setup.sh installs it; name its venv in KVBRIDGE_VENV")
        return 1 if os.environ.get("CI") == "true" else SKIPPED
    proto = str(root / "proto")
    release = last_release(str(root))
    baseline = f"{root / '.git'}#tag={release},subdir=proto" if release else proto
    for args in (["lint", proto], ["breaking", proto, "--against", baseline]):
        code, text = buf(program, *args)
        if code != 0:
            print(f"buf {args[0]}:\n{text}")
            return 1
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "proto"
        shutil.copytree(proto, broken)
        break_something(broken)
        code, text = buf(program, "breaking", str(broken), "--against", proto)
        if code == 0 or "model_id" not in text:
            print(f"buf breaking: expected the field that was taken away to be named, got:\n{text}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
