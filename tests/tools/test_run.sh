#!/usr/bin/env bash
# tests/tools/test_run.sh - what ./run does about packages, with stand-ins for the system's tools:
# nothing is installed, and every call to apt and sudo is written down.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
root=$PWD

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
calls=$work/calls
installed=$work/installed

stand_in() { # name: its body from standard input
    {
        echo '#!/usr/bin/env bash'
        echo "calls=$calls installed=$installed"
        cat
    } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
stand_in dpkg-query <<'X'
grep -qx "${*: -1}" $installed && echo installed
X
stand_in apt-cache <<'X'
[ -e $installed.lists ] && echo "  Candidate: 1.0"
X
stand_in apt-get <<'X'
echo "apt-get $* ($DEBIAN_FRONTEND)" >>$calls
case "$*" in
*update*)
    [ -e $installed.lock ] && { rm $installed.lock; echo "E: Could not get lock"; exit 100; }
    touch $installed.lists ;;
*install*)
    [ -e $installed.broken ] && exit 100
    for word in "$@"; do echo "$word" >>$installed; done ;;
esac
X
stand_in sudo <<'X'
echo "sudo $*" >>$calls
[ "$1" = -n ] || exit 1
[ -e $installed.nosudo ] && exit 1
shift
exec "$@"
X
stand_in id <<'X'
[ -e $installed.user ] && echo 1000 || echo 0
X
stand_in sleep <<'X'
echo "sleep $*" >>$calls
X

system() { # ID VERSION_ID
    printf 'ID=%s\nVERSION_ID="%s"\n' "$1" "$2" >"$work/os-release"
}
run() { # where arguments...
    local from=$1
    shift
    : >"$calls"
    code=0
    out=$(cd "$from" && PATH=$work/bin:$PATH SHEAF_OS_RELEASE=$work/os-release \
        "$root/run" "$@" 2>&1 </dev/null) || code=$?
}
fresh() { rm -f "$installed".*; : >"$installed"; }
contains() { # name text where
    if [[ $3 == *"$2"* ]]; then tap_ok "$1"; else tap_not_ok "$1" "no \"$2\" in:" "$3"; fi
}
lacks() {
    if [[ $3 != *"$2"* ]]; then tap_ok "$1"; else tap_not_ok "$1" "\"$2\" in:" "$3"; fi
}

fresh
for system in "debian 12" "debian 13" "ubuntu 24.04"; do
    # shellcheck disable=SC2086 # two words
    system $system
    fresh
    touch "$installed.lists"
    run / deps run
    tap_equal "missing_packages_are_installed_on_${system// /_}" "0" "$code"
    contains "the_library_headers_are_among_them_on_${system// /_}" libutf8proc-dev "$(cat "$calls")"
    lacks "the_demo_needs_no_clang_on_${system// /_}" clang "$(cat "$calls")"
    lacks "the_demo_needs_no_cmocka_on_${system// /_}" cmocka "$(cat "$calls")"
    run / deps run
    tap_equal "apt_is_not_called_again_on_${system// /_}" "0 " "$code $(cat "$calls")"
    run / deps dev
    contains "clang_comes_with_dev_on_${system// /_}" libclang-rt- "$(cat "$calls")"
done

system debian 12
fresh
touch "$installed.lists"
run / deps test
contains no_question_is_asked "(noninteractive)" "$(cat "$calls")"
contains apt_waits_for_its_lock "DPkg::Lock::Timeout=300" "$(cat "$calls")"
lacks fresh_lists_are_not_read_again " update" "$(cat "$calls")"
lacks root_needs_no_sudo sudo "$(cat "$calls")"

fresh
run / deps test
contains missing_lists_are_read_first " update" "$(cat "$calls")"
fresh
touch "$installed.lock"
run / deps test
tap_equal a_locked_list_is_waited_for "0 1" "$code $(grep -c sleep "$calls")"

fresh
touch "$installed.lists" "$installed.broken"
run / deps run
tap_equal a_failed_installation_reads_the_lists_and_tries_once_more "3 2 1" \
    "$code $(grep -c install "$calls") $(grep -c update "$calls")"

fresh
touch "$installed.lists" "$installed.user"
run / deps run
contains others_than_root_use_sudo "sudo -n env DEBIAN_FRONTEND" "$(cat "$calls")"
run / deps run
tap_equal sudo_is_not_called_when_nothing_is_missing "0 " "$code $(cat "$calls")"
fresh
touch "$installed.user" "$installed.nosudo"
run / deps run
tap_equal without_sudo_nothing_is_tried 3 "$code"
contains without_sudo_the_command_is_told "apt-get install" "$out"

for system in "fedora 41" "debian 11" "ubuntu 22.04"; do
    # shellcheck disable=SC2086
    system $system
    run / deps dev
    tap_equal "an_unknown_system_exits_with_3_on_${system// /_}" 3 "$code"
    contains "an_unknown_system_gets_the_list_on_${system// /_}" utf8proc "$out"
    lacks "an_unknown_system_is_left_alone_on_${system// /_}" apt "$(cat "$calls")"
done
rm "$work/os-release"
run / deps run
tap_equal a_system_without_a_name_exits_with_3 3 "$code"

system debian 12
run / deps everything
tap_equal an_unknown_group_is_refused 2 "$code"
run / dance
tap_equal an_unknown_command_is_refused 2 "$code"
run "$work" help
contains help_works_from_any_directory "usage: ./run" "$out"
ln -s "$root/run" "$work/link"
code=0
out=$("$work/link" help) || code=$?
contains a_link_to_run_works "usage: ./run" "$out"
run / bench no_such_bench
tap_equal an_unknown_bench_is_refused 2 "$code"
contains the_benches_are_listed_instead machine "$out"

stand_in dpkg-deb <<'X'
mkdir -p "$3/usr/lib"
X
sysroot() { # the tree that a build emulates with, made anew
    : >"$calls"
    code=0
    out=$(PATH=$work/bin:$PATH tools/sysroot.sh "$work/sysroot" "$work/os-release" 2>&1) || code=$?
}
fresh
touch "$installed.broken"
sysroot
tap_equal packages_of_another_architecture_that_are_absent_exit_with_3 3 "$code"
fresh
sysroot
tap_equal a_sysroot_is_made "0 usr/lib" "$code $(readlink "$work/sysroot/lib")"
contains a_sysroot_is_resolved_as_a_machine_of_its_own "APT::Architecture=arm64" "$(cat "$calls")"
lacks the_sources_are_those_of_the_system SourceList "$(cat "$calls")"
sysroot
tap_equal a_sysroot_that_is_there_is_kept "0 " "$code $(cat "$calls")"
system ubuntu 24.04
sysroot
contains another_system_makes_it_anew "APT::Architecture=arm64" "$(cat "$calls")"
run / test --no-such-flag
tap_equal an_unknown_flag_is_refused 2 "$code"
tap_end
