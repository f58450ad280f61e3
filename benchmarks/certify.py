"""The certificate of the demo pair: float32, bundled prompts, every kind of policy. Called by `make certify`.

Writes its verdict into docs/results.md, between markers, and leaves the rest of that file alone. Exit code 1 when an
output or a law differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sections import write_section

from draftwood.bench.plan import rows_of
from draftwood.certify.texts import CheckSettings
from draftwood.cli.commands.check import (
    Certificate,
    certify,
    described,
    difference_lines,
    law_cells,
    mixed_units,
    report,
    text_cells,
)
from draftwood.cli.commands.demo import machine_facts
from draftwood.cli.load import LoadOptions, load_engine
from draftwood.prompts.sets import BUNDLED_SETS, load_prompts

MODEL = "demo:smollm2"
RESULTS = Path(__file__).parents[1] / "docs" / "results.md"
POLICIES = ("ar", "chain", "ddtree", "auto")


def main() -> int:
    """Run the certificate and write it down."""
    options = _options()
    engine = load_engine(LoadOptions(MODEL, None, "float32", "cpu", None))
    sets = [load_prompts(name) for name in BUNDLED_SETS]
    units = mixed_units(engine, sets, options.prompts, raw=False)
    settings = [CheckSettings(options.tokens, temperature) for temperature in (0.0, 1.0)]
    certificate = certify(engine, rows_of(POLICIES, [16]), units, settings)
    facts = {
        "model": MODEL, "machine": machine_facts(engine), "reference": "native", "max_tokens": options.tokens,
    }  # fmt: skip
    sys.stdout.write(report(certificate, facts, sys.stdout))
    if not options.dry_run:
        write_section(RESULTS, "certify", section(certificate, facts, len(units)))
    return 1 if certificate.verdict == "different" else 0


def section(certificate: Certificate, facts: dict[str, Any], prompts: int) -> str:
    """The Markdown between the markers."""
    texts = ["| policy | T | prompts | positions | committed | output |", "|---|---|---|---|---|---|"]
    texts += ["| " + " | ".join(text_cells(text)) + " |" for text in certificate.texts]
    laws = ["| verifier | T | tokens | total variation | limit | law |", "|---|---|---|---|---|---|"]
    laws += ["| " + " | ".join(law_cells(law)) + " |" for law in certificate.laws]
    differences = [f"- {line}" for text in certificate.texts for line in difference_lines(text)]
    return "\n".join(
        [
            "## Certificate of losslessness",
            "",
            f"`make certify`: verdict **{certificate.verdict}** on {prompts} bundled prompts. {described(facts)}.",
            "",
            *texts,
            "",
            "Laws: committed rounds at 8 fixed prefixes against the exact law of the target; the limit is the 99.9 % "
            "quantile of multinomial samples of that size.",
            "",
            *laws,
            *(["", "Where outputs leave the plain ones:", "", *differences] if differences else []),
        ]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=21, help="prompts, taken from the bundled sets in turn")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a prompt")
    parser.add_argument("--dry-run", action="store_true", help="print only, leave docs/results.md alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
