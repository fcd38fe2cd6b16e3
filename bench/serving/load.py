"""Servers as child processes, and load on them by `oha`."""

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("BENCH_CACHE", HERE.parent / ".cache"))
VIT = os.environ.get("VIT") or str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "vit")
CORES = len(os.sched_getaffinity(0))
load_cores = None


def reserve_load_cores(count):
    """Gives the load generator `count` cores; this process and the servers it starts keep the others."""
    global load_cores
    cores = sorted(os.sched_getaffinity(0))
    load_cores = set(cores[len(cores) - count :])
    os.sched_setaffinity(0, set(cores) - load_cores)
    return len(cores) - count


def oha_binary():
    """`oha` from OHA, from the cache that the scripts fill, or from the PATH."""
    for candidate in (os.environ.get("OHA"), CACHE / "bin" / "oha", shutil.which("oha")):
        if candidate and Path(candidate).exists():
            return str(candidate)
    raise SystemExit("there is no oha; `cargo install oha --root bench/.cache` builds it, or OHA names the binary")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server in a process group of its own; its output goes to a file."""

    def __init__(self, name, command, ready, port=None, env=None):
        """`ready` is a path that answers 200 once requests can be served; `{port}` in the command is replaced."""
        self.name, self.port = name, port or free_port()
        self.log = tempfile.NamedTemporaryFile(prefix="serve-", suffix=".log", delete=False)
        command = [str(part).replace("{port}", str(self.port)) for part in command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **(env or {})),
            start_new_session=True,
        )
        deadline = time.time() + 300
        while not self.answers(ready):
            if self.process.poll() is not None or time.time() > deadline:
                self.stop()
                raise SystemExit(f"{name} did not start:\n{self.output()[-4000:]}")
            time.sleep(0.1)

    def answers(self, path):
        try:
            return self.request("GET", path, timeout=2)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def output(self):
        return Path(self.log.name).read_text(errors="replace")

    def memory(self):
        """Resident bytes of all processes of the server's session."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == self.process.pid:
                    total += int((status.parent / "statm").read_text().split()[1]) * resource.getpagesize()
            except (OSError, IndexError):
                pass
        return total

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        """Ends the process group and returns the server's exit status."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.process.wait()


class Load:
    """The outcome of one run of `oha`; latencies are those of successful requests."""

    def __init__(self, report, cpu_seconds):
        summary, percentiles = report["summary"], report["latencyPercentilesSuccessful"]
        self.seconds = summary["total"]
        self.statuses = {int(code): n for code, n in report["statusCodeDistribution"].items()}
        self.errors = {text: n for text, n in report["errorDistribution"].items() if "deadline" not in text}
        self.good = self.statuses.get(200, 0)
        self.rate = self.good / self.seconds
        self.failed = sum(self.statuses.values()) - self.good + sum(self.errors.values())
        self.p50, self.p99 = (percentiles.get(p) or 0.0 for p in ("p50", "p99"))
        self.cpu = cpu_seconds / self.seconds


def load(url, body, content_type, connections, seconds, rate=None, form=None):
    """Runs `oha`: `connections` that each send the next request after an answer, or an open loop of `rate` requests/s
    whose latencies count from the time at which a request should have been sent."""
    command = [oha_binary(), "--no-tui", "--output-format", "json", "--stats-success-breakdown", "-w", "-m", "POST"]
    command += ["-z", f"{seconds}s", "-c", str(connections), "-t", "120s"]
    if rate:
        command += ["-q", str(rate), "--latency-correction"]
    if form:
        command += ["-F", f"{form}=@{body};type={content_type}"]
    else:
        command += ["-D", str(body), "-T", content_type]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pin = (lambda: os.sched_setaffinity(0, load_cores)) if load_cores else None
    run = subprocess.run(command + [url], capture_output=True, text=True, preexec_fn=pin)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode != 0:
        raise SystemExit(f"oha failed: {run.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Load(json.loads(run.stdout), cpu)


def bench(*arguments):
    """`vit bench …` as JSON."""
    run = subprocess.run([VIT, "bench", *map(str, arguments), "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"vit bench {' '.join(map(str, arguments))}: {run.stderr}")
    return json.loads(run.stdout)


def table(title, columns, rows):
    """Prints aligned columns, numbers to the right."""
    print(f"\n{title}")
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    number = [all(re.fullmatch(r"([+-]?[\d.]+[%x]?)?", row[i]) for row in rows) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, number)]
        print("  " + "  ".join(cells).rstrip())
    sys.stdout.flush()
