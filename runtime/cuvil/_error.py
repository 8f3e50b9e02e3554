"""The one exception of this package."""

from __future__ import annotations

HELP = {
    "CUV601": "build the package again, or copy it again: the file is damaged or incomplete",
    "CUV602": "`pip install -U cuvil`, or build the package with the cuvilc of this version",
    "CUV603": "build for this machine: `cuvilc build --cpu host`",
    "CUV608": "use a smaller shape or fewer threads",
    "CUV611": "`cuvilc adapter build ADAPTER --base PACKAGE` makes a file for this package",
}
_NOT_THE_FILE = {  # of CUV611, by what the message says
    "` is loaded already: ": '`model.load_adapter(FILE, "ANOTHER_NAME")`, or unload the other one',
    "` is in use: ": "`model.use(None)`, or the name of another one, before it is unloaded",
}


class CuvilError(Exception):
    """What went wrong: `code` ("CUV606", see `cuvilc explain`), `message`, `place`, `help`.

    `text`: what `str` gives where the compiler has more to say, such as several errors.
    """

    def __init__(
        self, code: str, message: str, place: str = "", help: str = "", text: str = ""
    ) -> None:
        super().__init__(code, message, place, help, text)
        self.code = code
        self.message = message
        self.place = place
        self.help = help or _help(code, message)
        self.text = text

    def __str__(self) -> str:
        if self.text:
            return self.text
        place = f"\n  --> {self.place}" if self.place else ""
        return f"error[{self.code}]: {self.message}{place}\n   = help: {self.help}"


def _help(code: str, message: str) -> str:
    for said, help in _NOT_THE_FILE.items():
        if code == "CUV611" and said in message:
            return help
    return HELP.get(code, f"see `cuvilc explain {code}`")
