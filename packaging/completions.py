"""Completions of bash, zsh and fish from the --help texts of the programs. Pure."""

HEAD = "Completions of {} for {}, written from --help by packaging/generate.py when it was installed."


def expects_path(option):
    """Whether files are offered as its value: any text may name a file."""
    return option.type == "TEXT"


def flags(help_text):
    return [name for option in help_text.options() for name in option.names]


def bash_case(command, help_text):
    """The words of one command: all flags, the flags with a text as value, the flags with another value."""
    valued = [option for option in help_text.options() if option.type]
    texts = " ".join(name for option in valued if expects_path(option) for name in option.names)
    values = " ".join(name for option in valued if not expects_path(option) for name in option.names)
    return f"    {command or chr(34) * 2})\n      flags='{' '.join(flags(help_text))}'\n      texts='{texts}'\n      values='{values}' ;;\n"


def bash(program, help_texts):
    """`help_texts`: {command: Help}, with "" for the program itself."""
    function = f"_{program}"
    commands = " ".join(name for name in help_texts if name)
    cases = "".join(bash_case(command, help_text) for command, help_text in help_texts.items())
    return (f"# {HEAD.format(program, 'bash')}\n"
            f"{function}() {{\n"
            "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command='' flags='' texts='' values=''\n"
            f"  local commands='{commands}'\n"
            "  if [ -n \"$commands\" ] && [ \"$COMP_CWORD\" -gt 1 ]; then command=${COMP_WORDS[1]}; fi\n"
            "  if [ \"$command\" = help ]; then mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$current\"); return; fi\n"
            "  case $command in\n" + cases + "  esac\n"
            "  case \" $texts \" in *\" $before \"*) mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); return ;; esac\n"
            "  case \" $values \" in *\" $before \"*) return ;; esac\n"
            "  if [ -n \"$commands\" ] && [ \"$COMP_CWORD\" -eq 1 ]; then flags=\"$commands help $flags\"; fi\n"
            "  case $current in\n"
            "    -* | '') mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\") ;;\n"
            "    *)\n"
            "      mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\")\n"
            "      [ \"$COMP_CWORD\" -gt 1 ] || [ -z \"$commands\" ] || return\n"
            "      mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
            "  esac\n"
            "}\n"
            f"complete -o filenames -F {function} {program}\n")


def quoted(text):
    """In single quotes, as zsh and fish read them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"


def zsh_option(option):
    # Brackets would end the description, and a colon the part before it.
    text = option.text.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = {"": "", "TEXT": ":file:_files"}.get(option.type, f":{option.type.lower()}: ")
    return [quoted(f"*{name}[{text}]{value}") for name in option.names]


def zsh(program, help_texts):
    def arguments(help_text, indent):
        words = [word for option in help_text.options() for word in zsh_option(option)]
        words += [quoted("*:file:_files")] if help_text.positionals() else []
        return f"{indent}_arguments " + f" \\\n{indent}  ".join(words) + "\n"

    own = help_texts[""]
    text = f"#compdef {program}\n# {HEAD.format(program, 'zsh')}\n"
    commands = {name: help_text for name, help_text in help_texts.items() if name}
    if not commands:
        return text + arguments(own, "")
    described = "".join(
        f"    {quoted(name + ':' + text_of.description.replace(':', chr(92) + ':'))}\n" for name, text_of in commands.items()
    )
    cases = "".join(f"    {name})\n{arguments(help_text, '      ')}      ;;\n" for name, help_text in commands.items())
    return (text + f"_{program}() {{\n  local -a commands\n  commands=(\n{described}  )\n"
            "  if (( CURRENT == 2 )); then\n"
            f"    _describe command commands\n{arguments(own, '    ')}    return\n  fi\n"
            "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
            f"  case $command in\n{cases}    help) _describe command commands ;;\n  esac\n}}\n_{program} \"$@\"\n")


def fish_option(program, option, condition):
    words = [f"complete -c {program}"] + ([f"-n {quoted(condition)}"] if condition else [])
    words += [f"-s {name[1:]}" for name in option.short()] + [f"-l {name[2:]}" for name in option.long()]
    words += {"": [], "TEXT": ["-r", "-F"]}.get(option.type, ["-x"])
    return " ".join(words + [f"-d {quoted(option.text)}"]) + "\n"


def fish(program, help_texts):
    text = f"# {HEAD.format(program, 'fish')}\n"
    commands = {name: help_text for name, help_text in help_texts.items() if name}
    if commands:
        text += f"complete -c {program} -n __fish_use_subcommand -f\n"
    for name, help_text in commands.items():
        text += f"complete -c {program} -n __fish_use_subcommand -a {name} -d {quoted(help_text.description)}\n"
    for name, help_text in help_texts.items():
        condition = f"__fish_seen_subcommand_from {name}" if name else "__fish_use_subcommand" if commands else ""
        text += "".join(fish_option(program, option, condition) for option in help_text.options())
    return text
