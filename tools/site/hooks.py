"""What the pages need in a site: links out of docs/ lead to the repository, and the records of decisions are in the menu."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
MARK = re.compile(r"^( *```[a-z]+) .+$", re.MULTILINE)  # how the block is tested, see test/docs; it ends no fence here
LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")


def on_config(config):
    """Completes the menu by the records of decisions."""
    records = sorted(p.name for p in (ROOT / "docs" / "adr").glob("*.md"))
    config.nav.append({"Decisions": ["adr/" + name for name in records]})
    return config


def on_page_markdown(markdown, page, config, files):
    """Sends links that leave docs/, and those to directories and other files that are no page, to the repository."""
    here = (ROOT / "docs" / page.file.src_uri).parent

    def rewrite(match):
        before, target, after = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = (here / target).resolve()
        if not path.exists():
            return match.group(0)  # mkdocs refuses it
        if path.is_relative_to(ROOT / "docs") and path.is_file():
            return match.group(0)
        if path == ROOT / "docs" / "adr":
            first = sorted(path.glob("*.md"))[0]
            return before + target.rstrip("/") + "/" + first.name + after
        return before + config.repo_url.rstrip("/") + "/blob/main/" + str(path.relative_to(ROOT)) + after

    return LINK.sub(rewrite, MARK.sub(r"\1", markdown))
