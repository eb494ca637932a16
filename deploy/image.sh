#!/bin/sh
# Writes a container image as an archive, without a container engine. The image contains only one static program, as the
# image of Containerfile does. `ctr -n k8s.io images import FILE`, `docker load -i FILE` and `skopeo copy docker-archive:FILE`
# accept it. For tests, BERTH_LIBRARIES=1 copies the shared libraries that the program needs from this machine.
# usage: deploy/image.sh PROGRAM NAME:TAG FILE [FOLDER] (FOLDER: path of the program in the image; default /)
set -eu
[ $# -eq 3 ] || [ $# -eq 4 ] || {
    echo "usage: deploy/image.sh PROGRAM NAME:TAG FILE [FOLDER]" >&2
    exit 2
}
program=$1 tag=$2 file=$3 folder=${4:-/}
folder=${folder%/}
libraries=$(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true)
if [ -n "$libraries" ] && [ -z "${BERTH_LIBRARIES-}" ]; then
    echo "image.sh: $program needs shared libraries, but the image contains none: build it with -C target-feature=+crt-static" >&2
    exit 2
fi
case $(uname -m) in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) architecture=$(uname -m) ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=$(basename "$program")
mkdir "$work/layer"
install -D -m 755 "$program" "$work/layer$folder/$name"
for library in $libraries; do
    install -D -m 755 "$library" "$work/layer$library"
done
# The same program produces the same image.
pack() {
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$1" -cf "$2" .
}
mkdir "$work/image"
pack "$work/layer" "$work/image/layer.tar"
layer=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
cat >"$work/image/config.json" <<JSON
{"architecture":"$architecture","os":"linux","created":"1970-01-01T00:00:00Z","config":{"Entrypoint":["$folder/$name"]},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
cat >"$work/image/manifest.json" <<JSON
[{"Config":"config.json","RepoTags":["$tag"],"Layers":["layer.tar"]}]
JSON
pack "$work/image" "$file"
echo "$file: $tag, $(stat -c %s "$file") bytes"
