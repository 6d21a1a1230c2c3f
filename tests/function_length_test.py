"""function_length_test.py SOURCE: no function of the C++ and CUDA sources is longer than 100 lines.

The length counts from the line of the opening brace to the line of the closing brace, with the lambdas inside. The scan
is lexical: it matches braces outside comments, literals and preprocessor lines. A block is a function if its header has
a parameter list and it is not inside another function. The sources must be formatted: " {" opens a block, "x{" does not.
"""

import pathlib
import re
import sys

LIMIT = 100
SUFFIXES = (".h", ".cc", ".cu", ".cuh")

SKIPPED = re.compile(
    r"""
      //[^\n]* | /\*.*?\*/                                         # comments
    | R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"                 # raw strings
    | "(?:\\.|[^"\\\n])*" | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'    # strings, characters; not the marks of 1'000
    | ^[ \t]*\#(?:\\.|[^\n\\])*                                    # preprocessor lines with their continuations
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__attribute__|alignas|__align__|decltype)\s*\((?:[^()]|\([^()]*\))*\)")
SCOPE = re.compile(r"(?:inline )?namespace\b|(?:class|struct|union|enum)\b")
LAMBDA = re.compile(r"\](?: ?\(.*\))?(?: mutable| noexcept| -> .*)*$")
NAME = re.compile(r"(operator(?:\(\)|[^\w\s(]+)|~?[A-Za-z_][\w:~]*)(?:<[^()]*>)? ?\(")


def blank(text):
    """The text with everything that is not code replaced by spaces, so that line numbers stay."""
    return SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def name_of(header):
    """The name of the function that a block with this header defines, or None if it is no function."""
    header = ATTRIBUTE.sub("", " ".join(header.split()))
    header = re.sub(r"^(?:(?:public|private|protected): ?)+", "", header)
    header = re.sub(r"^(?:template <(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*> ?)+", "", header)
    if SCOPE.match(header):
        return None
    variable = re.match(r"[^(]*?([\w:]+)(?:\[\])? = ", header)
    if variable:  # a lambda, or a list of values
        return variable[1] if LAMBDA.search(header) else None
    name = NAME.search(header)
    return name[1].strip() if name else None


def functions(text):
    """Yields (line, name, length) of every function."""
    code = blank(text)
    begin, line, parentheses = 0, 1, 0  # begin: of the header of the next block
    scopes = []  # of every open brace: (name of the function or None, line, does it open a block)
    for at, character in enumerate(code):
        line += character == "\n"
        parentheses += (character == "(") - (character == ")")
        if character == ";" and parentheses == 0:
            begin = at + 1
        elif character == "{":
            inside = any(name is not None for name, _, _ in scopes)
            opens_block = code[at - 1].isspace() and (inside or parentheses == 0)
            scopes.append((None if inside or not opens_block else name_of(code[begin:at]), line, opens_block))
            begin = at + 1 if opens_block else begin
        elif character == "}":
            name, first, opens_block = scopes.pop()
            if name is not None:
                yield first, name, line - first + 1
            begin = at + 1 if opens_block else begin
    if scopes:
        raise ValueError(f"the brace of line {scopes[-1][1]} is not closed")


def main(source):
    files = [
        path for top in ("src", "cli", "bench") for path in sorted((source / top).rglob("*")) if path.suffix in SUFFIXES
    ]
    found = [(path.relative_to(source), *function) for path in files for function in functions(path.read_text())]
    long = [f"{path}:{line} {name}: {length} lines" for path, line, name, length in found if length > LIMIT]
    longest = max((length for *_, length in found), default=0)
    print("\n".join(long) if long else f"{len(found)} functions in {len(files)} files, the longest has {longest} lines")
    return 1 if long or not found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
