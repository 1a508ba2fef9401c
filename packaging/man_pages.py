"""Manual pages (roff, macros of man) from the --help texts of the programs. Pure."""
import re

EXIT_CODES = [("0", "Done."), ("1", "The work failed: a device, a disk, no memory."),
              ("2", "The call was wrong, or a file that you wrote."), ("130", "Interrupted by Ctrl-C or SIGTERM.")]
FILES = [("./cluster.toml, ~/.config/lime/cluster.toml", "The cluster, if \\fB--cluster\\fR names no file."),
         ("~/.cache/lime/profile.json", "What was measured of this machine."),
         ("~/.local/state/lime", "Logs and process numbers of daemons that \\fBlime up\\fR started.")]


def escaped(text):
    """Text as roff prints it: no line of it is a request, and hyphens can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def bold(text):
    return f"\\fB{escaped(text)}\\fR"


def italic(text):
    return f"\\fI{escaped(text)}\\fR"


def tagged(tag, text):
    return f".TP\n{tag}\n{text}\n"


def page(name, section, version, summary, parts):
    """`parts`: [(heading, roff)], empty ones left out."""
    title = f'.TH "{name.upper()}" "{section}" "" "lime {version}" "LIME"\n.nh\n'
    head = f".SH NAME\n{escaped(name)} \\- {escaped(summary)}\n"
    return title + head + "".join(f".SH {heading}\n{text}" for heading, text in parts if text.strip())


def entry(option):
    names = ", ".join(bold(name) for name in option.names)
    kind = f" {italic(option.type)}" if option.type else ""
    notes = (["required"] if option.required else []) + ([f"default: {option.default}"] if option.default else [])
    return tagged(names + kind, escaped(option.text + (f" ({'; '.join(notes)})" if notes else "")))


def groups(help_text, but=("Subcommands", "Positionals")):
    """The flags, a heading for each group."""
    shown = [group for group in help_text.groups if group.title not in but and group.entries]
    return "".join(f".SS {escaped(group.title)}\n" + "".join(entry(option) for option in group.entries) for group in shown)


def footer(lines):
    """(examples, notes) as roff, without the sentence that ends every --help of `lime`."""
    examples, notes, inside = [], [], False
    for line in lines:
        if line.startswith("Example: "):
            examples.append(line[len("Example: "):])
        elif line in ("Examples:", "Example:"):
            inside = True
        elif inside and line.startswith("  "):
            examples.append(line.strip())
        elif line.startswith("`lime COMMAND --help`"):
            break
        else:
            inside = False
            notes.append(line)
    shown = f".nf\n{escaped(chr(10).join(examples))}\n.fi\n" if examples else ""
    return shown, escaped("\n".join(notes).strip()) + "\n" if "".join(notes).strip() else ""


def synopsis(usage):
    words = usage.split()
    plain = [word for word in words if not word.startswith("[") and not word.isupper()]
    rest = [italic(word) for word in words[len(plain):]] if words[:len(plain)] == plain else []
    return " ".join([bold(" ".join(plain))] + rest) + "\n" if rest else bold(usage) + "\n"


def pairs(rows):
    return "".join(tagged(escaped(tag), text if "\\f" in text else escaped(text)) for tag, text in rows)


def of_command(name, help_text, version):
    """lime-run(1) and the pages of the other commands."""
    examples, notes = footer(help_text.footer)
    positionals = "".join(entry(option) for option in help_text.positionals())
    return page(f"lime-{name}", 1, version, sentence(help_text.description),
                [("SYNOPSIS", synopsis(help_text.usage)), ("ARGUMENTS", positionals), ("OPTIONS", groups(help_text)),
                 ("EXAMPLES", examples), ("NOTES", notes), ("EXIT STATUS", pairs(EXIT_CODES)), ("FILES", pairs(FILES)),
                 ("SEE ALSO", "\\fBlime\\fR(1), \\fBlimed\\fR(8)\n")])


def of_lime(help_text, version):
    commands = [option for group in help_text.groups if group.title == "Subcommands" for option in group.entries]
    listed = "".join(tagged(f"\\fBlime\\-{escaped(option.names[0])}\\fR(1)", escaped(option.text)) for option in commands)
    errors = ("An error is one sentence on stderr that begins with \\fBlime:\\fR. With \\fB\\-\\-json\\fR it is also\n"
              '{"error": {"message", "kind", "exit_code"}} on stdout.\n')
    return page("lime", 1, version, sentence(help_text.description),
                [("SYNOPSIS", "\\fBlime\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"), ("COMMANDS", listed), ("OPTIONS", groups(help_text)),
                 ("DIAGNOSTICS", errors), ("EXIT STATUS", pairs(EXIT_CODES)), ("FILES", pairs(FILES)),
                 ("SEE ALSO", "\\fBlimed\\fR(8)\n")])


def of_limed(help_text, version):
    examples, notes = footer(help_text.footer)
    service = ("\\fBlimed.service\\fR starts limed with the machine. It reads \\fI/etc/lime/limed.toml\\fR. The fields of this\n"
               "file are the names of the options without the leading dashes.\n")
    return page("limed", 8, version, sentence(help_text.description),
                [("SYNOPSIS", synopsis(help_text.usage)), ("OPTIONS", groups(help_text)), ("EXAMPLES", examples), ("NOTES", notes),
                 ("SERVICE", service), ("SEE ALSO", "\\fBlime\\fR(1), \\fBlime\\-up\\fR(1), \\fBlime\\-keys\\fR(1)\n")])


def sentence(description):
    """For the section NAME: without the program's name, and without a full stop."""
    return re.sub(r"^(LIME|limed?) ", "", description).rstrip(".")
