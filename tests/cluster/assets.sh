#!/bin/sh
# Builds a Kubernetes control plane and kubelet (1.20, the one whose source Debian carries with all it needs), once:
# a later call with the same recipe finds them in the cache. Prints the folder that has etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubectl and kubelet. Installs nothing; needs 4 GB of disk and four minutes.
# Tests take the folder KUBEBUILDER_ASSETS instead, where it is set.
# usage: tests/cluster/assets.sh [--find]    --find: fails if the programs are not in the cache
set -eu

suite=bookworm
version=1.20.2
recipe=$(cksum <"$0" | cut -d' ' -f1)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/berth
cache=$folder/kubernetes-$version-$recipe

here=$(cd "$(dirname "$0")" && pwd)
begin=$(date +%s)
progress() {
    echo "assets.sh: $1 ($(($(date +%s) - begin)) s)" >&2
}
found() {
    [ -x "$cache/kube-apiserver" ] && echo "$cache"
}
found && exit
[ "${1:-}" != --find ] || exit 1

mkdir -p "$folder"
exec 9<"$folder"
flock --timeout 1800 9 || {
    echo "assets.sh: another build has $folder locked for half an hour: end it and try again" >&2
    exit 1
}
found && exit # Another process built it meanwhile.
work=$cache.building
# Under the lock a work folder is one that a killed build left.
rm -rf "$folder/kubernetes-"*.building
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/bin"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
log=$work/build.log

failed() {
    echo "assets.sh: $1; the end of its log:" >&2
    tail -20 "$log" >&2
    exit 1
}

# This machine's apt fetches, as its settings for proxies and dates may be needed; lists and archives are our own.
# It does not see which packages are installed: a newer etcd here would be the one that it downloads.
mirror=$("$here/../mirror.sh" "$suite")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
for kind in deb deb-src; do
    echo "$kind [signed-by=$keyring] $mirror $suite main"
done >"$work/sources.list"
fetch() {
    timeout --foreground 600 apt-get -qq -y -o APT::Sandbox::User=root -o Dir::Etc::SourceParts=- \
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::State::Lists="$work/lists" \
        -o Dir::State::Status=/dev/null -o Dir::Cache="$work/cache" "$@" >>"$log" 2>&1
}
cd "$work"
progress "building Kubernetes $version once, some four minutes: downloading Go, etcd, kubectl and the source"
fetch update || failed "no lists of packages"
fetch download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server kubernetes-client ||
    failed "no Go, etcd or kubectl"
fetch source --download-only kubernetes || failed "no source of Kubernetes"
for package in ./*.deb; do
    dpkg-deb -x "$package" "$work/root"
done
source=$work/go/src/k8s.io/kubernetes
mkdir -p "$source"
tar -xf kubernetes_*.orig.tar.* --strip-components 1 -C "$source"
# The vendored one reads Go's own tables of types, which are others since Go 1.18: servers crash at the first object.
reflect2=github.com/modern-go/reflect2
rm -r "${source:?}/vendor/$reflect2"
cp -r "$work/root/usr/share/gocode/src/$reflect2" "$source/vendor/$reflect2"

# A caller's GOFLAGS or `go env -w` may ask for modules. The same flags for all programs, so no package is compiled twice; no
# data for debuggers. The compiler collects garbage less often, because time is scarcer than memory.
export GOENV=off GOFLAGS='-trimpath -gcflags=all=-dwarf=false' GO111MODULE=off CGO_ENABLED=0 GOTOOLCHAIN=local GOGC=400 \
    GOROOT="$work/root/usr/lib/go-1.19" GOPATH="$work/go" GOCACHE="$work/gocache" GOTMPDIR="$work"
PATH=$GOROOT/bin:$PATH
cd "$source"

# A generator writes the schemas of all types; the tarball lacks its output.
progress "generating API schemas"
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen >>"$log" 2>&1 ||
    failed "openapi-gen does not build"
packages=$(grep -rl --include='*.go' --exclude='*_test.go' '^// +k8s:openapi-gen=' pkg staging/src | xargs -n1 dirname |
    sort -u | sed 's,^staging/src/,vendor/,; s,^,k8s.io/kubernetes/,' | paste -sd,)
"$work/openapi-gen" --logtostderr --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    --input-dirs "$packages" --output-base "$GOPATH/src" --output-package k8s.io/kubernetes/pkg/generated/openapi \
    --output-file-base zz_generated.openapi --report-filename "$work/report" >>"$log" 2>&1 ||
    failed "openapi-gen failed"

progress "compiling four programs"
flags='-s -w'
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    for variable in gitVersion=v$version gitMajor=1 gitMinor=20 gitTreeState=clean; do
        flags="$flags -X k8s.io/kubernetes/vendor/$package.$variable"
    done
done
# Without the clouds of providers and without Docker, which no test uses, this takes much less time.
go build -tags "providerless dockerless" -ldflags "$flags" -o "$work/bin/" ./cmd/kube-apiserver ./cmd/kube-controller-manager \
    ./cmd/kube-scheduler ./cmd/kubelet >>"$log" 2>&1 || failed "Kubernetes does not build"
mv "$work/root/usr/bin/etcd" "$work/root/usr/bin/kubectl" "$work/bin/"
mv "$work/bin" "$cache"
progress "Kubernetes $version is built: $cache"
echo "$cache"
