#!/bin/sh
# Builds the disk image that emulated hosts boot from, out of Debian packages, once: a later call with the
# same recipe finds it in the cache. Prints the folder with disk.img, vmlinuz and initrd.
# Needs root (debootstrap), 3 GB of disk and two minutes. usage: tests/host/image.sh
set -eu

suite=bookworm
packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,linux-image-cloud-amd64
# Second opinions on what the agent says.
packages=$packages,util-linux,numactl,pciutils,lvm2,libvirt-clients
recipe=$(cat "$0" | cksum | cut -d' ' -f1)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth/host-$suite-$recipe

if [ -f "$cache/disk.img" ]; then
    echo "$cache"
    exit 0
fi
work=$cache.building
rm -rf "$work"
mkdir -p "$work"
root=$work/root
debootstrap --variant=minbase --include="$packages" "$suite" "$root" >"$work/debootstrap.log" 2>&1 || {
    tail -20 "$work/debootstrap.log" >&2
    exit 1
}

# One line in is a command in base64, one line out its exit code and output in base64.
cat >"$root/usr/local/sbin/berth-shell" <<'SHELL'
#!/bin/bash
port=/dev/virtio-ports/berth
exec 3<>"$port"
cp /dev/disk/by-id/virtio-berth-agent /usr/local/bin/berth-agent && chmod 755 /usr/local/bin/berth-agent
echo ready >&3
while read -r -u 3 line; do
    output=$(base64 -d <<<"$line" | bash 2>&1 | base64 -w0; exit "${PIPESTATUS[1]}")
    echo "$? $output" >&3
done
SHELL
chmod 755 "$root/usr/local/sbin/berth-shell"
cat >"$root/etc/systemd/system/berth-shell.service" <<'UNIT'
[Unit]
Description=Commands for tests
After=multi-user.target dev-virtio\x2dports-berth.device
Wants=dev-virtio\x2dports-berth.device

[Service]
ExecStart=/usr/local/sbin/berth-shell

[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../berth-shell.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
echo host-a >"$root/etc/hostname"
# Each host gets an id of its own on the kernel command line; one in the image would be shared.
: >"$root/etc/machine-id"
ln -sf /etc/machine-id "$root/var/lib/dbus/machine-id"

cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd"
mke2fs -q -t ext4 -L berth-host -d "$root" "$work/disk.img" 2G
rm -rf "$root"
mv "$work" "$cache"
echo "$cache"
