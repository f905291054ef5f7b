"""A component for tests: `python component.py NAME RUN_DIR BEHAVIOUR...` announces itself and does as told.

serve           until SIGTERM
stubborn        serves, and ignores SIGTERM
family          serves, with a child in a session of its own that ignores SIGTERM (as torchrun's and vLLM's may)
exit:CODE:S     ends with CODE after S seconds
silent          never announces itself
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from rlctl.telemetry.process import announce

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def main(name: str, run_dir: Path, behaviour: str) -> None:
    print(f"{name} starts", flush=True)
    kind, _, rest = behaviour.partition(":")
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if kind == "family":
        subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
    if kind != "silent":
        announce(run_dir, name, f"test://{name}")
    with (run_dir / "order.txt").open("a") as file:
        file.write(f"{name}\n")
    if kind == "exit":
        code, seconds = rest.split(":")
        time.sleep(float(seconds))
        print(f"{name} ends", flush=True)
        sys.exit(int(code))
    time.sleep(60)


main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
