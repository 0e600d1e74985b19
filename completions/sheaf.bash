# completions/sheaf.bash - completion for bash: commands, flags and their values, as the program's own --help
# names them, so that nothing here has to follow when a flag is added.

# _sheaf_value PROGRAM COMMAND FLAG: what the help says of FLAG: its metavar, then its choices if it has any.
_sheaf_value() {
    [[ $3 =~ ^--?[a-z-]+$ ]] || return 0
    "$1" "$2" --help 2>/dev/null | sed -nE "
        /^  (${3}, |.{4}${3} )/!d
        s/^  .{4}--[a-z-]+ ([A-Z]+) .*: ([a-z0-9]+(, [a-z0-9]+)+)\$/\1 \2/; t found
        s/^  .{4}--[a-z-]+ ([A-Z]+) .*/\1/; t found
        d
        :found
        s/,//g; p; q"
}

_sheaf() {
    local program=${COMP_WORDS[0]/#\~/$HOME} word=${COMP_WORDS[COMP_CWORD]} before value list=
    before=${COMP_WORDS[COMP_CWORD - 1]}
    # --flag=value comes in three words
    if [ "$word" = = ]; then
        word=
    elif [ "$before" = = ] && [ "$COMP_CWORD" -ge 3 ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        list=$("$program" --help 2>/dev/null | sed -nE \
            -e '/^commands:/,/^$/ s/^  ([a-z-]+) .*/\1/p' -e 's/^  .{4}(--[a-z-]+).*/\1/p')
    elif value=$(_sheaf_value "$program" "${COMP_WORDS[1]}" "$before") && [ -n "$value" ]; then
        case $value in
        DIR)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            return
            ;;
        FILE)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return
            ;;
        *' '*) list=${value#* } ;;
        *) return ;;
        esac
    else
        # flags, and what the usage line asks for: "one|other" first, then a FILE
        value=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null)
        list=$(sed -nE 's/^  .{4}(--[a-z-]+).*/\1/p' <<<"$value")
        value=$(sed -nE '1s/^usage: sheaf [a-z]+ ([a-z]+(\|[a-z]+)+) FILE .*/\1/p' <<<"$value")
        if [ -n "$value" ] && [ "$COMP_CWORD" = 2 ]; then
            list="${value//|/ } $list"
        elif [ -n "$value" ] && [[ $word != -* ]]; then
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return
        fi
    fi
    mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
}
complete -F _sheaf sheaf
