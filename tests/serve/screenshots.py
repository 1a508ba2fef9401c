#!/usr/bin/env python3
"""Makes the pictures of the page in docs/images: the chat model that LIME ships, over three devices.

    LIME_BIN=build/release/bin tests/serve/screenshots.py
"""
import os
import subprocess
import sys

from processes import ROOT, Service

sys.path.insert(0, str(ROOT / "tests/npm"))
import node  # noqa: E402

IMAGES = ROOT / "docs/images"


def main():
    IMAGES.mkdir(exist_ok=True)
    service = Service(ROOT / "models/lime-chat", over="cluster", context=1024)
    try:
        names = {"LIME_NODE_MODULES": str(node.MODULES), "LIME_URL": service.url, "LIME_IMAGES": str(IMAGES)}
        subprocess.run([node.program(), ROOT / "tests/page/screenshots.mjs"], env=os.environ | names, check=True)
    finally:
        service.close()


if __name__ == "__main__":
    main()
