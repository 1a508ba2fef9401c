"""Models of the tests: random weights, one token a byte, and a chat template of the tests' own for each syntax of calls."""
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from processes import BIN

HERE = Path(__file__).resolve().parent
SIZES = ["--layers", "6", "--hidden", "128", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--intermediate", "256", "--vocab", "272", "--positions", "8192"]
BOS, EOS = 256, 257
SYNTAXES = ("hermes", "qwen3_coder", "llama3", "mistral", "without_tools")


class Models:
    """A folder with one model for each template, all with the same weights. Removed by `close`."""

    def __init__(self, sizes=SIZES):
        self.folder = Path(tempfile.mkdtemp(prefix="lime-models."))
        self._sizes = sizes

    def model(self, template):
        """The folder of the model whose template is templates/TEMPLATE.jinja; "none": it has none."""
        base, folder = self.folder / "base", self.folder / template
        if not base.exists():
            subprocess.run([BIN / "make_model", "--out", base, *self._sizes], check=True, stdout=subprocess.DEVNULL)
        if not folder.exists():
            folder.mkdir()
            for file in base.iterdir():
                if file.name != "made_by_make_model":
                    (folder / file.name).symlink_to(file)
            if template != "none":
                (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
                shutil.copy(HERE / "templates" / f"{template}.jinja", folder / "chat_template.jinja")
        return folder

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
