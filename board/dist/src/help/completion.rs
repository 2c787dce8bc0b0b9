//! Generates completion for bash, zsh and fish. Verbs, flags and values come from the help texts; names of
//! pods and namespaces are requested from the agent at the time of completion.

use super::{Flag, Help, Values, Verb};

/// The verb that is not in the list of `nodlet --help`.
const HELP: &str = "help";

/// The possible positional arguments of a verb.
enum Argument {
    /// One of these words, followed by names of objects of that kind.
    Types(Vec<String>),
    /// One of these words, followed by a file.
    WordThenFiles(Vec<String>),
    /// This many arbitrary words, followed by files.
    Files(usize),
    Pod,
    None,
}

fn argument(verb: &Verb) -> Argument {
    let words = verb.words();
    if verb.takes_pod() {
        Argument::Pod
    } else {
        match (words.is_empty(), verb.before_files()) {
            (true, Some(before)) => Argument::Files(before),
            (true, None) => Argument::None,
            (false, Some(_)) => Argument::WordThenFiles(words),
            (false, None) => Argument::Types(words),
        }
    }
}

/// The file `/usr/share/bash-completion/completions/nodlet`. It does not depend on the package
/// bash-completion.
pub(crate) fn bash(help: &Help) -> String {
    let verbs: Vec<&str> = help.verbs.iter().map(|verb| verb.name.as_str()).collect();
    let valued: Vec<String> = help.verbs.iter().flat_map(valued).collect();
    let globals: Vec<String> = names(&help.flags).into_iter().map(str::to_owned).collect();
    let valued: Vec<String> = globals.iter().map(|name| format!("' {name}'")).chain(valued).collect();
    let mut text = BASH_HEAD
        .replace("@VERBS@", &format!("{} {HELP}", verbs.join(" ")))
        .replace("@VALUED@", &valued.join("|"))
        .replace("@GLOBAL_CASES@", &globals.join("|"))
        .replace("@GLOBALS@", &globals.join(" "));
    for verb in &help.verbs {
        text.push_str(&format!(
            "    {})\n        flags='{} --help'\n",
            verb.name,
            names(&verb.flags).join(" ")
        ));
        let mut cases = String::new();
        for flag in verb.flags.iter().filter(|flag| !flag.value.is_empty()) {
            let does = match flag.values() {
                Values::Files => "_nodlet_files".to_owned(),
                Values::Namespaces => "_nodlet_names namespaces".to_owned(),
                Values::OneOf(words) => format!("_nodlet_words '{}'", words.join(" ")),
                Values::Unknown => ":".to_owned(),
            };
            cases.push_str(&format!("        {}) {does}; return ;;\n", flag.names.join("|")));
        }
        if !cases.is_empty() {
            text.push_str(&format!("        case $before in\n{cases}        esac\n"));
        }
        let does = match argument(verb) {
            Argument::Types(words) => format!("_nodlet_type_and_names '{}'", words.join(" ")),
            Argument::WordThenFiles(words) => format!("_nodlet_word_and_files '{}'", words.join(" ")),
            Argument::Files(before) => format!("[ \"$count\" -lt {before} ] || _nodlet_files"),
            Argument::Pod => "_nodlet_pod".to_owned(),
            Argument::None => ":".to_owned(),
        };
        text.push_str(&format!("        arguments={}\n        ;;\n", quoted(&does)));
    }
    text + BASH_TAIL
}

/// Shell patterns of a verb and those of its flags that have a value.
fn valued(verb: &Verb) -> Vec<String> {
    let flags: Vec<Flag> = verb.flags.iter().filter(|flag| !flag.value.is_empty()).cloned().collect();
    names(&flags).iter().map(|name| format!("'{} {name}'", verb.name)).collect()
}

const BASH_HEAD: &str = r#"# bash completion of nodlet, made from the help texts of its verbs.

# The words of a list that begin as the current one does.
_nodlet_words() { COMPREPLY=($(compgen -W "$1" -- "$current")); }

_nodlet_files() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")); }

# Names of objects of a type, from the agent.
_nodlet_names() {
    _nodlet_words "$("${nodlet[@]}" get "$1" "${namespace[@]}" -o name 2>/dev/null | sed 's,.*/,,')"
}

_nodlet_pod() { [ "$count" -eq 0 ] && _nodlet_names pods; }

_nodlet_type_and_names() {
    if [ "$count" -eq 0 ]; then _nodlet_words "$1"; else _nodlet_names "$type"; fi
}

_nodlet_word_and_files() {
    if [ "$count" -eq 0 ]; then _nodlet_words "$1"; else _nodlet_files; fi
}

# Whether a flag is followed by its value, by the verb and its name.
_nodlet_takes_value() {
    case $1 in
    @VALUED@) return 0 ;;
    esac
    return 1
}

# The words of the line, before the current one, as the shell will have them: bash splits user@board too.
_nodlet_read_words() {
    local rest=$COMP_LINE word index
    words=()
    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        continues=
        [ "$index" -gt 0 ] && [[ $rest != [[:space:]]* ]] && continues=yes
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"$word"}
        if [ "$index" -eq "$COMP_CWORD" ]; then
            return
        elif [ -n "$continues" ]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
    done
}

_nodlet() {
    local current=${COMP_WORDS[COMP_CWORD]} before continues words
    local verb= type= count=0 flags= arguments=: word index
    local nodlet=("${COMP_WORDS[0]}") namespace=()
    COMPREPLY=()
    _nodlet_read_words
    # The rest of a word such as user@board is nothing that could be known.
    [ -n "$continues" ] && return
    before=${words[${#words[@]}-1]}
    for ((index = 1; index < ${#words[@]}; index++)); do
        word=${words[index]}
        case $word in
        --) return ;;
        -*)
            # The current word may be its value.
            if _nodlet_takes_value "$verb $word" && [ $((++index)) -lt "${#words[@]}" ]; then
                case $word in
                @GLOBAL_CASES@) nodlet+=("$word" "${words[index]}") ;;
                -n|--namespace) namespace=(-n "${words[index]}") ;;
                esac
            fi
            ;;
        *)
            if [ -z "$verb" ]; then
                verb=$word
            else
                [ "$count" -eq 0 ] && type=$word
                count=$((count + 1))
            fi
            ;;
        esac
    done
    case $verb in
    '')
        case $before in
        --root) _nodlet_files; return ;;
        @GLOBAL_CASES@) return ;;
        esac
        flags='@GLOBALS@ --help --version'
        arguments="_nodlet_words '@VERBS@'"
        ;;
    help) [ "$count" -eq 0 ] && _nodlet_words '@VERBS@'; return ;;
"#;

const BASH_TAIL: &str = r#"    esac
    case $current in
    -*) _nodlet_words "$flags" ;;
    *) eval "$arguments" ;;
    esac
}

complete -F _nodlet nodlet
"#;

/// The file `/usr/share/zsh/vendor-completions/_nodlet`.
pub(crate) fn zsh(help: &Help) -> String {
    let mut text = ZSH_HEAD.to_owned();
    text.push_str("_nodlet_verbs() {\n    local -a verbs=(\n");
    for verb in &help.verbs {
        text.push_str(&format!("        {}\n", quoted(&format!("{}:{}", verb.name, verb.summary))));
    }
    text.push_str("        'help:Print what a verb does'\n    )\n    _describe verb verbs\n}\n\n_nodlet_help() { _nodlet_verbs }\n");
    for verb in &help.verbs {
        text.push_str(&format!("\n_nodlet_{}() {{\n    _arguments -s", verb.name.replace('-', "_")));
        for flag in &verb.flags {
            text.push_str(&format!(" \\\n        {}", zsh_flag(flag)));
        }
        text.push_str(" \\\n        '--help[print this help]'");
        let arguments = match argument(verb) {
            Argument::Types(words) => {
                format!(
                    " \\\n        '1:type:({})' \\\n        '*:name: _nodlet_names $line[1]'",
                    words.join(" ")
                )
            }
            Argument::WordThenFiles(words) => {
                format!(" \\\n        '1:command:({})' \\\n        '*:file:_files'", words.join(" "))
            }
            Argument::Files(before) => {
                let unknown: String =
                    (1..=before).map(|place| format!(" \\\n        '{place}:argument: '")).collect();
                unknown + " \\\n        '*:file:_files'"
            }
            Argument::Pod => " \\\n        '1:pod: _nodlet_names pods'".to_owned(),
            Argument::None => String::new(),
        };
        text.push_str(&arguments);
        text.push_str("\n}\n");
    }
    let globals: Vec<String> = help.flags.iter().map(zsh_flag).collect();
    text + &ZSH_TAIL.replace("@GLOBALS@", &globals.join(" \\\n        "))
}

/// The beginning of zsh's completion. A space before the name of a function makes zsh call it with its own
/// arguments only.
const ZSH_HEAD: &str = r#"#compdef nodlet
# zsh completion of nodlet, made from the help texts of its verbs.

# Names of objects of a type, from the agent.
_nodlet_names() {
    local -a names scope
    [[ -n ${opt_args[--namespace]} ]] && scope=(-n ${opt_args[--namespace]})
    [[ -n ${opt_args[-n]} ]] && scope=(-n ${opt_args[-n]})
    names=(${${(f)"$(_call_program names nodlet $nodlet_scope get $1 $scope -o name 2>/dev/null)"}##*/})
    compadd -a names
}

"#;

const ZSH_TAIL: &str = r#"
_nodlet() {
    local curcontext=$curcontext state line
    typeset -A opt_args
    _arguments -C \
        @GLOBALS@ \
        '--help[print this help]' \
        '--version[print the versions]' \
        '1:verb:_nodlet_verbs' \
        '*::argument:->argument'
    if [[ $state == argument ]]; then
        # Which agent is asked for names.
        local -a nodlet_scope
        [[ -n ${opt_args[--board]} ]] && nodlet_scope+=(--board ${opt_args[--board]})
        [[ -n ${opt_args[--root]} ]] && nodlet_scope+=(--root ${opt_args[--root]})
        curcontext=${curcontext%:*}:nodlet-$line[1]:
        (( $+functions[_nodlet_${line[1]//-/_}] )) && _nodlet_${line[1]//-/_}
    fi
}

_nodlet "$@"
"#;

fn zsh_flag(flag: &Flag) -> String {
    let text = flag.text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]");
    let action = match flag.values() {
        _ if flag.value.is_empty() => String::new(),
        Values::Files => ":file:_files".to_owned(),
        Values::Namespaces => ":namespace: _nodlet_names namespaces".to_owned(),
        Values::OneOf(words) => format!(":value:({})", words.join(" ")),
        Values::Unknown => ":value: ".to_owned(),
    };
    let rest = quoted(&format!("[{text}]{action}"));
    match flag.names.as_slice() {
        [one] => format!("{one}{rest}"),
        names => format!("'({})'{{{}}}{rest}", names.join(" "), names.join(",")),
    }
}

/// The file `/usr/share/fish/vendor_completions.d/nodlet.fish`.
pub(crate) fn fish(help: &Help) -> String {
    let mut text = FISH_HEAD.replace("@GLOBALS@", &names(&help.flags).join(" "));
    for flag in &help.flags {
        text.push_str(&format!("complete -c nodlet -n '__nodlet_verb \"\"'{}\n", fish_flag(flag)));
    }
    for verb in &help.verbs {
        text.push_str(&format!(
            "complete -c nodlet -n '__nodlet_verb \"\"' -a {} -d {}\n",
            verb.name,
            fish_quoted(&verb.summary)
        ));
    }
    let verbs: Vec<&str> = help.verbs.iter().map(|verb| verb.name.as_str()).collect();
    text.push_str("complete -c nodlet -n '__nodlet_verb \"\"' -a help -d 'Print what a verb does'\n");
    text.push_str(&format!("complete -c nodlet -n '__nodlet_verb help' -a '{}'\n", verbs.join(" ")));
    for verb in &help.verbs {
        let condition = format!("-n '__nodlet_verb {}'", verb.name);
        text.push('\n');
        match argument(verb) {
            Argument::Types(words) => text.push_str(&format!(
                "complete -c nodlet {condition} -a '(__nodlet_type_and_names {})'\n",
                words.join(" ")
            )),
            Argument::WordThenFiles(words) => {
                let words = words.join(" ");
                let seen = format!("'__nodlet_verb {}; and __fish_seen_subcommand_from {words}'", verb.name);
                let not_seen = seen.replace("; and ", "; and not ");
                text.push_str(&format!("complete -c nodlet -n {not_seen} -a '{words}'\n"));
                text.push_str(&format!("complete -c nodlet -n {seen} -F\n"));
            }
            Argument::Files(before) => text.push_str(&format!(
                "complete -c nodlet -n '__nodlet_verb {}; and __nodlet_has_arguments {before}' -F\n",
                verb.name
            )),
            Argument::Pod => {
                text.push_str(&format!("complete -c nodlet {condition} -a '(__nodlet_names pods)'\n"))
            }
            Argument::None => {}
        }
        for flag in &verb.flags {
            text.push_str(&format!("complete -c nodlet {condition}{}\n", fish_flag(flag)));
        }
    }
    text
}

/// The arguments of `complete -c nodlet` for a flag.
fn fish_flag(flag: &Flag) -> String {
    let name = |name: &String| match name.strip_prefix("--") {
        Some(long) => format!(" -l {long}"),
        None => format!(" -s {}", name.trim_start_matches('-')),
    };
    let mut text: String = flag.names.iter().map(name).collect();
    if !flag.value.is_empty() {
        text.push_str(&match flag.values() {
            Values::Files => " -r -F".to_owned(),
            Values::Namespaces => " -x -a '(__nodlet_names namespaces)'".to_owned(),
            Values::OneOf(words) => format!(" -x -a '{}'", words.join(" ")),
            Values::Unknown => " -x".to_owned(),
        });
    }
    text + &format!(" -d {}", fish_quoted(&flag.text))
}

const FISH_HEAD: &str = r#"# fish completion of nodlet, made from the help texts of its verbs.

# The verb of the command line, if it has one yet.
function __nodlet_verb_of_line
    set -l words (commandline -opc)
    set -e words[1]
    while test (count $words) -gt 0
        switch $words[1]
            case @GLOBALS@
                set -e words[1]
            case '-*'
            case '*'
                echo $words[1]
                return
        end
        set -e words[1]
    end
end

# Whether the verb of the command line is this one; with '', whether there is none.
function __nodlet_verb
    set -l verb (__nodlet_verb_of_line)
    test "$verb" = "$argv[1]"
end

# Whether that many words that are no flags follow the verb.
function __nodlet_has_arguments
    set -l words (commandline -opc | string match -v -- '-*')
    test (count $words) -ge (math $argv[1] + 2)
end

# Names of objects of a type, from the agent.
function __nodlet_names
    set -l words (commandline -opc)
    set -l globals
    set -l scope
    for index in (seq 2 (math (count $words) - 1))
        set -l next (math $index + 1)
        if contains -- $words[$index] @GLOBALS@
            set -a globals $words[$index] $words[$next]
        else if contains -- $words[$index] -n --namespace
            set -a scope $words[$index] $words[$next]
        end
    end
    nodlet $globals get $argv[1] $scope -o name 2>/dev/null | string replace -r '.*/' ''
end

# A type, and after it names of its objects.
function __nodlet_type_and_names
    for word in (commandline -opc)
        if contains -- $word $argv
            __nodlet_names $word
            return
        end
    end
    printf '%s\n' $argv
end

complete -c nodlet -f
complete -c nodlet -l help -d 'print a help text'
"#;

fn names(flags: &[Flag]) -> Vec<&str> {
    flags.iter().flat_map(|flag| &flag.names).map(String::as_str).collect()
}

/// Quotes a word for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r#"'"'"'"#))
}

/// Quotes a word for fish.
fn fish_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::help::example;

    /// The completions that bash offers for a command line whose last word is incomplete. `nodlet` is a shell
    /// function that knows two pods and prints its arguments nowhere.
    fn offered(line: &str) -> Vec<String> {
        // Split as bash does.
        let spaced = line.replace('@', " @ ").replace('=', " = ");
        let words: Vec<&str> = spaced.split(' ').collect();
        let script = format!(
            "{}\nnodlet() {{ case \"$*\" in \
             'get pods -o name') printf 'pod/web\\npod/db\\n' ;; \
             'get pods -n kitchen -o name') echo pod/oven ;; \
             'get namespaces -o name') echo namespace/kitchen ;; \
             '--board me@b get pods -o name') echo pod/lamp ;; esac; }}\n\
             COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _nodlet; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash(&example())
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script, "bash"]).args(&words).env("COMP_LINE", line);
        let output = bash.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_verbs_flags_values_and_names() {
        for (line, expected) in [
            ("nodlet ", "get image exec push help"),
            ("nodlet i", "image"),
            ("nodlet --r", "--root"),
            ("nodlet --", "--board --root --help --version"),
            ("nodlet --board ", ""),
            ("nodlet --board me@", ""),
            ("nodlet --board me@b g", "get"),
            ("nodlet --board me@b get pods ", "lamp"),
            ("nodlet push ", ""),
            ("nodlet push me@b /et", "/etc"),
            ("nodlet push me@b --w", "--wait"),
            ("nodlet push --wait=3s me@b /et", "/etc"),
            ("nodlet help e", "exec"),
            ("nodlet get ", "pods po nodes no events"),
            ("nodlet get --n", "--namespace --names"),
            ("nodlet get pods -o ", "wide yaml json"),
            ("nodlet get pods -o y", "yaml"),
            ("nodlet get pods ", "web db"),
            ("nodlet get -o wide pods w", "web"),
            ("nodlet get --wait pods w", "web"),
            ("nodlet --root / get po", "pods po"),
            ("nodlet get pods -n ", "kitchen"),
            ("nodlet get -n kitchen pods ", "oven"),
            ("nodlet image l", "load ls"),
            ("nodlet image load /et", "/etc"),
            ("nodlet exec ", "web db"),
            ("nodlet exec web ", ""),
            ("nodlet exec web -- ", ""),
            ("nodlet exec -", "-i --stdin --help"),
        ] {
            assert_eq!(offered(line).join(" "), expected, "{line:?}");
        }
    }

    #[test]
    fn zsh_has_a_function_a_verb_and_a_description_a_flag() {
        let text = zsh(&example());
        assert!(text.starts_with("#compdef nodlet\n"), "{text}");
        assert!(text.contains("\n        'get:Show pods'\n"), "{text}");
        assert!(
            text.contains(
                "'(-n --namespace)'{-n,--namespace}'[of this one]:namespace: _nodlet_names namespaces'"
            ),
            "{text}"
        );
        assert!(text.contains("[on the next lines: \\[1\\]]"), "{text}");
        assert!(text.contains("_nodlet_exec() {\n    _arguments -s \\\n        '(-i --stdin)'"), "{text}");
    }

    #[test]
    fn fish_has_a_line_a_flag() {
        let text = fish(&example());
        let line = "\ncomplete -c nodlet -n '__nodlet_verb get' -s o -l output -x -a 'wide yaml json' -d 'wide, yaml or json'\n";
        assert!(text.contains(line), "{text}");
        assert_eq!(fish_quoted(r"a\'b"), r"'a\\\'b'");
    }
}
