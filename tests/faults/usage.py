"""What a daemon uses of the machine."""

import os
from pathlib import Path

from tests.support.daemon import Daemon


def resident_mib(daemon: Daemon) -> float:
    """Memory that the daemon has now, in MiB."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def descriptors(daemon: Daemon) -> int:
    """Files and sockets that the daemon has open now."""
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def threads(daemon: Daemon) -> int:
    """Threads that the daemon has now."""
    return len(list(Path(f"/proc/{daemon.process.pid}/task").iterdir()))


def cpu_seconds(daemon: Daemon) -> float:
    """Time on a processor that the daemon has used, its agents not counted."""
    stat = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def disk_mib(daemon: Daemon) -> float:
    """What the daemon's event log takes on disk now, in MiB."""
    return sum(path.stat().st_size for path in (daemon.data_dir / "events").iterdir()) / 2**20
