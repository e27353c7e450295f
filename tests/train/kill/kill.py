# SPDX-License-Identifier: Apache-2.0
"""Kills a training run again and again (case 31); its last weights must be an undisturbed run's, bit
for bit.

  kill.py PROGRAM [--kills 50] [--seed N]   SIGKILL at random moments, every third one while a
                                            checkpoint is being written
  kill.py PROGRAM --full-disk               a disk that fills up during a write: a small tmpfs where
                                            one can be mounted, else a limit on a file's size

PROGRAM is train.cpp. Everything happens in a temporary folder. Ends with 0 or says what was wrong.
"""
import argparse
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FILES = ["weights.safetensors", "optimizer.safetensors", "state.json"]
NAME = re.compile(r"step-\d{8}$")


def fail(text):
    raise SystemExit("kill.py: " + text)


def checkpoints(root):
    return sorted(p.name for p in root.iterdir() if NAME.match(p.name)) if root.exists() else []


def temporaries(root):
    return [p.name for p in root.glob("step-*.tmp-*")] if root.exists() else []


class Run:
    """The program on one folder, with one length for all runs that are compared."""

    def __init__(self, program, steps, every):
        self.program, self.steps, self.every = program, steps, every

    def start(self, root, threads=1, **more):
        command = [self.program, str(root), str(self.steps), str(self.every), str(threads)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                **more)

    def to_the_end(self, root, threads=1):
        process = self.start(root, threads)
        out, complaint = process.communicate()
        if process.returncode != 0:
            fail(f"the run ended with {process.returncode}: {complaint.strip()}")
        return out

    def compare(self, root, undisturbed):
        """Every byte of the last checkpoint, and which checkpoints there are."""
        names = checkpoints(undisturbed)
        if not names or names[-1] != f"step-{self.steps:08d}":
            fail(f"the undisturbed run ended with {names}")
        if checkpoints(root) != names:
            fail(f"expected the checkpoints {names}, found {checkpoints(root)}")
        for name in FILES:
            if (root / names[-1] / name).read_bytes() != (undisturbed / names[-1] / name).read_bytes():
                fail(f"{name} of the last step differs from the undisturbed run's")
        if temporaries(root):
            fail(f"left over: {temporaries(root)}")


def kill_often(program, folder, kills, seed):
    run = Run(program, 8 * kills, 1)
    undisturbed, root = folder / "undisturbed", folder / "killed"
    began = time.monotonic()
    run.to_the_end(undisturbed)
    length = time.monotonic() - began
    began = time.monotonic()
    run.to_the_end(undisturbed)  # finds nothing to do: the start alone
    start = time.monotonic() - began
    chance = random.Random(seed)
    done = inside = starting = ends = 0
    while done < kills:
        process = run.start(root, threads=1 + done % 2)
        # From before the program's first line to well beyond its start: few kills fall behind the
        # last step.
        time.sleep(chance.uniform(0.0, start + length / kills))
        if done % 3 == 2:
            until = time.monotonic() + 5.0
            while not temporaries(root) and process.poll() is None and time.monotonic() < until:
                time.sleep(0.001)
        process.kill()
        out, complaint = process.communicate()
        if process.returncode == 0:  # too late for this kill: it goes to the next run
            run.compare(root, undisturbed)
            shutil.rmtree(root)
            ends += 1
            continue
        if process.returncode != -signal.SIGKILL:
            fail(f"seed {seed}, kill {done}: the run ended by itself with {process.returncode}: "
                 f"{complaint.strip()}")
        done += 1
        inside += bool(temporaries(root))
        starting += "from step" not in out
    if inside == 0:
        fail(f"seed {seed}: no kill fell into the writing of a checkpoint")
    run.to_the_end(root, threads=2)
    run.compare(root, undisturbed)
    print(f"seed {seed}: {done} kills over {ends + 1} runs of {run.steps} steps, {inside} while a "
          f"checkpoint was written, {starting} before the first step; every end is the undisturbed "
          f"run's, bit for bit")


def full_disk(program, folder):
    run = Run(program, 40, 20)
    undisturbed, root = folder / "undisturbed", folder / "full"
    run.to_the_end(undisturbed)
    Run(program, 40, 20).to_the_end(root)
    # Back to the checkpoint of the middle, which is all there is when the disk fills up.
    shutil.rmtree(root / "step-00000040")
    before = {name: (root / "step-00000020" / name).read_bytes() for name in FILES}
    weights, moments = (len(before[name]) for name in FILES[:2])
    disk = folder / "disk"
    disk.mkdir()
    # Room for one checkpoint, the weights of the next and half its moments.
    size = 2 * weights + moments + moments // 2 + 65536
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)],
                             stderr=subprocess.DEVNULL).returncode == 0
    try:
        limit = None
        if mounted:
            place = disk / "full"
            shutil.copytree(root, place)
        else:
            place = root
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (weights + 4096, -1))
        # Python ignores SIGXFSZ, and so does the child: a write then fails instead of killing it.
        process = run.start(place, preexec_fn=limit, restore_signals=False)
        complaint = process.communicate()[1]
        if process.returncode != 1:
            fail(f"on a full disk expected an end with 1, found {process.returncode}")
        reason = "No space left on device" if mounted else "File too large"
        if not re.fullmatch(rf"\S*optimizer\.safetensors: expected .*{reason}.*\n", complaint):
            fail(f"expected one line that names the file and the reason, found: {complaint}")
        if checkpoints(place) != ["step-00000020"] or temporaries(place):
            fail(f"found {checkpoints(place)} and {temporaries(place)}")
        for name in FILES:
            if (place / "step-00000020" / name).read_bytes() != before[name]:
                fail(f"the checkpoint before the full disk changed: {name}")
        print(("a tmpfs" if mounted else "no tmpfs to be had, so a limit on a file") +
              f": {complaint.strip()}")
        if mounted:  # with room again it goes on
            subprocess.run(["mount", "-o", f"remount,size={4 * size}", str(disk)], check=True)
        if "from step 20" not in run.to_the_end(place):
            fail("expected the run to go on from step 20")
        run.compare(place, undisturbed)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--full-disk", action="store_true")
    options = parser.parse_args()
    # Another seed each time: it is printed, and a failure names it.
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    program = str(pathlib.Path(options.program).resolve())
    # Waiting threads that spin make a busy machine a hundred times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    with tempfile.TemporaryDirectory(prefix="smelt_kill_") as name:
        folder = pathlib.Path(name)
        if options.full_disk:
            full_disk(program, folder)
        else:
            kill_often(program, folder, options.kills, seed)


if __name__ == "__main__":
    sys.exit(main())
