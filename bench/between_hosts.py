"""What moves between two hosts: iperf3, frames over UCX, and chunks over gRPC, turn by turn through one veth pair.

  python bench/between_hosts.py [--build build/release] [--rounds 3] [--frames 8] [--frame-mib 4]

Needs root (two network namespaces) and iperf3. Prints one JSON line with medians in GB/s (10^9) and shares of
iperf3's figure. Exits 1 when UCX is below 60 % of it or gRPC below 30 %, 77 when this machine can't play two hosts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import netns

ROOT = Path(__file__).resolve().parents[1]
GOALS = {"ucx": 0.6, "grpc": 0.3}  # of iperf3
ROUTE = ["--source-layers", "28", "--layers", "1", "--heads", "8", "--head-dim", "128", "--top-k", "1"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=8, help="under way at once")
    parser.add_argument("--frame-mib", type=int, default=4)
    parser.add_argument("--mib", type=int, default=2048, help="of one UCX run")
    parser.add_argument("--without-grpc", action="store_true")
    return parser.parse_args()


def iperf(hosts: netns.TwoHosts) -> float:
    """Bytes per second of one TCP stream."""
    server = hosts.popen(hosts.right, ["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():
        pass
    client = hosts.popen(hosts.left, ["iperf3", "-c", hosts.right_address, "-t", "2", "-J"], stdout=subprocess.PIPE)
    report = json.loads(client.communicate()[0])
    server.communicate()
    return report["end"]["sum_received"]["bits_per_second"] / 8


def ucx(hosts: netns.TwoHosts, args: argparse.Namespace) -> float:
    bench = str(args.build / "bench/ucx_bench")
    shape = ["--frames", str(args.frames), "--frame-bytes", str(args.frame_mib << 20)]
    receiver = hosts.popen(
        hosts.right, [bench, "receive", "--listen", f"{hosts.right_address}:0", *shape], stdout=subprocess.PIPE
    )
    assert receiver.stdout is not None
    address, token = receiver.stdout.readline().split()
    sender = hosts.popen(
        hosts.left, [bench, "send", address, token, "--bytes", str(args.mib << 20), *shape], stdout=subprocess.PIPE
    )
    report = json.loads(sender.communicate()[0])
    receiver.communicate()
    return report["bytes_per_second"]


class Inline:
    """kvbridged on the right host, with a route whose source is large and whose target is small."""

    def __init__(self, hosts: netns.TwoHosts, build: Path, folder: Path) -> None:
        self._hosts = hosts
        self._bench = str(build / "bench/transfer_bench")
        self._address = f"{hosts.right_address}:50061"
        artifact = folder / "in"
        make = [build / "bench/make_artifact", *ROUTE, "--support", "head_local", artifact]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        config = folder / "kvbridged.json"
        config.write_text(
            json.dumps(
                {
                    "listen": {"grpc": [self._address], "admin": "off", "allow_plaintext_off_host": True},
                    "drain": {"delay": "0s"},
                    "routes": [
                        {"name": "in", "artifact": str(artifact), "allow_unproven": True, "policy": {"max_abs": 1e6}}
                    ],
                }
            )
        )
        self._log = folder / "kvbridged.log"
        with self._log.open("wb") as log:
            command = [str(build / "server/kvbridged"), "--config", str(config)]
            self._server = hosts.popen(hosts.right, command, stdout=log, stderr=log)
        while '"to":"ready"' not in self._log.read_text():
            if self._server.poll() is not None:
                sys.exit(f"between_hosts: kvbridged: {self._log.read_text()}")
            time.sleep(0.05)

    def measure(self) -> float:
        command = [self._bench, "--server", self._address, "--route", "in", "--reps", "5", "--clients", "1"]
        bench = self._hosts.popen(self._hosts.left, [*command, "--sweep-transfers", "1"], stdout=subprocess.PIPE)
        return json.loads(bench.communicate()[0])["inline"]["in"]["in_gb_s"] * 1e9

    def stop(self) -> None:
        self._server.terminate()
        self._server.wait()


def main() -> int:
    args = arguments()
    reason = netns.why_not() or (None if shutil.which("iperf3") else "iperf3 was not found")
    if reason is not None:
        print(f"between_hosts: {reason}", file=sys.stderr)
        return 77
    rates: dict[str, list[float]] = {"iperf3": [], "ucx": [], "grpc": []}
    with tempfile.TemporaryDirectory() as folder, netns.TwoHosts() as hosts:
        inline = None if args.without_grpc else Inline(hosts, args.build.resolve(), Path(folder))
        for _ in range(args.rounds):
            rates["iperf3"].append(iperf(hosts))
            rates["ucx"].append(ucx(hosts, args))
            if inline is not None:
                rates["grpc"].append(inline.measure())
        if inline is not None:
            inline.stop()
    medians = {name: statistics.median(values) for name, values in rates.items() if values}
    shares = {name: medians[name] / medians["iperf3"] for name in GOALS if name in medians}
    print(
        json.dumps(
            {
                "schema": "kvbridge.between-hosts/v1",
                "rounds": args.rounds,
                "gb_s": {name: round(value / 1e9, 3) for name, value in medians.items()},
                "of_iperf3": {name: round(share, 3) for name, share in shares.items()},
            }
        )
    )
    return 0 if all(share >= GOALS[name] for name, share in shares.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
