# shellcheck shell=bash
# Debian's kernels and what belongs to them: downloaded into target/kernels, never installed. For the scripts that
# source it; they have `top`, the project's folder, and `fail`, which says what is wrong and ends them.

kernels=${CARGO_TARGET_DIR:-$top/target}/kernels
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# apt with sources and lists of its own, below the folder $1: it checks Debian's signatures, on Ubuntu too, and the
# machine's own apt is not touched.
debian_apt() {
    local apt=$1 tool=$2
    shift 2
    "$tool" -q -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" \
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o APT::Default-Release="$release" -o APT::Architecture=amd64 -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none \
        -o Acquire::Retries=3 "$@"
}

# Where an archive of Debian's (debian, debian-security) is had: TAUT_DEBIAN_MIRROR has both below it; else where
# this machine's own packages come from, if it is a Debian.
archive_at() {
    local archive=$1 at
    if [[ -n ${TAUT_DEBIAN_MIRROR:-} ]]; then
        echo "$TAUT_DEBIAN_MIRROR/$archive"
        return
    fi
    # shellcheck disable=SC2016 # They are apt's.
    at=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
        sed -n "s|^Debian \\(.*/$archive\\)/*\$|\\1|p" | sort -u | head -n 1)
    [[ -n $at ]] || fail "no $archive archive is among this machine's sources of packages; name a mirror of" \
        "Debian's with TAUT_DEBIAN_MIRROR=http://HOST"
    echo "$at"
}

# Downloads packages of the suites that have this kernel, and unpacks them into a folder that has its final name
# only when all of it is there. What is downloaded the function $3 prints, one name a line; it is called with the
# folder of debian_apt.
fetch() {
    local kernel=$1 folder=$2 names=$3 suites suite archive at packages deb
    case $kernel in
    6.1) suites=(bookworm bookworm-security) release= ;;
    6.12) suites=(bookworm bookworm-backports) release=bookworm-backports ;;
    *) fail "there is no kernel '$kernel' here; there are 6.1 (Debian 12) and 6.12 (its backports)." ;;
    esac
    [[ -e $keyring ]] || fail "$keyring is missing; run 'apt-get install debian-archive-keyring'."
    new=$(mktemp -d "$kernels/.new.XXXXXX")
    # It ends here only where something has failed.
    trap 'rm -rf -- "$new"; exit 125' EXIT
    trap 'exit 125' HUP INT TERM
    local apt=$new/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$new/unpacked"
    for suite in "${suites[@]}"; do
        archive=debian
        [[ $suite != *-security ]] || archive=debian-security
        at=$(archive_at "$archive")
        echo "deb [signed-by=$keyring] $at $suite main"
    done >"$apt/sources.list"
    echo "taut: downloading into $folder" >&2
    debian_apt "$apt" apt-get update >"$new/log" 2>&1 || {
        cat "$new/log" >&2
        fail "the package lists cannot be had, as shown above; TAUT_DEBIAN_MIRROR names another mirror."
    }
    "$names" "$apt" >"$new/names"
    mapfile -t packages <"$new/names"
    (cd "$new" && debian_apt "$apt" apt-get download "${packages[@]}") >"$new/log" 2>&1 || {
        cat "$new/log" >&2
        fail "${packages[*]} cannot be downloaded, as shown above."
    }
    for deb in "$new"/*.deb; do
        dpkg-deb -x "$deb" "$new/unpacked"
    done
    rm -rf -- "$folder"
    mv "$new/unpacked" "$folder"
    rm -rf -- "$new"
    trap - EXIT HUP INT TERM
}

# The newest kernel, and busybox (installed, that would take the place of another busybox).
kernel_packages() {
    local package
    # The package of this name is empty and depends on the newest.
    package=$(debian_apt "$1" apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p')
    [[ -n $package ]] || fail "there is no package linux-image-cloud-amd64."
    printf '%s\n' "$package" busybox-static
}

# Sets `folder` to where the kernel $1 is, with /boot, /lib/modules and /bin/busybox in it.
have_kernel() {
    folder=$kernels/$1
    mkdir -p "$kernels"
    # (Not in a subshell with `||` after it: there a command that fails would not end it.)
    exec 9>"$kernels/.lock"
    flock 9
    [[ -d $folder/boot ]] || fetch "$1" "$folder" kernel_packages
    exec 9>&-
}
