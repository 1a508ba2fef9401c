"""What a bench says of its machine, and how it brings page cache and memory to a known state."""
import mmap
import os


def machine():
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"cpu": names[0] if names else "unknown", "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "kernel": os.uname().release}


def set_cache(model, warm):
    """All files of the model in the page cache, or none."""
    for path in model.glob("*.safetensors"):
        with open(path, "rb", buffering=0) as file:
            if not warm:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while warm and file.read(1 << 22):
                pass


def touch_memory(size):
    """Writes to so much memory and gives it back, so that no loader has to wait for the host of a virtual machine to find it."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, 1 << 12):
            memory[at] = 1
