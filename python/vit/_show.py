"""Shows a figure where the program runs."""

import sys


def show(explanation):
    """In a notebook below the cell, elsewhere in the system's viewer."""
    if "ipykernel" in sys.modules:
        from IPython.display import display

        display(explanation)
        return
    import pathlib
    import tempfile
    import webbrowser

    # The viewer reads the file after this program may have ended.
    with tempfile.NamedTemporaryFile(prefix="vit-", suffix=".png", delete=False) as file:
        file.write(explanation.png)
    webbrowser.open(pathlib.Path(file.name).as_uri())
