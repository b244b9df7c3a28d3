"""Every environment variable is in one list, and on one page."""

import importlib.util
import re
from pathlib import Path

import pytest

import lapwing
from lapwing.core.settings import SETTINGS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(lapwing.__file__).parent
READ = re.compile(r"(?:getenv\(|environ\.get\(|environ\[)\s*[\"'](LAPWING_\w+)")


@pytest.mark.parametrize("folder", [PACKAGE, ROOT / "native"], ids=["python", "native"])
def test_no_other_variable_is_read(folder):
    files = [p for p in folder.rglob("*") if p.suffix in (".py", ".cc", ".h", ".hpp", ".f90")]
    read = {name for path in files for name in READ.findall(path.read_text())}
    assert read <= {s.name for s in SETTINGS}


def test_every_variable_of_the_list_is_used():
    text = "".join(
        p.read_text() for root in (PACKAGE, ROOT / "native") for p in root.rglob("*") if p.suffix in (".py", ".cc", ".h")
    )
    for setting in SETTINGS:
        assert len(re.findall(rf"\b{setting.name}\b", text)) > 1, setting.name


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="only from a source tree")
def test_page():
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "docs" / "make_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run docs/make_settings.py"
