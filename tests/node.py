"""Node.js, for tests of JavaScript."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

NODE = shutil.which("node")


def run_script(script: str, value: Any, folder: Path) -> Any:
    """Run JavaScript in a folder, with `value` as its input; returns the JSON value that it prints."""
    command = [str(NODE), "--input-type=module", "--eval", script]
    given = json.dumps(value)
    result = subprocess.run(
        command, input=given, capture_output=True, text=True, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
