"""A figure that a notebook shows by itself, whatever backend matplotlib has there."""

from __future__ import annotations

import io
import warnings

from matplotlib.figure import Figure

from trc2.report.old_figures import MAX_PIXELS


class InlineFigure(Figure):
    """Belongs to no window: whoever makes a thousand of them need not close any."""

    def png(self) -> bytes:
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks is no reason to stop
            fits = min(150, MAX_PIXELS / max(self.get_size_inches()))
            self.savefig(content, format="png", dpi=fits, metadata={"Software": None})
        return content.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()
