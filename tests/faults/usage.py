"""What a daemon uses of the machine."""

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
